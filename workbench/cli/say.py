"""How much a command says besides its answer: -q, as usual, or -v."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from typing import Any

QUIET, USUAL, VERBOSE = -1, 0, 1
_level: ContextVar[int] = ContextVar("workbench_cli_level", default=USUAL)


def set_level(quiet: bool, verbose: bool) -> None:
    """As the options say; what is given neither before nor behind the command stays as it was."""
    if quiet or verbose:
        _level.set(QUIET if quiet else VERBOSE)


def reset() -> None:
    """As usual again: for a process that runs more than one command."""
    _level.set(USUAL)


def is_quiet() -> bool:
    """Whether -q was given."""
    return _level.get() == QUIET


def is_verbose() -> bool:
    """Whether -v was given."""
    return _level.get() == VERBOSE


def note(text: str) -> None:
    """A line on standard error about what was done, unless -q was given."""
    if not is_quiet():
        from workbench.engine.placed import with_paths

        print(f"note: {with_paths(text)}", file=sys.stderr)


def detail(text: str) -> None:
    """A line on standard error for -v alone."""
    if is_verbose():
        print(text, file=sys.stderr, flush=True)


def moves(stream: Any) -> bool:
    """Whether a line can be written over again there: a terminal that knows how to."""
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
