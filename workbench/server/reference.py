"""`/docs` of `workbench serve`: its routes on one plain page, which loads nothing from anywhere."""

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
    """The routes as HTML.

    Args:
        openapi: the description of an API, as `/openapi.json` has it.
    """
    title = escape(f"{openapi['info']['title']} {openapi['info']['version']}")
    rows = "".join(f"<dt><code>{escape(what)}</code></dt><dd>{escape(words)}</dd>" for what, words in routes(openapi))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1><dl>{rows}</dl>"
        '<p>For programs: <a href="openapi.json">openapi.json</a>. OpenAI\'s clients reach <code>/v1</code>.</p>'
        "</body></html>"
    )


def routes(openapi: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What can be asked, as `GET /health`, and what it answers."""
    for path, verbs in openapi["paths"].items():
        for verb, told in verbs.items():
            yield f"{verb.upper()} {path}", told.get("description") or told.get("summary", "")
