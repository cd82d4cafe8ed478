"""Traces from files: what is wrong with one is said with its name."""

from __future__ import annotations

from pathlib import Path

from workbench.core.errors import WorkbenchError
from workbench.trace.events import Trace
from workbench.trace.files import read_regular


def read_trace(path: Path) -> Trace:
    """A recorded run from its file.

    Raises:
        WorkbenchError: it cannot be read, or holds no trace; the message names it.
    """
    from workbench.trace import export  # brings Polars

    try:
        return export.read(read_regular(path))
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be read: {error.strerror}.", "Give the file of a trace.") from None
    except WorkbenchError as error:
        raise type(error)(f"{path}: {error.message}", error.remedy) from None
