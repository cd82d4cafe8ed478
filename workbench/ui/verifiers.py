"""/verifiers: the verifier bench, p and q of one position under every verifier. Computed in the page."""

from __future__ import annotations

import gradio as gr

from workbench.ui.pages import add_page


def add(demo: gr.Blocks) -> None:
    """Add the page /verifiers to the app."""
    add_page(demo, "Verifiers", "verifiers", [])
