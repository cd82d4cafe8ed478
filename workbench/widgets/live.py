"""A generation while it goes on, in a notebook."""

from __future__ import annotations

from typing import Any

from workbench.client import RunHandle
from workbench.trace.events import Trace
from workbench.widgets import snapshot
from workbench.widgets.view import View


class Live(View):
    """The whole Live view of a run. `run` is its handle."""

    def __init__(self, run: RunHandle) -> None:
        self.run = run
        super().__init__("live", [], self._picture)

    @property
    def trace(self) -> Trace | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What was recorded so far."""
        return self.run.trace

    def _picture(self) -> str:
        trace = self.trace
        return "<p>The run has recorded nothing yet.</p>" if trace is None else snapshot.stage(trace)


def live(run: Any, wb: Any = None) -> Live:
    """The whole Live view of a run, as it goes on: Pause, Step, Stop and changes of parameters reach the run.

    Args:
        run: what `wb.start(…)` or `wb.run(id)` returned, of a private backend or a running app's.
        wb: the `Workbench` it came from, where it cannot be told from the run.
    """
    return Live(run)
