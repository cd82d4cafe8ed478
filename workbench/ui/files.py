"""The pages' own files, under names: `/workbench/js/live.js`. No address tells where on this machine they are."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, PlainTextResponse

from workbench.views import modules

PLACE = "/workbench/"
PLOTLY = "plotly.min.js"
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/plain"}
"""A browser runs no module that comes as anything else, and what a system takes a file for differs. The replay's
template is read by the page's export, and is no page of this server."""


@cache
def files() -> dict[str, Path]:
    """All of them by name: modules, stylesheets, a replay's template, and Plotly, loaded when a view plots."""
    found = {module(name): modules.module_path(name) for name in modules.module_names()}
    found |= {path.name: path for path in modules.all_stylesheets()}
    found[f"js/{modules.REPLAY.name}"] = modules.REPLAY
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    return found | {PLOTLY: Path(spec.origin).parent / "package_data" / PLOTLY}


def module(name: str) -> str:
    """The name of a module's file."""
    return f"js/{name}.js"


class Files:
    """ASGI middleware that serves them; a name that is not theirs is never looked up."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer with a file, or pass a request on."""
        inside = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or not inside.startswith(PLACE):
            return await self.app(scope, receive, send)
        file = files().get(inside.removeprefix(PLACE))
        if file is None:
            return await PlainTextResponse("There is no such file.", 404)(scope, receive, send)
        return await FileResponse(file, media_type=KINDS[file.suffix])(scope, receive, send)
