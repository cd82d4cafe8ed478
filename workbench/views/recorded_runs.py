"""Recorded generations, one per method, which the pages show while no model is loaded.

`workbench record` creates the recordings, which are part of the repository.
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
"""Significant digits of the numbers in a recorded run: probabilities are float32, which has about seven digits."""
PREVIEW_TOKENS = 32
"""Number of tokens of a recorded run that a list of recordings shows."""
THUMBNAIL_ROUNDS = 80
"""Maximum number of rounds in the thumbnail of a recorded run."""


def folder() -> Path:
    """Return the folder of the recorded runs; the variable `WORKBENCH_RECORDED` can name another folder."""
    return Path(os.environ.get("WORKBENCH_RECORDED", Path(__file__).resolve().parents[2] / "assets" / "recorded"))


def names() -> list[str]:
    """Return the names of the recorded runs; an empty list if their folder is missing."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder().glob(f"*{SUFFIX}"))


def trace(name: str) -> Trace:
    """Return the trace of a recorded run by name. The trace is cached, so callers must not change it.

    Raises:
        UnknownNameError: there is no recording with this name.
        WorkbenchError: the file is damaged, or a newer workbench wrote it.
    """
    if name not in names():  # a name from a browser is never used as a path
        raise UnknownNameError.of("recording", name, names())
    return read(folder() / f"{name}{SUFFIX}")


def load(name: str) -> dict[str, Any]:
    """Return the trace of a recorded run as JSON data: header, rounds, footer.

    If plain decoding was recorded with the run, `plain` is the trace of plain decoding, and `baseline` has its tokens
    per second and the speed-ups of all measured pairs.
    """
    return trace(name).to_wire() | _read(folder() / f"{name}{SUFFIX}")[1]


def index() -> list[dict[str, Any]]:
    """Return a list of all readable recorded runs with their settings, and measurements from their traces."""
    return [describe(name, trace(name)) for name in names()]


def baseline(name: str) -> Baseline | None:
    """Return the speed of plain decoding that was recorded with a run; None if it was not recorded."""
    return Baseline.from_wire(load(name).get("baseline"))


def describe(name: str, recording: Trace) -> dict[str, Any]:
    """Return a trace's settings and measurements (`workbench.trace.metrics.summary`), for a list of recordings.

    Key `lengths` has the numbers of accepted draft tokens and of emitted tokens of each of the first `THUMBNAIL_ROUNDS`
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
    """Return the recorded comparison ("compare") or sweep ("sweep"), which a page shows before the first measurement.

    The dict is empty if there is no recording, or if a newer workbench wrote it.
    """
    path = folder() / EXAMPLES / f"{name}{SUFFIX}"
    try:
        return json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError):
        return {}


def write_example(name: str, example_data: Mapping[str, Any], place: Path | None = None) -> int:
    """Write a recorded comparison or sweep to its file, and return the file's size in bytes.

    Equal recordings give equal bytes.
    """
    path = (place or folder()) / EXAMPLES / f"{name}{SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return _write(path, example_data)


def read(path: Path) -> Trace:
    """Read the trace of a recorded run from its file.

    Raises:
        WorkbenchError: the file is damaged, or a newer workbench wrote it.
    """
    return _read(path)[0]


@lru_cache(maxsize=64)
def _read(path: Path) -> tuple[Trace, dict[str, Any]]:
    """Return the trace in a recording's file, and the file's other data (such as `baseline`) as JSON data."""
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        return Trace.from_wire(content), {key: content[key] for key in ("plain", "baseline") if key in content}
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise WorkbenchError(f"The recording {path.name} cannot be read: {error}", "Record the run again.") from None


def write(path: Path, recording: Trace, plain: Trace | None = None, baseline: Baseline | None = None) -> int:
    """Write a recorded run to a file, and return the file's size in bytes. Equal traces give equal bytes.

    Args:
        path: file to write.
        recording: trace of the method's run.
        plain: trace of plain decoding with the same prompt, seed and sampling, recorded on the same machine. It is
            stored without the target's most likely tokens.
        baseline: tokens per second of plain decoding, and the speed-ups of all measured pairs.
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
    """Return JSON data with all numbers rounded to `DIGITS` significant digits, which halves the size of files."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _shorten(each) for name, each in value.items()}
    return [_shorten(each) for each in value] if isinstance(value, list | tuple) else value
