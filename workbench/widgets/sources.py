"""Send the JavaScript code and stylesheets of the widgets to the browser, once per notebook kernel."""

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
    """Invisible widget that holds a view's code, style and data in the browser, for all widgets with that view.

    Attributes:
        version: hash of the JavaScript code and the style.
        module: JavaScript code that draws widgets and plays exported files, as one text.
        style: text of all stylesheets.
        template: template of the HTML file that the button "HTML replay" creates.
        definitions: definition of each measured quantity, such as the acceptance rate, in words and as a formula.
        lexicon: categories of the words in captions of the bundled images, or None.
    """

    version = traitlets.Unicode().tag(sync=True)
    module = traitlets.Unicode().tag(sync=True)
    style = traitlets.Unicode().tag(sync=True)
    template = traitlets.Unicode().tag(sync=True)
    definitions = traitlets.Dict().tag(sync=True)
    lexicon = traitlets.Dict(allow_none=True).tag(sync=True)


_shared: dict[str, Sources] = {}


def get_sources(view: str = modules.FIRST_MODULE) -> Sources:
    """Return the `Sources` (code, style and data) of a view ("live" or "vision"), created once per kernel."""
    cached = _shared.get(view)
    if cached is None or cached.comm is None:  # `Widget.close_all` closes it, too
        cached = _shared[view] = Sources(**texts(view))
    return cached


@cache
def texts(view: str) -> dict[str, Any]:
    """Return the code, style and data of a view as values for the attributes of `Sources`."""
    view_sources, code = replay.sources(view), modules.inline_modules(f"notebook/{view}")
    style = by_width_of_output(
        "\n".join([view_sources["style"], *(sheet.read_text(encoding="utf-8") for sheet in OWN)])
    )
    digest = hashlib.sha256("\0".join([code, style]).encode()).hexdigest()[:12]
    return {
        "version": f"{view}-{digest}",
        "module": code,
        "style": style,
        "template": view_sources["template"],
        "definitions": {name: list(pair) for name, pair in DEFINITIONS.items()},
        "lexicon": scenes.lexicon() if view == "vision" else None,
    }


def by_width_of_output(css: str) -> str:
    """Convert CSS rules for narrow windows to rules for narrow notebook outputs.

    An output is narrower than its window.
    """
    return _WIDTH.sub(r"@container wb (\1-width: \2px)", css)
