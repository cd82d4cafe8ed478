"""What griffe, the reference's reader of docstrings, has to be told about ours."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""A session of the interpreter that begins at the margin, so in no section, up to the next empty line."""


class Examples(griffe.Extension):
    """Griffe knows a section `Examples:` only, and sessions of the interpreter there only.

    The docstrings here say `Example:` where there is one, and let short sessions stand in their text. As Markdown these
    would be quotations, and two lists, one below the other, a link that leads nowhere.
    """

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = _SESSION.sub(r"```pycon\n\g<0>\n```", text)
