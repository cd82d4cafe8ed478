"""Write and read the index entry of a saved run: a summary in the metadata of the run's file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from workbench.core.errors import WorkbenchError
from workbench.core.panics import convert_panics
from workbench.trace import export
from workbench.trace.events import Trace
from workbench.trace.frames import Schema
from workbench.trace.metrics import summary
from workbench.trace.type_checks import is_object

VERSION = 1
"""Version of the index entries of saved runs. If a run's file has no entry of this version (an exported trace
has none), the entry is computed from the trace when the run is listed. An entry of a newer version is refused."""

FIGURES = (
    "tokens", "rounds", "drafted", "tested", "accepted", "tau", "acceptance_rate", "draft_utilisation", "seconds",
    "prefill_seconds", "tokens_per_second", "overhead_share",
)  # fmt: skip
"""Names of the metrics (`workbench.trace.metrics.summary`) that have a column in the index of saved runs."""

_COUNTS = {"tokens", "rounds", "drafted", "tested", "accepted"}
_WHEN = pl.Datetime("ms", "UTC")
INDEX: Schema = {
    "id": pl.String, "created": _WHEN, "kept": _WHEN, "method": pl.String, "target": pl.String, "drafter": pl.String,
    "dtype": pl.String, "device": pl.String, "seed": pl.String, "temperature": pl.Float64, "params": pl.String,
    "promise": pl.String, "prompt": pl.String, "text": pl.String, "reason": pl.String, "tags": pl.List(pl.String),
    "note": pl.String, "prompt_tokens": pl.Int64, "max_new_tokens": pl.Int64, "pictures": pl.Int64,
    **{name: pl.Int64 if name in _COUNTS else pl.Float64 for name in FIGURES},
    "schema": pl.Int64, "file_bytes": pl.Int64, "file_ns": pl.Int64,
}  # fmt: skip
"""Columns of the index of saved runs, which has one row per run. `params` is JSON, and `seed` is a string of decimal
digits. `created` is the time when the run started, `kept` the time when it was saved."""

ENTRY = "workbench.entry"
"""Key of the index entry in the metadata of a saved run's Parquet file."""


def tags_of(tags: Iterable[str]) -> list[str]:
    """Check the tags that a user gave to a run; return them sorted, without surrounding spaces and duplicates.

    Raises:
        WorkbenchError: `tags` is a string, or a tag is empty, too long, not printable or contains a comma.
    """
    if isinstance(tags, str):
        raise WorkbenchError("Tags must be a list of strings.", f"Write [{tags!r}].")
    cleaned = [tag.strip() for tag in tags]
    for tag in cleaned:
        if not tag or "," in tag or not tag.isprintable() or len(tag) > 60:
            raise WorkbenchError(
                f"{tag[:60]!r} is not a valid tag.", "Use 1 to 60 printable characters without commas."
            )
    return sorted(set(cleaned))


def entry_of_trace(trace: Trace, run: str, tags: Iterable[str], note: str) -> dict[str, Any]:
    """Compute the index entry of a run from its trace, as JSON data.

    Args:
        trace: trace of the run.
        run: id of the run.
        tags: tags of the run.
        note: the user's note.
    """
    header, now = trace.header, datetime.datetime.now(datetime.timezone.utc)
    figures = summary(trace)
    temperature = header.params.get("temperature")
    return {
        "version": VERSION,
        "id": run,
        "created": (_created(header.created) or now).isoformat(),
        "kept": now.isoformat(),
        **{name: getattr(header, name) for name in ("method", "target", "drafter", "dtype", "device", "promise")},
        **{name: getattr(header, name) for name in ("prompt", "max_new_tokens", "schema")},
        "seed": str(header.seed),
        "temperature": float(temperature) if isinstance(temperature, (int, float)) else None,
        "params": json.dumps(header.params),
        "text": trace.text,
        "reason": trace.footer.reason,
        "tags": tags_of(tags),
        "note": note,
        "prompt_tokens": len(header.prompt_tokens),
        "pictures": len(header.pictures),
        **{name: figures[name] for name in FIGURES},
    }


def entry_of(file: Path) -> dict[str, Any] | None:
    """Return the index entry in the metadata of a run's Parquet file; None if the file has none of this version.

    Raises:
        WorkbenchError: the file is not a Parquet file, or a newer workbench wrote its entry.
    """
    if file.suffix != ".parquet":
        return None
    try:
        with convert_panics():
            entry: Any = json.loads(pl.read_parquet_metadata(file).get(ENTRY, "{}"))
    except FileNotFoundError:
        raise
    except Exception as error:  # polars raises several exception types, and panics on some files
        raise WorkbenchError(f"The file of this run cannot be read as Parquet: {type(error).__name__}.") from None
    version = entry.get("version", 0) if is_object(entry) else None
    if type(version) is not int:
        raise WorkbenchError("The run's summary in this file (its index entry) is damaged.")
    if version > VERSION:
        raise WorkbenchError(
            "A newer version of the workbench saved this run.", "Update the workbench to read this run."
        )
    return entry if version == VERSION else None


def read_entry(path: Path) -> dict[str, Any]:
    """Return the index entry of a saved run. If its file has no entry of this version, compute it from the trace."""
    stored = entry_of(path)
    if stored is not None:
        return stored
    entry = entry_of_trace(export.read_parquet(path.read_bytes()), path.stem, (), "")
    return entry | {"kept": datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc).isoformat()}


def _created(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
