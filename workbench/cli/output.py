"""Print notes and details on standard error, according to -q and -v."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from typing import Any

QUIET, USUAL, VERBOSE = -1, 0, 1
_level: ContextVar[int] = ContextVar("workbench_cli_level", default=USUAL)


def set_level(quiet: bool, verbose: bool) -> None:
    """Set the level of output (verbosity) from the options -q and -v; without them, keep the level."""
    if quiet or verbose:
        _level.set(QUIET if quiet else VERBOSE)


def reset() -> None:
    """Restore the default level of output (verbosity), in a process that runs more than one command."""
    _level.set(USUAL)


def is_quiet() -> bool:
    """Return whether the option -q (quiet) was given."""
    return _level.get() == QUIET


def is_verbose() -> bool:
    """Return whether the option -v (verbose) was given."""
    return _level.get() == VERBOSE


def note(text: str) -> None:
    """Print a note on standard error, unless the option -q was given."""
    if not is_quiet():
        from workbench.models.local_models import with_paths

        print(f"note: {with_paths(text)}", file=sys.stderr)


def detail(text: str) -> None:
    """Print a line on standard error if the option -v was given."""
    if is_verbose():
        print(text, file=sys.stderr, flush=True)


def can_overwrite(stream: Any) -> bool:
    """Return whether a line on a stream can be overwritten: only on a terminal, and not if TERM is "dumb"."""
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
