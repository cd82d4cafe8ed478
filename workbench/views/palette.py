"""Colour palette of the views, as CSS variables for the light and the dark theme.

It has colours for token statuses, surfaces, phases of a round, and methods.

The status colours were found by a search over OKLCH for the largest worst-case CIEDE2000 difference under normal
vision and simulated protanopia, deuteranopia and tritanopia; `tests/views/test_palette.py` checks them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

THEMES = ("light", "dark")


@cache
def palette() -> dict[str, Any]:
    """Return the colour palette from its file, with keys `statuses`, `surfaces`, `phases` and `methods`."""
    return json.loads(Path(__file__).with_name("palette.json").read_text(encoding="utf-8"))


def variables(theme: str) -> dict[str, str]:
    """Return the colours of one theme by CSS variable: `--wb-accepted`, `--wb-accepted-tint`, `--wb-bg`, …."""
    colours = palette()
    out = {f"--wb-{name}": value for name, value in colours["surfaces"][theme].items()}
    for name, status in colours["statuses"].items():
        out[f"--wb-{name}"] = status[theme]["stroke"]
        out[f"--wb-{name}-tint"] = status[theme]["tint"]
    out |= {f"--wb-{name}": value[theme] for name, value in colours["phases"].items()}
    out |= {f"--wb-method-{slot}": value[theme] for slot, value in colours["methods"].items()}
    return out


def css_variables(root: str = ".wb", dark: str = ".dark .wb") -> str:
    """Return the colours of the light and the dark theme as CSS rules; `dark` is the CSS selector of the dark theme."""

    def rule(selector: str, theme: str) -> str:
        lines = "".join(f"{name}:{value};" for name, value in variables(theme).items())
        return f"{selector}{{{lines}color-scheme:{theme}}}"

    return rule(root, "light") + "\n" + rule(dark, "dark")
