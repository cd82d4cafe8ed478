"""Handle panics of Rust libraries (tokenizers, safetensors, Polars), which `except Exception` does not catch."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager


class PanicError(RuntimeError):
    """Raised in place of a Rust panic, so that `except Exception` catches it."""


def is_panic(error: BaseException | None) -> bool:
    """Return whether an error is a Rust panic.

    The class is matched by name: pyo3 creates one per library, derived directly from BaseException.
    """
    return error is not None and any(kind.__name__ == "PanicException" for kind in type(error).__mro__)


@contextmanager
def convert_panics() -> Generator[None, None, None]:
    """Convert a Rust panic inside the block to a `PanicError`; let other exceptions pass.

    Otherwise no `except Exception` catches the panic, it ends its thread, and a caller that waits for the thread's
    result waits forever.

    Raises:
        PanicError: a library panicked.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        reason = str(error).strip() or type(error).__name__
        raise PanicError(reason.splitlines()[0][:200]) from error


_ONE_AT_A_TIME = threading.RLock()
_PANIC = re.compile(rb"\n?thread '[^\n]*panicked at .*", re.DOTALL)


@contextmanager
def suppress_panic_output() -> Generator[None, None, None]:
    """Remove the backtraces of Rust panics from standard error.

    Rust prints a backtrace before Python receives the error, and no Python call prevents this. Inside the block,
    standard error is therefore redirected to a temporary file. At its end, the file's contents without the backtraces
    are copied to standard error.
    """
    with _ONE_AT_A_TIME:
        if sys.stderr is not None:
            sys.stderr.flush()
        try:
            stderr = os.dup(2)
        except OSError:  # no standard error, as under pythonw
            yield
            return
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
                file.seek(0)
                if output := _PANIC.sub(b"", file.read()):
                    os.write(2, output)
