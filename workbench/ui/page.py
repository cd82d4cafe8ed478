"""Main page with the tabs Live, Compare, Vision, Sweep and Lab.

All tabs are in one `gr.Blocks`, because Gradio events cannot cross pages.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from workbench.client import Client
from workbench.ui import api, compare, gallery, lab, learn, methods_page, pair, sweep, verifiers, vision
from workbench.ui.hosting import TABS, add_view
from workbench.ui.redacting_blocks import RedactingBlocks
from workbench.ui.saved_runs import SavedRunsView
from workbench.ui.session import Session

TITLE = "Speculative Decoding Workbench"


def build(client: Client, can_save_runs: bool = False) -> gr.Blocks:
    """Return the app's main page. Before a browser sends a request, nothing is loaded or started."""
    saved_runs = SavedRunsView(can_save_runs)
    with RedactingBlocks(title=TITLE, fill_width=True, analytics_enabled=False) as demo:
        # The views draw their own header, whose links press Gradio's tab buttons: see tabs.js.
        with gr.Tabs(selected="live", overflow_behavior="wrap", elem_id="wb-views"):
            with gr.Tab("Live", id="live"):
                live_view(Session(client, saved_runs))
            with gr.Tab("Compare", id="compare"):
                compare.add(client)
            with gr.Tab("Vision", id="vision"):
                vision.add(client, saved_runs)
            with gr.Tab("Sweep", id="sweep"):
                sweep.add(client)
            with gr.Tab("Lab", id="lab"):
                lab.add(client, saved_runs)
            with gr.Tab("Two runs", id="pair"):  # opened by an address or from the gallery: see addresses.py
                pair.add(saved_runs)
        tabs = Path(__file__).with_name("tabs.js").read_text(encoding="utf-8")
        gr.HTML(html_template="<i></i>", visible="hidden", js_on_load=tabs, tabs=TABS)
        api.add(client)
    gallery.add(demo, saved_runs, client)
    learn.add(demo)
    methods_page.add(demo, client, saved_runs)
    verifiers.add(demo)
    return demo


def live_view(session: Session) -> None:
    """Add the Live view to the main page. Call this inside the page's `gr.Blocks`."""
    add_view("live", session.server_functions(), decode=session.decode, tab="live", elem_id="wb-page")
