"""Panics of libraries written in Rust (tokenizers, safetensors, Polars), which pass by `except Exception`."""

from __future__ import annotations

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
