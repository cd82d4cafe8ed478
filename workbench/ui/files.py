"""Serve the files of the pages at URLs such as `/workbench/js/live/page.js`, which reveal no local path.

A page requests a bundle (its entry module with all modules that it imports) at a URL with a version, such as
`/workbench/0123456789ab/bundle/live.js`. So a browser never mixes cached files of two versions. The single modules have
URLs, too; a module's imports have the same version in their URLs.
"""

from __future__ import annotations

import json
import re
from email.utils import formatdate
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import brotli
from starlette.datastructures import Headers
from starlette.responses import FileResponse, PlainTextResponse, Response

from workbench.views import modules
from workbench.views import replay as recording

PLACE = "/workbench/"
PLOTLY = "plotly.min.js"
KINDS = {".js": "text/javascript", ".css": "text/css"}
"""Media types by file suffix.

Browsers run JavaScript modules only with the right type, and operating systems guess types differently.
"""
_VERSION = re.compile(r"^[0-9a-f]{12}/")


@cache
def files() -> dict[str, Path]:
    """Return the paths of the pages' files by their names in URLs: modules, stylesheets, and Plotly."""
    by_name = {module(name): modules.module_path(name) for name in modules.module_names()}
    by_name |= {path.name: path for path in modules.all_stylesheets()}
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    return by_name | {PLOTLY: Path(spec.origin).parent / "package_data" / PLOTLY}


@cache
def _modules() -> dict[str, str]:
    """Return the names of the pages' JavaScript modules, by their file names in URLs."""
    return {module(name): name for name in modules.module_names()}


def module(name: str) -> str:
    """Return the file name of a JavaScript module in URLs."""
    return f"js/{name}.js"


def bundle(view: str) -> str:
    """Return the name of the file with a view's entry module and all modules that it imports.

    With it a page needs one request instead of 70.
    """
    return f"bundle/{view}.js"


BUNDLES = {bundle(view): entry for view, entry in modules.ENTRIES.items()}


def replay(view: str) -> str:
    """Return the name of the file from which a page exports a run as an HTML replay."""
    return f"replay/{view}.json"


REPLAYS = {replay(view): view for view in ("live", "vision")}


version = cache(modules.fingerprint)
"""Return the version of the pages' files that this process serves."""


@cache
def replay_sources(view: str) -> bytes:
    """Return template, style and code of a view's HTML replay, as JSON text."""
    return json.dumps(recording.sources(view)).encode()


@cache
def _compress(text: str) -> bytes:
    """Compress the text of a JavaScript bundle once; Gradio would compress it less, and for each request again."""
    return brotli.compress(text.encode(), quality=9)


class Files:
    """ASGI middleware that serves the files of the pages. Only files that the function `files` lists are read."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request for a file of the pages; pass other requests on."""
        relative = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or not relative.startswith(PLACE):
            return await self.app(scope, receive, send)
        name, version_asked = relative.removeprefix(PLACE), None
        if match := _VERSION.match(name):
            name, version_asked = name[match.end() :], match[0][:-1]
        if version_asked not in (None, version()):  # modules of two versions do not fit together
            return await PlainTextResponse("The workbench was updated: reload the page.", 404)(scope, receive, send)
        if view := REPLAYS.get(name):
            return await Response(replay_sources(view), media_type="application/json")(scope, receive, send)
        if entry := BUNDLES.get(name):
            headers = {"cache-control": "public, max-age=31536000, immutable"} if version_asked else {}
            content: bytes | str = modules.inline_modules(entry)
            if "br" in Headers(scope=scope).get("accept-encoding", ""):
                headers |= {"content-encoding": "br", "vary": "Accept-Encoding"}
                content = _compress(content)
            return await Response(content, headers=headers, media_type=KINDS[".js"])(scope, receive, send)
        file = files().get(name)
        if file is None:
            return await PlainTextResponse("There is no such file.", 404)(scope, receive, send)
        if name in _modules():
            dated = {"last-modified": formatdate(file.stat().st_mtime, usegmt=True)}  # lets a browser cache it
            text = modules.delivered_text(_modules()[name])
            return await Response(text, headers=dated, media_type=KINDS[file.suffix])(scope, receive, send)
        return await FileResponse(file, media_type=KINDS[file.suffix])(scope, receive, send)
