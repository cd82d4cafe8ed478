"""How Gradio launches the page, wherever it runs."""

from __future__ import annotations

from typing import Any

from starlette.middleware import Middleware

from workbench.ui.addresses import Addresses
from workbench.ui.files import Files
from workbench.ui.quiet import Quiet

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
