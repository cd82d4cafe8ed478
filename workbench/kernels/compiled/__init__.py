"""Functions for forward passes over few tokens on a CPU, compiled for this processor by numba and cached.

The name of the cache folder contains a hash of all files in this package. This is necessary because numba itself checks
only the file of a function, not the files of the functions that it calls.
"""

import hashlib
import os
from pathlib import Path

from numba import config

from workbench.kernels.disk_cache import code_folder

_sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
_theirs = config.CACHE_DIR  # pyright: ignore[reportAttributeAccessIssue]
if "NUMBA_CACHE_DIR" not in os.environ:
    config.CACHE_DIR = str(  # pyright: ignore[reportAttributeAccessIssue]
        code_folder(hashlib.sha256(_sources).hexdigest()[:16])
    )
try:
    from workbench.kernels.compiled import discounts as discounts
    from workbench.kernels.compiled import distributions as distributions
    from workbench.kernels.compiled import draft_levels as draft_levels
    from workbench.kernels.compiled import feature_inputs as feature_inputs
    from workbench.kernels.compiled import forward as forward  # numba sets a function's cache folder at declaration
    from workbench.kernels.compiled import layer_steps as layer_steps
    from workbench.kernels.compiled import overlaps as overlaps
    from workbench.kernels.compiled import pairs as pairs
    from workbench.kernels.compiled import siblings as siblings
finally:
    config.CACHE_DIR = _theirs  # pyright: ignore[reportAttributeAccessIssue]
