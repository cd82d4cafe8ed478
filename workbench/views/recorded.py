"""Recorded generations, one for each method: what the pages show before, or without, any model.

They are made by `workbench record` and are small enough to live in the repository.
"""

from __future__ import annotations

import gzip
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.trace import metrics
from workbench.trace.events import Trace

SUFFIX = ".json.gz"
PREVIEW_TOKENS = 32
"""Tokens of a recording that a list shows."""


def folder() -> Path:
    """Where the recordings are; `WORKBENCH_RECORDED` names another folder."""
    return Path(os.environ.get("WORKBENCH_RECORDED", Path(__file__).resolve().parents[2] / "assets" / "recorded"))


def names() -> list[str]:
    """Names of the recordings; empty where the folder is missing."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder().glob(f"*{SUFFIX}"))


def trace(name: str) -> Trace:
    """A recorded trace. It is read once: callers must not change it.

    Raises:
        UnknownNameError: there is no such recording.
        WorkbenchError: its file is damaged, or written by a newer workbench.
    """
    if name not in names():  # a name from a browser never becomes a path
        raise UnknownNameError.of("recording", name, names())
    return read(folder() / f"{name}{SUFFIX}")


def load(name: str) -> dict[str, Any]:
    """The same as plain JSON: header, rounds, footer."""
    return trace(name).to_wire()


def index() -> list[dict[str, Any]]:
    """One entry for each recording that can be read, with its figures, all computed from the trace."""
    return [describe(name, trace(name)) for name in names()]


def describe(name: str, recording: Trace) -> dict[str, Any]:
    """What a list says of a trace: its settings and `workbench.trace.metrics.summary`."""
    header, rounds = recording.header, recording.rounds
    return {
        "name": name,
        "method": header.method,
        "methods": list(dict.fromkeys(r.method for r in rounds)),
        "target": header.target,
        "drafter": header.drafter,
        "params": header.params,
        "prompt": header.prompt,
        "seed": header.seed,
        "max_new_tokens": header.max_new_tokens,
        "promise": header.promise,
        "simulation": header.simulation,
        "pictures": [picture.url for picture in header.pictures],
        "device": header.device,
        "dtype": header.dtype,
        "hardware": header.hardware,
        "created": header.created,
        "preview": [[e.text, e.kind] for r in rounds for e in r.emitted][:PREVIEW_TOKENS],
        "figures": metrics.summary(recording),
    }


@lru_cache(maxsize=64)
def read(path: Path) -> Trace:
    """A recording by its file.

    Raises:
        WorkbenchError: the file is damaged, or written by a newer workbench.
    """
    try:
        return Trace.from_wire(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise WorkbenchError(f"The recording {path.name} cannot be read: {error}", "Make it anew.") from None


def write(path: Path, recording: Trace) -> int:
    """Write a recording; the same trace always gives the same bytes. Returns their number."""
    text = json.dumps(recording.to_wire(), ensure_ascii=False, separators=(",", ":"))
    data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    path.write_bytes(data)
    return len(data)
