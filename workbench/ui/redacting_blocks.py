"""Gradio blocks that neither display nor log the inputs of a failed call, and whose idle queue uses little CPU time.

Gradio prints the traceback of a failed call to the terminal, including the values of wrong inputs: a user's prompt.
Its queue polls for work a thousand times per second: 6 % of a core, which an idle page would take from measurements.
"""

from __future__ import annotations

import logging
from typing import Any

import gradio as gr

from workbench.service.logs import redact_error

log = logging.getLogger("workbench.ui")
LOOK_S = 0.01
"""Seconds between two polls of an idle queue."""
PROGRESS_S = 1.0
"""Seconds between two polls for the values of `gr.Progress`, which no call of the page uses."""


class RedactingBlocks(gr.Blocks):
    """Blocks whose failed calls return one sentence; the log has the type of the error and its place in the code."""

    def queue(self, *given: Any, **named: Any) -> RedactingBlocks:
        super().queue(*given, **named)
        self._queue.sleep_when_free = LOOK_S
        self._queue.progress_update_sleep_when_free = PROGRESS_S
        return self

    async def process_api(self, *given: Any, **named: Any) -> dict[str, Any]:
        try:
            return await super().process_api(*given, **named)
        except gr.Error:
            raise
        except Exception as problem:
            log.error("a call failed: %s", redact_error(problem))
            raise gr.Error(
                "The request is invalid. The API page (/?view=api) documents the calls.", print_exception=False
            ) from None
