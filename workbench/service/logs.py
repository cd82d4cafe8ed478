"""Logs that machines can read: one JSON object a line. They hold no prompt, no generated text, no key of anybody."""

from __future__ import annotations

import hashlib
import logging
import sys

from pythonjsonlogger.json import JsonFormatter
from transformers.utils.logging import disable_progress_bar


def write_json_logs(level: str = "INFO") -> None:
    """Send the workbench's logs to stderr as JSON lines. For processes that serve others; libraries leave logs alone.

    Args:
        level: least level that is written.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields={"asctime": "time"})
    )
    logger = logging.getLogger("workbench")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    disable_progress_bar()  # bars of models being read would stand between the lines


def alias(key: str) -> str:
    """A short name for a run or a user in logs: the key itself would let a reader of logs into the run."""
    return hashlib.sha256(key.encode()).hexdigest()[:10]
