"""URLs of runs: `/r/NAME` opens one run in the Live view, `/r/ONE+OTHER` shows two runs side by side.

Gradio serves pages only at fixed paths, so this middleware rewrites the path of a request. The address in the browser
stays the same, and the main page reads the names of the runs from it. `SavedRunsView` checks the names.
"""

from __future__ import annotations

import html
import re
from typing import Any

BASE = "workbench.base"
"""Key in the ASGI scope: base path of the app relative to the requested URL, for the page's element `<base>`."""
_RUN = re.compile(r"/r/[^/]+")


NOWHERE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>No such page · Speculative Decoding Workbench</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 sans-serif; margin: 15vh auto; max-width: 34em;
padding: 0 1em }}</style></head>
<body><h1>There is no page at this address.</h1>
<p>Open <a href="{root}/">Live</a>, the <a href="{root}/gallery">Gallery</a>, the <a href="{root}/learn">tour</a> or the
list of <a href="{root}/methods">methods</a>.</p></body></html>
"""
"""HTML page that a browser gets for an unknown URL; programs get JSON."""


class Addresses:
    """ASGI middleware that serves the main page at the URLs of runs, and a "not found" page at unknown URLs."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, after replacing the URL path of a run by that of the main page."""
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            scope = rewrite_run_path(scope)
            if b"text/html" in dict(scope.get("headers", ())).get(b"accept", b""):
                send = _with_a_page(send, scope)
        await self.app(scope, receive, send)


def _with_a_page(send: Any, scope: dict[str, Any]) -> Any:
    """Replace a "not found" answer in JSON by an HTML page; pass other answers on unchanged."""
    replaced = False

    async def answer(message: Any) -> None:
        nonlocal replaced
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
            replaced = message["status"] == 404 and kind.startswith(b"application/json")
            if replaced:
                body = NOWHERE.format(root=html.escape(scope.get("root_path", ""))).encode()
                headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", b"%d" % len(body))]
                await send(message | {"headers": headers})
                await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
        if not replaced:
            await send(message)

    return answer


def rewrite_run_path(scope: dict[str, Any]) -> dict[str, Any]:
    """Return an ASGI scope in which the URL path of a run is replaced by that of the main page.

    A scope with another path is returned unchanged.

    Example:
        >>> rewrite_run_path({"path": "/r/20261122-180000-0a1b2c3d"})["path"]
        '/'
        >>> rewrite_run_path({"path": "/app/r/one+other", "root_path": "/app"})["path"]
        '/app/'
    """
    root = scope.get("root_path", "")
    path = scope["path"]
    relative = path.removeprefix(root) if root else path  # some proxies strip their prefix, others keep it
    if _RUN.fullmatch(relative) is None:
        return scope
    page = path[: len(path) - len(relative)] + "/"
    return scope | {"path": page, "raw_path": page.encode(), BASE: "../"}
