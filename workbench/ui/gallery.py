"""Page /gallery: open, fork and download recorded generations and runs saved on this machine. Needs no model."""

from __future__ import annotations

from typing import Any

import gradio as gr

from workbench.client import Client
from workbench.ui.methods_page import matrix_of, measured
from workbench.ui.pages import add_page
from workbench.ui.saved_runs import SavedRunsView, without_unused_drafter
from workbench.views import recorded_runs


def add(demo: gr.Blocks, saved_runs: SavedRunsView, client: Client | None = None) -> None:
    """Add the page /gallery to the app.

    Args:
        demo: the finished main page.
        saved_runs: runs saved on this machine.
        client: client that lists the methods that can run here; None: the page cannot filter by them.
    """

    def recordings(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [without_unused_drafter(entry) for entry in recorded_runs.index()]

    def recording(request: dict[str, Any]) -> dict[str, Any]:
        return saved_runs.recording(str(request.get("name")))

    saved = [saved_runs.kept, saved_runs.mark, saved_runs.forget, saved_runs.table, saved_runs.significance]
    matrix = [] if client is None else [matrix_of(client)]
    add_page(demo, "Gallery", "gallery", [recordings, recording, measured, *matrix, *saved])
