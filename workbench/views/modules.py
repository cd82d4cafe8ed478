"""Where the live drawings are: one ES module per view, hosted by URL (Gradio) or as text (a notebook)."""

from __future__ import annotations

import hashlib
from pathlib import Path

JS = Path(__file__).parent / "js"
STYLESHEET = Path(__file__).parent / "stage.css"

FIRST_MODULE = "live"
"""The module that puts the others together; it receives them and imports none."""


def module_names() -> list[str]:
    """Names of the view modules, tests left out."""
    return sorted(path.stem for path in JS.glob("*.js") if not path.name.endswith(".test.js"))


def module_path(name: str) -> Path:
    """The file of a module."""
    return JS / f"{name}.js"


def module_text(name: str) -> str:
    """The source of a module, for hosts that take text."""
    return module_path(name).read_text(encoding="utf-8")


def fingerprint() -> str:
    """Changes whenever a module, the stylesheet or the palette does: keeps a browser from mixing two versions."""
    digest = hashlib.sha256()
    for path in [*sorted(JS.glob("*.js")), STYLESHEET, Path(__file__).with_name("palette.json")]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
