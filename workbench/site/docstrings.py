"""Griffe extension that adapts the examples in this project's docstrings for the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""Pattern of an interpreter session at the left margin (outside a section), up to the next empty line."""


class Examples(griffe.Extension):
    """Rename sections `Example:` to `Examples:`, and put interpreter sessions in the text into code blocks.

    Griffe recognises only `Examples:`, and interpreter sessions only in that section. Elsewhere Markdown would render
    `>>>` as quotations, and nested lists `[[…], […]]` as a broken link.
    """

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = _SESSION.sub(r"```pycon\n\g<0>\n```", text)
