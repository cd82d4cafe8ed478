"""What griffe, the reference's reader of docstrings, has to be told about ours."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Griffe knows a section `Examples:` only; the docstrings here say `Example:` where there is one."""

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
