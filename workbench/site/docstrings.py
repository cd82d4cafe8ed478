"""Griffe extension that adapts the examples in this project's docstrings for the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""Pattern of a Python interpreter session (`>>>`) in a docstring, outside of sections, up to an empty line."""


class Examples(griffe.Extension):
    """Rename docstring sections `Example:` to `Examples:`, and put interpreter sessions in the text into code blocks.

    Griffe recognises only `Examples:`, and interpreter sessions only in that section. Elsewhere Markdown would render
    `>>>` as a quotation, and a nested list `[[…], […]]` as a broken link.
    """

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = _SESSION.sub(r"```pycon\n\g<0>\n```", text)
