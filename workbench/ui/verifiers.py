"""Page /verifiers: the verifier bench, which applies every verifier to the probabilities p and q of one position.

All results are computed in the browser.
"""

from __future__ import annotations

import gradio as gr

from workbench.ui.pages import add_page


def add(demo: gr.Blocks) -> None:
    """Add the page /verifiers to the app."""
    add_page(demo, "Verifiers", "verifiers", [])
