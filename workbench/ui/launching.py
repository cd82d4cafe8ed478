"""Options with which Gradio launches the page, on every platform."""

from __future__ import annotations

from typing import Any

from gradio import themes
from starlette.middleware import Middleware

from workbench.ui.addresses import Addresses
from workbench.ui.compression import CompressionMiddleware
from workbench.ui.files import Files
from workbench.ui.idle_page import IdlePageMiddleware

LAUNCH: dict[str, Any] = {
    "share": False,
    "ssr_mode": False,
    "run_history": False,
    "footer_links": ["api"],
    "show_error": True,
    "state_session_capacity": 100,
    "theme": themes.Default(font=["Workbench Sans", "system-ui"], font_mono=["Workbench Mono", "monospace"]),
    "app_kwargs": {
        "middleware": [Middleware(each) for each in (Addresses, CompressionMiddleware, Files, IdlePageMiddleware)]
    },
}
"""Launch options of the Gradio app: no usage statistics, no run history in the browser, only the views' own fonts.

An idle page takes no CPU time. Gradio stores a copy of the settings of all components per session (120 kB and 6 ms
here), although these settings never change. At most a hundred copies are stored; Gradio recreates the copy when an
older page returns.
"""
