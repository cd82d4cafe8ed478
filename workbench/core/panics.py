"""Panics of libraries written in Rust (tokenizers, safetensors, Polars), which pass by `except Exception`."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager


class PanicError(RuntimeError):
    """A panic, as an ordinary error."""


def is_panic(error: BaseException | None) -> bool:
    """Whether an error is a panic of such a library.

    Known by its name: pyo3 makes the class anew in each library, and it derives from BaseException alone.
    """
    return error is not None and any(kind.__name__ == "PanicException" for kind in type(error).__mro__)


@contextmanager
def no_panic() -> Generator[None, None, None]:
    """A panic that leaves the block does so as an ordinary error; everything else as it is.

    Without it a panic ends the thread it comes to, past every `except Exception`, and whoever waits for that thread
    waits forever.

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
def quiet() -> Generator[None, None, None]:
    """Keep the backtraces of panics that such a library writes to the process's standard error out of it.

    Rust prints them before Python sees an error, and no Python call turns that off. So what is written to the file
    descriptor meanwhile goes to a temporary file first, and from there, panics left out, to its place.
    """
    with _ONE_AT_A_TIME:
        if sys.stderr is not None:
            sys.stderr.flush()
        try:
            kept = os.dup(2)
        except OSError:  # no standard error, as under pythonw
            yield
            return
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
                os.close(kept)
                file.seek(0)
                if said := _PANIC.sub(b"", file.read()):
                    os.write(2, said)
