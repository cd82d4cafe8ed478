"""Page /r/ONE+OTHER: two recorded runs side by side with a shared selection. Needs no model."""

from __future__ import annotations

from typing import Any

from workbench.client import wire
from workbench.trace.events import Trace
from workbench.trace.metrics import DEFINITIONS, summary
from workbench.ui.hosting import add_view
from workbench.ui.saved_runs import SavedRunsView

FIGURES = ("tokens", "rounds", "tau", "acceptance_rate", "draft_utilisation", "tokens_per_second", "overhead_share")
"""Names of the measured quantities (of `workbench.trace.metrics`) that are shown for both runs."""


def add(saved_runs: SavedRunsView) -> None:
    """Add the content of the tab that shows two runs side by side. Call this inside the tab's `gr.Tab`."""

    def run(request: dict[str, Any]) -> dict[str, Any]:
        return load_run(saved_runs, request)

    add_view("tworuns", [run], tab="pair", elem_id="wb-pair")


def load_run(saved_runs: SavedRunsView, request: dict[str, Any]) -> dict[str, Any]:
    """Return a run's trace with its measurements and their definitions.

    The run is given by its name, or by the `trace` that the browser sent.

    Raises:
        WorkbenchError: there is no run with this name, no runs are saved here, or the trace cannot be read.
    """
    if isinstance(sent := request.get("trace"), dict):
        from workbench.trace import export  # Polars, which few visits need

        run = export.read_wire(sent)
        trace = run.to_wire()
    else:
        trace = saved_runs.recording(wire.check_text("name", request.get("name")))
        run = Trace.from_wire(trace)
    figures = summary(run)
    words = {name: list(DEFINITIONS[name]) for name in FIGURES if name in DEFINITIONS}
    return {"trace": trace, "figures": {name: figures[name] for name in FIGURES}, "definitions": words}
