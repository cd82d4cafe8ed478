"""/gallery: recorded generations and runs saved on this machine: open, fork and download them. Needs no model."""

from __future__ import annotations

from typing import Any

import gradio as gr

from workbench.ui.pages import add_page
from workbench.ui.saved_runs import SavedRunsView, drafted_by
from workbench.views import recorded


def add(demo: gr.Blocks, kept: SavedRunsView) -> None:
    """Add the page to the app."""

    def recordings(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [drafted_by(entry) for entry in recorded.index()]

    def recording(request: dict[str, Any]) -> dict[str, Any]:
        return kept.recording(str(request.get("name")))

    add_page(demo, "Gallery", "gallery", [recordings, recording, kept.kept, kept.mark, kept.forget])
