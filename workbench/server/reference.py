"""Page `/docs` of `workbench serve`: the server's routes and request fields, as HTML without external resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from workbench.server import fields

STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:45rem;margin:2rem auto;padding:0 1rem}code{font-size:.95em;overflow-wrap:anywhere}"
    "dd{margin:0 0 1rem 0}a:focus-visible{outline:2px solid currentColor}"
)


def page(openapi: dict[str, Any]) -> str:
    """Return an HTML page that lists the server's routes and the fields of OpenAI's requests.

    Args:
        openapi: OpenAPI description of the server (content of `/openapi.json`).
    """
    title = escape(f"{openapi['info']['title']} {openapi['info']['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>{_list(routes(openapi))}"
        '<p>OpenAPI: <a href="openapi.json">openapi.json</a>. OpenAI clients: base path <code>/v1</code>.</p>'
        f"<h2>Fields of completions and chat completions</h2>{_list(fields.reference())}</body></html>"
    )


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt><code>{escape(a)}</code></dt><dd>{escape(b)}</dd>' for a, b in rows)}</dl>"


def routes(openapi: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each route of the server, such as `GET /health`, with its description."""
    for path, verbs in openapi["paths"].items():
        for verb, operation in verbs.items():
            yield f"{verb.upper()} {path}", operation.get("description") or operation.get("summary", "")
