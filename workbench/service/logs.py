"""Logs of processes that serve others. They hold no prompt, no generated text, no key of anybody, no folder of theirs.

Of an error that nobody foresaw they say its kind and where it was raised. Its words are left out: a library's may quote
what it was given, and that is what somebody asked.
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


class Discreet(logging.Formatter):
    """Formats an error as its kind and places."""

    def formatException(self, ei: Any) -> str:  # the standard library's name
        return wordless(ei[1])


class DiscreetJson(Discreet, JsonFormatter):
    """The same as a JSON object a line."""


class Wordless(logging.Filter):
    """The same for loggers of libraries, which have handlers of their own: the error becomes part of the line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            record.msg, record.args = f"{record.getMessage().strip()}: {wordless(record.exc_info[1])}", ()
            record.exc_info = record.exc_text = None
        return True


WORDLESS = Wordless()
LIBRARIES = ("uvicorn.error", "asyncio")
"""Loggers that write tracebacks of what broke off an answer, or was left behind by one."""


def wordless(problem: BaseException) -> str:
    """An error as its kind and where it was raised."""
    return f"{type(problem).__name__} at {places(problem)}"


def places(problem: BaseException, most: int = 8) -> str:
    """Where an error was raised, innermost first: `scheduler.py:120 in step, backend.py:300 in _work`; no folders."""
    frames = traceback.extract_tb(problem.__traceback__)
    return ", ".join(f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in frames[: -most - 1 : -1])


def write_json_logs(level: str = "INFO") -> None:
    """Send the workbench's logs to stderr as JSON lines. For processes that serve others; libraries leave logs alone.

    Args:
        level: least level that is written.
    """
    names = "%(asctime)s %(levelname)s %(name)s %(message)s"
    _write(DiscreetJson(names, rename_fields={"asctime": "time"}), level)


def write_plain_logs(level: str = "WARNING") -> None:
    """The same as lines for people."""
    _write(Discreet("%(levelname)s %(name)s: %(message)s"), level)


def _write(formatter: logging.Formatter, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    for name in LIBRARIES:
        logging.getLogger(name).addFilter(WORDLESS)
    logger = logging.getLogger("workbench")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    disable_progress_bar()  # bars of models being read would stand between the lines


def alias(key: str) -> str:
    """A short name for a run or a user in logs: the key itself would let a reader of logs into the run."""
    return hashlib.sha256(key.encode()).hexdigest()[:10]
