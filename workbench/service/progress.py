"""How far a load has come, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.core.errors import WorkbenchError

DOWNLOADING, CONVERTING, READING = "downloading", "dequantising", "reading"
BUILDING, CALIBRATING = "building", "calibrating"


def megabytes(n_bytes: float) -> str:
    """For people: "12.3 MB", "1.2 GB"."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


class BrokenOffError(WorkbenchError):
    """A load was broken off, because nobody will use what it brings."""


class Progress:
    """Stage and bytes of one load. Written by the loader, read by anyone; each write is one assignment.

    Args:
        name: what is loaded.
        is_over: whether nobody wants it any more; each write asks first, so that a download or a conversion of minutes
            ends within moments.

    Raises:
        BrokenOffError: from a write, when it is over.
    """

    def __init__(self, name: str, is_over: Callable[[], bool] = lambda: False) -> None:
        self.name = name
        self._is_over = is_over
        self._now: tuple[str, int, int | None] = (READING, 0, None)

    def stage(self, stage: str, total: int | None = None) -> None:
        """A new stage begins; `total` bytes of work where that is known."""
        self._tell(stage, 0, total)

    def add(self, n_bytes: int) -> None:
        """So much more is done."""
        stage, done, total = self._now
        self._tell(stage, done + n_bytes, total)

    def reach(self, n_bytes: int) -> None:
        """So much is done in all, if that is more than before."""
        stage, done, total = self._now
        self._tell(stage, max(done, n_bytes), total)

    def _tell(self, *now: Any) -> None:
        if self._is_over():
            raise BrokenOffError(f"Loading {self.name} was broken off: the workbench is being closed.")
        self._now = now

    @property
    def text(self) -> str:
        """For people."""
        stage, done, total = self._now
        size = f", {done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else ""
        return f"loading {self.name}: {stage}{size}"

    @property
    def short(self) -> str:
        """For a place beside a name: "dequantising 40 %"."""
        stage, done, total = self._now
        return f"{stage} {100 * done // total} %" if total else stage

    def to_wire(self) -> dict[str, Any]:
        """{"stage", "done", "total"}, in bytes."""
        stage, done, total = self._now
        return {"stage": stage, "done": done, "total": total}
