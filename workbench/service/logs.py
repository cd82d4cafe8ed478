"""Write logs of server processes that contain no prompts, generated texts, keys or paths of users.

An unexpected error is logged with its type and the lines of code where it was raised, but without its message, because
messages of libraries may quote a user's text.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

from pythonjsonlogger.json import JsonFormatter
from transformers.utils.logging import disable_progress_bar


class RedactingFormatter(logging.Formatter):
    """Log formatter that writes an error as its type and the lines of code where it was raised."""

    def formatException(self, ei: Any) -> str:  # the name is that of the standard library
        return redact_error(ei[1])


class RedactingJsonFormatter(RedactingFormatter, JsonFormatter):
    """Log formatter that writes one JSON object per line, with errors as `RedactingFormatter` writes them."""


class RedactingFilter(logging.Filter):
    """Log filter that removes error messages, for loggers of libraries that have their own handlers.

    Each log record then ends with the error's type and the lines of code where the error was raised.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            record.msg, record.args = f"{record.getMessage().strip()}: {redact_error(record.exc_info[1])}", ()
            record.exc_info = record.exc_text = None
        return True


REDACTING_FILTER = RedactingFilter()
LIBRARIES = ("uvicorn.error", "asyncio")
"""Names of loggers of libraries that write tracebacks when a response is aborted or a task is not finished."""


def redact_error(problem: BaseException) -> str:
    """Return the type of an error and the lines of code where it was raised, as text without the error's message."""
    return f"{type(problem).__name__} at {format_frames(problem)}"


def format_frames(problem: BaseException, most: int = 8) -> str:
    """Return the call stack of an error, innermost call first: `scheduler.py:120 in step, backend.py:300 in _work`."""
    frames = traceback.extract_tb(problem.__traceback__)
    return ", ".join(f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in frames[: -most - 1 : -1])


def write_json_logs(level: str = "INFO") -> None:
    """Send the workbench's logs to stderr as JSON Lines. Only servers call this: a library must not configure logs.

    Args:
        level: lowest level to write.
    """
    names = "%(asctime)s %(levelname)s %(name)s %(message)s"
    _write(RedactingJsonFormatter(names, rename_fields={"asctime": "time"}), level)


def write_plain_logs(level: str = "WARNING") -> None:
    """Send the workbench's logs to stderr as plain lines.

    Args:
        level: lowest level to write.
    """
    _write(RedactingFormatter("%(levelname)s %(name)s: %(message)s"), level)


def _write(formatter: logging.Formatter, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    for name in LIBRARIES:
        logging.getLogger(name).addFilter(REDACTING_FILTER)
    logger = logging.getLogger("workbench")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    disable_progress_bar()  # progress bars would mix with the log


def alias(key: str) -> str:
    """Return a short hash of the key of a run or a user for the logs. The key itself would give access to the run."""
    return hashlib.sha256(key.encode()).hexdigest()[:10]
