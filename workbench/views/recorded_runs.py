"""Recorded generations, one per method, which are displayed before a model is loaded, or without one.

`workbench record` creates them; they are small enough for the repository.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.trace.files import write_atomically
from workbench.trace.speedup import Baseline

SUFFIX = ".json.gz"
EXAMPLES = "examples"
"""Folder of recorded comparisons and sweeps, inside the folder of recordings."""
DIGITS = 7
"""Significant digits of the numbers in a recording: probabilities are computed in float32, which has about seven."""
PREVIEW_TOKENS = 32
"""Number of tokens of a recording that a list shows."""
THUMBNAIL_ROUNDS = 80
"""Largest number of rounds in the thumbnail of a run."""


def folder() -> Path:
    """Return the folder of recordings; `WORKBENCH_RECORDED` names another one."""
    return Path(os.environ.get("WORKBENCH_RECORDED", Path(__file__).resolve().parents[2] / "assets" / "recorded"))


def names() -> list[str]:
    """Return the names of the recordings; empty if the folder is missing."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder().glob(f"*{SUFFIX}"))


def trace(name: str) -> Trace:
    """Return a recorded trace. It is cached: callers must not change it.

    Raises:
        UnknownNameError: there is no such recording.
        WorkbenchError: the file is damaged, or a newer workbench wrote it.
    """
    if name not in names():  # a name from a browser is never used as a path
        raise UnknownNameError.of("recording", name, names())
    return read(folder() / f"{name}{SUFFIX}")


def load(name: str) -> dict[str, Any]:
    """Return a recorded trace as plain JSON: header, rounds, footer.

    If plain decoding was recorded with it, `plain` is the trace of the plain run, and `baseline` holds its rate and the
    ratios of all measured pairs.
    """
    return trace(name).to_wire() | _read(folder() / f"{name}{SUFFIX}")[1]


def index() -> list[dict[str, Any]]:
    """Return one entry per readable recording, with its figures, computed from the trace."""
    return [describe(name, trace(name)) for name in names()]


def baseline(name: str) -> Baseline | None:
    """Return the baseline that was recorded with a run; None if there is none."""
    return Baseline.from_wire(load(name).get("baseline"))


def describe(name: str, recording: Trace) -> dict[str, Any]:
    """Return a trace's settings and its figures (`workbench.trace.metrics.summary`), for a list of recordings.

    Key `lengths` has the numbers of accepted drafts and of emitted tokens of each of the first `THUMBNAIL_ROUNDS`
    rounds.
    """
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
        "lengths": [[len(r.path), len(r.emitted)] for r in rounds[:THUMBNAIL_ROUNDS]],
        "figures": metrics.summary(recording),
    }


def example(name: str) -> dict[str, Any]:
    """Return a recorded comparison or sweep ("compare", "sweep") as plain JSON, shown before the first measurement.

    Empty if there is none, or if a newer workbench wrote it.
    """
    path = folder() / EXAMPLES / f"{name}{SUFFIX}"
    try:
        return json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError):
        return {}


def write_example(name: str, example_data: Mapping[str, Any], place: Path | None = None) -> int:
    """Write an example; equal examples give equal bytes. Return the number of bytes."""
    path = (place or folder()) / EXAMPLES / f"{name}{SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return _write(path, example_data)


def read(path: Path) -> Trace:
    """Read a recording from its file.

    Raises:
        WorkbenchError: the file is damaged, or a newer workbench wrote it.
    """
    return _read(path)[0]


@lru_cache(maxsize=64)
def _read(path: Path) -> tuple[Trace, dict[str, Any]]:
    """Return the trace of a recording's file, and the other data in it as plain JSON; see `read` and `load`."""
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        return Trace.from_wire(content), {key: content[key] for key in ("plain", "baseline") if key in content}
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise WorkbenchError(f"The recording {path.name} cannot be read: {error}", "Record the run again.") from None


def write(path: Path, recording: Trace, plain: Trace | None = None, baseline: Baseline | None = None) -> int:
    """Write a recording; equal traces give equal bytes. Return the number of bytes.

    Args:
        path: file to write.
        recording: trace of the method's run.
        plain: trace of plain decoding of the same prompt, seed and sampling, recorded on the same machine. It is
            stored without the target's most likely tokens.
        baseline: rate of plain decoding and the ratios of all measured pairs.
    """
    content = recording.to_wire()
    if plain is not None:
        # the race and the speed-up need its tokens and times; the likeliest tokens would double its size
        content["plain"] = replace(plain, rounds=[replace(each, top_p=[]) for each in plain.rounds]).to_wire()
    if baseline is not None:
        content["baseline"] = baseline.to_wire()
    return _write(path, content)


def _write(path: Path, data: Mapping[str, Any]) -> int:
    text = json.dumps(_shorten(data), ensure_ascii=False, separators=(",", ":"))
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    write_atomically(path, packed)
    return len(packed)


def _shorten(value: Any) -> Any:
    """Return JSON data with all numbers rounded to `DIGITS` significant digits; more would double the files."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _shorten(each) for name, each in value.items()}
    return [_shorten(each) for each in value] if isinstance(value, list | tuple) else value
