"""Passes over few tokens on a CPU as machine code, made by numba for the processor at hand and kept for next time.

What is kept belongs to these files as they are: numba alone would look at the file of a function, not at those whose
functions it calls.
"""

import hashlib
import os
from pathlib import Path

from numba import config

from workbench.engine.converted import code_folder

_sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
_theirs = config.CACHE_DIR  # pyright: ignore[reportAttributeAccessIssue]
if "NUMBA_CACHE_DIR" not in os.environ:
    config.CACHE_DIR = str(  # pyright: ignore[reportAttributeAccessIssue]
        code_folder(hashlib.sha256(_sources).hexdigest()[:16])
    )
try:
    from workbench.engine.compiled import discounts as discounts
    from workbench.engine.compiled import forward as forward  # a function's folder is chosen when it is declared
    from workbench.engine.compiled import joining as joining
    from workbench.engine.compiled import laws as laws
    from workbench.engine.compiled import levels as levels
    from workbench.engine.compiled import overlaps as overlaps
    from workbench.engine.compiled import pairs as pairs
    from workbench.engine.compiled import pieces as pieces
    from workbench.engine.compiled import siblings as siblings
finally:
    config.CACHE_DIR = _theirs  # pyright: ignore[reportAttributeAccessIssue]
