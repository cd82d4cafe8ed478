"""Options with which Gradio launches the page, on every platform."""

from __future__ import annotations

from typing import Any

from starlette.middleware import Middleware

from workbench.ui.addresses import Addresses
from workbench.ui.files import Files
from workbench.ui.idle_page import IdlePageMiddleware

LAUNCH: dict[str, Any] = {
    "share": False,
    "ssr_mode": False,
    "run_history": False,
    "footer_links": ["api"],
    "show_error": True,
    "state_session_capacity": 100,
    "app_kwargs": {"middleware": [Middleware(Addresses), Middleware(Files), Middleware(IdlePageMiddleware)]},
}
"""Launch options: nothing leaves the machine, nothing is saved in the browser's run history, and an idle page costs no
CPU time. Gradio stores a copy of the settings of all components per session (120 kB and 6 ms here), although nothing
in them ever changes. At most a hundred copies are stored; Gradio creates the copy of a returning older page again."""
