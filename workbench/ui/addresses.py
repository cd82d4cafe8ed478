"""Addresses of runs: `/r/NAME` opens one in the Live view, `/r/ONE+OTHER` two side by side.

Gradio serves pages at fixed paths only, so the path is another one on its way in; the browser's stays as it is, and the
page of tabs reads from it which runs are meant. What a name may open, `workbench.ui.keptruns.KeptRuns` decides.
"""

from __future__ import annotations

import re
from typing import Any

BASE = "workbench.base"
"""Entry of the scope: where the app is, seen from the address, for the page's `<base>`."""
_RUN = re.compile(r"/r/[^/]+")


class Addresses:
    """ASGI middleware that leads addresses of runs to the page of tabs."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, under the path of its page."""
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            scope = led(scope)
        await self.app(scope, receive, send)


def led(scope: dict[str, Any]) -> dict[str, Any]:
    """The scope of a request for an address of runs under the path of the page of tabs; others as they are.

    Example:
        >>> led({"path": "/r/20261122-180000-0a1b2c3d"})["path"]
        '/'
        >>> led({"path": "/app/r/one+other", "root_path": "/app"})["path"]
        '/app/'
    """
    root = scope.get("root_path", "")
    path = scope["path"]
    inside = path.removeprefix(root) if root else path  # some proxies take their prefix off, others leave it
    if _RUN.fullmatch(inside) is None:
        return scope
    page = path[: len(path) - len(inside)] + "/"
    return scope | {"path": page, "raw_path": page.encode(), BASE: "../"}
