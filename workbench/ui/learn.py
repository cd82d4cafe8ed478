"""Page /learn: a guided tour of speculative decoding in eight steps, on recorded generations."""

from __future__ import annotations

from typing import Any

import gradio as gr

from workbench.ui.pages import add_page
from workbench.views import recorded_runs, tour


def add(demo: gr.Blocks) -> None:
    """Add the page /learn to the app."""

    def steps(request: dict[str, Any]) -> list[dict[str, Any]]:
        return tour_steps()

    def recording(request: dict[str, Any]) -> dict[str, Any]:
        return recorded_runs.load(str(request.get("name")))

    add_page(demo, "Learn", "learn", [steps, recording])


def tour_steps() -> list[dict[str, Any]]:
    """Return the steps of the guided tour whose recordings exist, in order."""
    existing = set(recorded_runs.names())
    return [
        tour.to_wire(name, make_step(*map(recorded_runs.trace, needed)))
        for name, (make_step, needed) in tour.STEPS.items()
        if existing.issuperset(needed)
    ]
