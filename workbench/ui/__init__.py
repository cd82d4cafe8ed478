"""The app's pages: a Gradio app whose views are drawn by JavaScript. `build(client)` returns the `gr.Blocks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.ui.launching import LAUNCH
from workbench.ui.lazy_client import LazyClient

if TYPE_CHECKING:
    import gradio as gr

    from workbench.client import Client

__all__ = ["LAUNCH", "LazyClient", "build"]


def build(client: Client, can_save_runs: bool = False) -> gr.Blocks:
    """Return the app's main page.

    Args:
        client: a `workbench.client.Workbench`, or anything with the same methods.
        can_save_runs: whether the page may save runs on this machine and show saved runs.
    """
    from workbench.ui.page import build as build_page  # gradio takes a second or two to import

    return build_page(client, can_save_runs)
