"""Page `/docs` of `workbench serve`: its routes, as plain HTML without external resources."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:45rem;margin:2rem auto;padding:0 1rem}code{font-size:.95em;overflow-wrap:anywhere}"
    "dd{margin:0 0 1rem 0}a:focus-visible{outline:2px solid currentColor}"
)


def page(openapi: dict[str, Any]) -> str:
    """Return an HTML page with the routes.

    Args:
        openapi: content of `/openapi.json`.
    """
    title = escape(f"{openapi['info']['title']} {openapi['info']['version']}")
    rows = "".join(f"<dt><code>{escape(route)}</code></dt><dd>{escape(doc)}</dd>" for route, doc in routes(openapi))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1><dl>{rows}</dl>"
        '<p>OpenAPI: <a href="openapi.json">openapi.json</a>. OpenAI clients: base path <code>/v1</code>.</p>'
        "</body></html>"
    )


def routes(openapi: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each route, as `GET /health`, with its description."""
    for path, verbs in openapi["paths"].items():
        for verb, operation in verbs.items():
            yield f"{verb.upper()} {path}", operation.get("description") or operation.get("summary", "")
