"""Gradio blocks that do not display or log the inputs of a failed call, and whose idle queue needs little CPU time.

Gradio prints the traceback of a failed call to the terminal, including wrong input values such as a user's prompt. Its
queue polls for work a thousand times per second, which takes 6 % of a CPU core from measurements even if the page is
idle.
"""

from __future__ import annotations

import logging
from typing import Any

import gradio as gr

from workbench.service.logs import redact_error

log = logging.getLogger("workbench.ui")
LOOK_S = 0.01
"""Seconds between two polls of Gradio's queue when it is idle."""
PROGRESS_S = 1.0
"""Seconds between two polls for the values of `gr.Progress`, which no call of the page uses."""


class RedactingBlocks(gr.Blocks):
    """`gr.Blocks` whose failed calls return one general sentence.

    The log has the type of the error and the line of code that raised it.
    """

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
