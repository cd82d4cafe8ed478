"""Read traces from files, with error messages that name the file."""

from __future__ import annotations

from pathlib import Path

from workbench.core.errors import WorkbenchError, system_reason
from workbench.trace.events import Trace
from workbench.trace.files import read_regular


def read_trace(path: Path) -> Trace:
    """Read a recorded run from its file.

    Raises:
        WorkbenchError: the file cannot be read, or has no trace.
    """
    from workbench.trace import export  # imports Polars

    try:
        return export.read(read_regular(path))
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be read: {system_reason(error)}.", "Give a trace file.") from None
    except WorkbenchError as error:
        raise type(error)(f"{path}: {error.message}", error.remedy) from None
