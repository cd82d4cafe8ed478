"""Variables that the common style sheet defines itself, besides the palette's colours: fonts and text sizes."""

from __future__ import annotations

import re

from workbench.views.modules import STYLESHEET

FONTS = set(re.findall(r"(--wb-(?:ui|mono|text)[a-z-]*):", STYLESHEET.read_text(encoding="utf-8")))
