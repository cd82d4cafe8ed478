"""Where the live drawings are: one ES module per view, hosted by URL (Gradio) or as text (a notebook)."""

from __future__ import annotations

import hashlib
from pathlib import Path

JS = Path(__file__).parent / "js"
STYLESHEET = Path(__file__).parent / "stage.css"
PAGES_STYLESHEET = Path(__file__).parent / "pages.css"
REPLAY = JS / "replay.html"
"""What an HTML replay is put into, on the page and in Python."""

FIRST_MODULE = "live"
"""The module that puts the others together; it receives them and imports none."""
OTHER_VIEWS = ("gallery", "learn", "tworuns", "methodcards", "compare", "vision", "sweep", "widget")
"""Views with modules of their own: those whose name begins with the view's. The other views do not load them."""


def module_names(view: str | None = None) -> list[str]:
    """Names of the modules of a view, tests left out; of all views without one."""
    names = sorted(path.stem for path in JS.glob("*.js") if not path.name.endswith(".test.js"))
    return names if view is None else [name for name in names if _owner(name) in (None, view)]


def _owner(name: str) -> str | None:
    return next((view for view in OTHER_VIEWS if name.startswith(view)), None)


def module_path(name: str) -> Path:
    """The file of a module."""
    return JS / f"{name}.js"


def module_text(name: str) -> str:
    """The source of a module, for hosts that take text."""
    return module_path(name).read_text(encoding="utf-8")


def stylesheets(view: str = FIRST_MODULE) -> list[Path]:
    """The stylesheets of a view, in the order in which they apply."""
    names = ["measuring", view] if view in ("compare", "sweep") else [view]
    own = [STYLESHEET.with_name(f"{name}.css") for name in names]
    return [STYLESHEET, PAGES_STYLESHEET, *(path for path in own if path.is_file())]


def all_stylesheets() -> list[Path]:
    """The stylesheets of all views."""
    return sorted(STYLESHEET.parent.glob("*.css"))


def fingerprint() -> str:
    """Changes whenever a module, a stylesheet or the palette does: keeps a browser from mixing two versions."""
    digest = hashlib.sha256()
    for path in [*sorted(JS.glob("*.js")), *all_stylesheets(), STYLESHEET.with_name("palette.json")]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
