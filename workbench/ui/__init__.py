"""The page in the browser: a Gradio shell around the Live view. `build(client)` returns the `gr.Blocks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware

from workbench.ui.addresses import Addresses
from workbench.ui.files import Files
from workbench.ui.later import Later
from workbench.ui.quiet import Quiet

if TYPE_CHECKING:
    import gradio as gr

    from workbench.client import Client

__all__ = ["LAUNCH", "Later", "build"]

LAUNCH: dict[str, Any] = {
    "share": False,
    "ssr_mode": False,
    "run_history": False,
    "footer_links": ["api"],
    "show_error": True,
    "state_session_capacity": 100,
    "app_kwargs": {"middleware": [Middleware(Addresses), Middleware(Files), Middleware(Quiet)]},
}
"""How the page is launched: nothing leaves the machine, nothing is kept in the browser's run history, and an idle page
costs nothing. Gradio keeps a copy of the settings of all components for each session, 120 kB and 6 ms here, although
nothing in them ever changes: it forgets the oldest of a hundred, and makes that of a page that comes back anew."""


def build(client: Client, keeps: bool = False) -> gr.Blocks:
    """The whole page.

    Args:
        client: a `workbench.client.Workbench`, or anything with the same methods.
        keeps: whether visitors may use this machine's run store: only where they are its user.
    """
    from workbench.ui.page import build as build_page  # gradio takes a second or two to import

    return build_page(client, keeps)
