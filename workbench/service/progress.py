"""Record the progress of loading a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.core.errors import WorkbenchError

DOWNLOADING, CONVERTING, READING = "downloading", "dequantising", "reading"
BUILDING, CALIBRATING = "building", "calibrating"


def megabytes(n_bytes: float) -> str:
    """Format a number of bytes as text, such as "12.3 MB" or "1.2 GB"."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


class LoadAbortedError(WorkbenchError):
    """Raised to abort the loading of a model that is no longer needed."""


class Progress:
    """Progress of loading one model: stage and number of bytes.

    Only the loader updates a `Progress`; any thread may read it, because each update is a single assignment.

    Args:
        name: name of the model.
        is_over: function that returns whether the load should be aborted; each update calls it, so that a long download
            or conversion ends soon.

    Raises:
        LoadAbortedError: raised by an update if the load should be aborted.
    """

    def __init__(self, name: str, is_over: Callable[[], bool] = lambda: False) -> None:
        self.name = name
        self._is_over = is_over
        self._now: tuple[str, int, int | None] = (READING, 0, None)

    def stage(self, stage: str, total: int | None = None) -> None:
        """Start a new stage of loading, such as "downloading", of `total` bytes (None: unknown)."""
        self._update(stage, 0, total)

    def add(self, n_bytes: int) -> None:
        """Add to the number of finished bytes of the current stage of loading."""
        stage, done, total = self._now
        self._update(stage, done + n_bytes, total)

    def reach(self, n_bytes: int) -> None:
        """Set the number of finished bytes of the current stage of loading, unless it is smaller than before."""
        stage, done, total = self._now
        self._update(stage, max(done, n_bytes), total)

    def _update(self, *now: Any) -> None:
        if self._is_over():
            raise LoadAbortedError(f"Loading {self.name} was aborted: the workbench is closing.")
        self._now = now

    @property
    def text(self) -> str:
        """Return the progress as a message, such as "loading NAME: downloading, 1.2 of 3.4 MB"."""
        stage, done, total = self._now
        size = f", {done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else ""
        return f"loading {self.name}: {stage}{size}"

    @property
    def short(self) -> str:
        """Return the progress as a short text, such as "dequantising 40 %"."""
        stage, done, total = self._now
        return f"{stage} {100 * done // total} %" if total else stage

    def to_wire(self) -> dict[str, Any]:
        """Return the progress as JSON data: {"stage", "done", "total"}, the last two in bytes."""
        stage, done, total = self._now
        return {"stage": stage, "done": done, "total": total}
