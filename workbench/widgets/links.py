"""Make links that open a notebook's settings in the app."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlencode

from workbench.trace.events import Trace
from workbench.widgets.snapshot import escape

APP = "http://localhost:7860"
"""URL of the app, unless the variable `WORKBENCH_URL` is set."""
HTTP = ("http://", "https://")


class AppLink:
    """Link to the app in a notebook's output, with the attribute `url`."""

    def __init__(self, url: str, text: str) -> None:
        self.url, self.text = url, text

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.url)}" target="_blank" rel="noopener">{escape(self.text)}</a>'

    def __repr__(self) -> str:
        return f"{self.text}: {self.url}"


def app_link(
    trace: Trace | None = None,
    text: str = "Open this in the app",
    base: str | None = None,
    *,
    pin: dict[str, Any] | None = None,
    **settings: Any,
) -> AppLink:
    """Return a link that opens the app with the settings of a trace: prompt, models, method, parameters, seed.

    Args:
        trace: trace with the settings; None: only the settings given by name.
        text: text of the link.
        base: URL of the app; None: `WORKBENCH_URL`, else "http://localhost:7860".
        pin: element that the app selects: `round`, and `token` or `node`, with indices as in the trace.
        settings: settings that replace those of the trace, by name: `method`, `prompt`, `depth`, `temperature`, `view`,
            `tab`, …; `run=run.id` opens a run that is in progress in that app.

    Raises:
        ValueError: `base` is not an http address.
    """
    root = (base or os.environ.get("WORKBENCH_URL") or APP).rstrip("/")
    if not root.startswith(HTTP):
        raise ValueError(f"{root!r} is not the address of an app. Use an address like {APP!r}.")
    return AppLink(f"{root}/?{query(trace, pin, settings)}", text)


def query(trace: Trace | None, pin: dict[str, Any] | None, settings: dict[str, Any]) -> str:
    """Return the URL query with the settings of a trace, in the format that `views/js/live/link.js` reads.

    Args:
        trace: trace with the settings; None: no trace.
        pin: element that the app selects: `round`, and `token` or `node`, with indices as in the trace; None: none.
        settings: settings that replace those of the trace, by name.
    """
    fields: dict[str, Any] = {}
    if trace is not None:
        h = trace.header
        names = ("target", "drafter", "method", "prompt", "seed", "max_new_tokens")
        fields = ({"tab": "vision"} if h.pictures else {}) | {name: getattr(h, name) for name in names} | h.params
    fields |= settings
    if pin:
        fields |= {"round": pin["round"] + 1} | {name: pin.get(name) for name in ("token", "node")}
    return urlencode({name: _word(value) for name, value in fields.items() if value not in (None, "")})


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
