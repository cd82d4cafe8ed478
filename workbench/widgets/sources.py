"""What all widgets share: the module's text and the style, which cross to the browser once a kernel."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Any

import ipywidgets
import traitlets

from workbench.trace.metrics import DEFINITIONS
from workbench.views import modules, replay, scenes

OWN = [modules.STYLESHEET.with_name(f"{name}.css") for name in ("verifiers", "widget")]
_WIDTH = re.compile(r"@media \((max|min)-width: (\d+)px\)")


class Sources(ipywidgets.Widget):
    """The text of a view's module, its style and what they need to know, for the browser alone.

    Attributes:
        version: changes whenever one of them does.
        module: one text, which draws widgets and plays exported files.
        style: all stylesheets as one.
        template: of the file that "HTML replay" makes.
        definitions: what every figure divides by what.
        lexicon: kinds of the words of the scenes' captions, or None.
    """

    version = traitlets.Unicode().tag(sync=True)
    module = traitlets.Unicode().tag(sync=True)
    style = traitlets.Unicode().tag(sync=True)
    template = traitlets.Unicode().tag(sync=True)
    definitions = traitlets.Dict().tag(sync=True)
    lexicon = traitlets.Dict(allow_none=True).tag(sync=True)


_shared: dict[str, Sources] = {}


def shared(view: str = modules.FIRST_MODULE) -> Sources:
    """The sources of a view ("live" or "vision"); made once a kernel."""
    held = _shared.get(view)
    if held is None or held.comm is None:  # `Widget.close_all` ends it, too
        held = _shared[view] = Sources(**texts(view))
    return held


@cache
def texts(view: str) -> dict[str, Any]:
    """What `Sources` of a view hold."""
    found, code = replay.sources(view), modules.inlined(f"notebook/{view}")
    style = by_width_of_output("\n".join([found["style"], *(sheet.read_text(encoding="utf-8") for sheet in OWN)]))
    digest = hashlib.sha256("\0".join([code, style]).encode()).hexdigest()[:12]
    return {
        "version": f"{view}-{digest}",
        "module": code,
        "style": style,
        "template": found["template"],
        "definitions": {name: list(pair) for name, pair in DEFINITIONS.items()},
        "lexicon": scenes.lexicon() if view == "vision" else None,
    }


def by_width_of_output(css: str) -> str:
    """Rules for narrow windows as rules for narrow outputs: a notebook's output is narrower than its window."""
    return _WIDTH.sub(r"@container wb (\1-width: \2px)", css)
