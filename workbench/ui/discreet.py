"""Gradio's blocks, but what goes wrong in a call is neither told nor printed with what was asked; and idle, they rest.

Gradio writes the traceback of a call that fails to the terminal, and of wrong inputs their values: somebody's prompt.
Its queue looks for work a thousand times a second: 6 % of a core, taken from what is measured beside an idle page.
"""

from __future__ import annotations

import logging
from typing import Any

import gradio as gr

from workbench.service.logs import wordless

log = logging.getLogger("workbench.ui")
LOOK_S = 0.01
"""Seconds between two looks of an idle queue for work."""


class Discreet(gr.Blocks):
    """Blocks whose calls fail with a sentence; the log says what kind of error it was and where."""

    def queue(self, *given: Any, **named: Any) -> Discreet:
        super().queue(*given, **named)
        self._queue.sleep_when_free = LOOK_S
        return self

    async def process_api(self, *given: Any, **named: Any) -> dict[str, Any]:
        try:
            return await super().process_api(*given, **named)
        except gr.Error:
            raise
        except Exception as problem:
            log.error("a call failed: %s", wordless(problem))
            raise gr.Error(
                "The request was not understood. The API page (/?view=api) shows how to ask.", print_exception=False
            ) from None
