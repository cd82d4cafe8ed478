"""Export a recorded run as one HTML file that opens from disk: modules, style and trace are inlined.

`workbench/views/js/shared/replay.js` creates the same file in the browser, from the same template.
"""

from __future__ import annotations

import json
import re
from typing import Any

from workbench.trace.events import Trace
from workbench.trace.metrics import DEFINITIONS
from workbench.views import modules, scenes
from workbench.views.palette import css_variables

_UNSAFE = re.compile("[<>&\u2028\u2029]")


def replay(trace: Trace) -> str:
    """Return the text of an HTML file that replays a run.

    The file loads no other files: its content security policy forbids that.
    """
    definitions = {name: list(pair) for name, pair in DEFINITIONS.items()}
    view = "vision" if trace.header.pictures else modules.FIRST_MODULE
    page_sources, recording = sources(view), {"trace": trace.to_wire(), "definitions": definitions}
    if trace.header.pictures:
        recording["lexicon"] = scenes.lexicon()
    parts = {
        "STYLE": page_sources["style"].replace("</", "<\\/"),
        "SOURCES": embed(page_sources),
        "RECORDING": embed(recording),
    }
    return re.sub("%(STYLE|SOURCES|RECORDING)%", lambda match: parts[match[1]], page_sources["template"])


def sources(view: str = modules.FIRST_MODULE) -> dict[str, Any]:
    """Return the parts of an HTML replay by name: `template`, `style`, and `module` (the JavaScript of the player)."""
    sheets = [path.read_text(encoding="utf-8") for path in modules.stylesheets(view)]
    return {
        "template": modules.REPLAY.read_text(encoding="utf-8"),
        "style": "\n".join([css_variables(), *sheets]),
        "module": modules.inline_modules(f"{view}/replay"),
    }


def embed(value: Any) -> str:
    """Return data as JSON that is safe in an HTML script element: no tag or comment can start or end in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
