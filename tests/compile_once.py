"""One test process compiles a kernel; the others wait for it and load the machine code from numba's cache.

On a new machine each worker of xdist otherwise compiles the same kernels at the same time, which takes minutes.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

LOCK = Path(tempfile.gettempdir()) / f"workbench-compile-{os.getuid()}.lock"


def install() -> None:
    """Let numba compile only while this process holds the lock of all test processes."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_alone, depth = Dispatcher.compile, 0
    if compile_alone.__module__ == __name__:
        return

    def compile_in_turn(self: Any, sig: Any) -> Any:
        nonlocal depth
        with global_compiler_lock:  # so that only one thread of this process counts
            if depth:  # a kernel that another one calls
                return compile_alone(self, sig)
            with LOCK.open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                depth += 1
                try:
                    return compile_alone(self, sig)
                finally:
                    depth -= 1
                    fcntl.flock(lock, fcntl.LOCK_UN)

    Dispatcher.compile = compile_in_turn
