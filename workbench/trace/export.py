"""Write traces as JSON Lines or Parquet files, and read such files. `views/js/shared/exports.js` writes other formats.

- JSON Lines: one event per line, with its type under `event`: header, rounds, footer, and the attribution (dependence
  of tokens on images) if it was computed.
- Parquet: one table with a row per round. Nodes, tree positions (`places`), tokens and phases are lists of structs;
  header and footer are in the file's metadata. This is one nested table instead of an archive of several files, because
  `polars.read_parquet(file)` and `pandas.read_parquet(file)` open it directly: `.explode("nodes").unnest("nodes")`.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from workbench.core.errors import WorkbenchError
from workbench.core.panics import convert_panics, suppress_panic_output
from workbench.trace import frames
from workbench.trace.events import SCHEMA_VERSION, NewerTraceError, Round, Trace
from workbench.trace.images import images_of, is_png_url
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED
from workbench.trace.tokens import BONUS, CORRECTED, PLAIN
from workbench.trace.type_checks import find_invalid_field, is_list, is_object

MAX_BYTES = 64 * 2**20
"""Maximum size of a trace file in bytes."""

INCOMPLETE = "The file ends before the trace's footer: the run is incomplete, and its last rounds may be missing."
"""Warning that is added to a trace if its file ends without a footer."""

_METADATA = "workbench.run"
_REMEDY = "Give a file that the workbench exported as JSON Lines or Parquet."


def to_json_lines(trace: Trace) -> str:
    """Convert a trace to text in the format JSON Lines, with one event (header, round or footer) per line."""
    events = [("header", trace.header), *(("round", r) for r in trace.rounds), ("footer", trace.footer)]
    wire = [{"event": kind, **event.to_wire()} for kind, event in events]
    if trace.attribution is not None:
        wire.append({"event": "attribution", **trace.attribution})
    lines = [json.dumps(event, ensure_ascii=False) for event in wire]
    return "".join(f"{line}\n" for line in lines)


def read_json_lines(text: str) -> Trace:
    """Parse the output of `to_json_lines` into a trace. Without a footer the trace gets the warning `INCOMPLETE`.

    Raises:
        WorkbenchError: the text is not an exported trace, is damaged, or was written by a newer workbench.
    """
    wire: dict[str, Any] = {"header": None, "rounds": [], "footer": None}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            kind = event.pop("event")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise WorkbenchError(f"Line {number} of the file is not an event of a trace.", _REMEDY) from None
        if kind == "round":
            wire["rounds"].append(event)
        elif kind in ("header", "footer", "attribution"):
            wire[kind] = event
        else:
            raise WorkbenchError(
                f"Line {number} of the trace file has the unknown event kind {str(kind)[:40]!r}.", _REMEDY
            )
    if wire["header"] is None:
        raise WorkbenchError("The trace file has no header line.", _REMEDY)
    if wire["footer"] is None:
        wire["footer"] = {"warnings": [INCOMPLETE]}
    return read_wire(wire)


def to_parquet(trace: Trace, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a trace as the bytes of a Parquet file, with `metadata` added to the file's metadata."""
    tables = frames.to_frames(trace)
    out = io.BytesIO()
    file_metadata = {**(metadata or {}), _METADATA: json.dumps(tables.run.row(0, named=True))}
    frames.nest(tables).write_parquet(out, metadata=file_metadata)
    return out.getvalue()


def read_parquet(data: bytes) -> Trace:
    """Parse the output of `to_parquet` into a trace.

    Raises:
        WorkbenchError: the bytes are not an exported trace, are damaged, or were written by a newer workbench.
    """
    try:
        with convert_panics(), suppress_panic_output():
            file_metadata = pl.read_parquet_metadata(io.BytesIO(data))
            nested = pl.read_parquet(io.BytesIO(data))
    except Exception as error:  # polars raises several exception types, and panics on some files
        raise WorkbenchError(f"This file cannot be read as Parquet: {type(error).__name__}.", _REMEDY) from None
    if _METADATA not in file_metadata:
        raise WorkbenchError("This Parquet file is not a trace of the workbench.", _REMEDY)
    try:
        run = json.loads(file_metadata[_METADATA])
        if run["schema"] > SCHEMA_VERSION:  # checked before the columns, which may differ
            raise WorkbenchError(
                f"This trace has schema version {run['schema']}; this version of the workbench reads schemas up "
                f"to {SCHEMA_VERSION}.",
                "Update the workbench to open this trace.",
            )
        trace = frames.from_frames(frames.flatten(pl.DataFrame([run], schema=frames.RUN), nested))
    except ValueError as error:
        raise WorkbenchError(str(error), _REMEDY) from None
    except (pl.exceptions.PolarsError, KeyError, TypeError) as error:
        raise WorkbenchError(f"The trace is damaged: {type(error).__name__}.", _REMEDY) from None
    return check_trace(trace)


def read(data: bytes) -> Trace:
    """Parse the bytes of a Parquet or JSON Lines file into a trace; the first bytes decide which format it is.

    Raises:
        WorkbenchError: the file is too large or cannot be read.
    """
    if len(data) > MAX_BYTES:
        raise WorkbenchError(f"The file has {len(data) / 2**20:.0f} MiB; the limit is {MAX_BYTES >> 20} MiB.", _REMEDY)
    if data.startswith(b"PAR1"):
        return read_parquet(data)
    try:
        return read_json_lines(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise WorkbenchError("The file is neither Parquet nor UTF-8 text.", _REMEDY) from None


def read_wire(wire: dict[str, Any]) -> Trace:
    """Parse untrusted JSON data into a trace, as `Trace.from_wire` does, but with readable errors.

    Raises:
        WorkbenchError: a field is missing, unknown or of the wrong type, or a newer workbench wrote the data.
    """
    try:
        trace = Trace.from_wire(wire)
    except NewerTraceError as error:
        raise WorkbenchError(str(error), "") from None
    except KeyError as error:
        raise WorkbenchError(f"The trace is damaged: {str(error.args[0])[:40]} is missing.", _REMEDY) from None
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise WorkbenchError(f"The trace is damaged: {_describe_error(error)}.", _REMEDY) from None
    return check_trace(trace)


_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.+)")


def _describe_error(error: Exception) -> str:
    """Return text that names the damaged field of a trace, from the error that Python raised for this field.

    Python's own message would name an internal function.
    """
    message = str(error)
    if match := _ARGUMENT.search(message):
        return f"there is no field {match[1]!r}"
    if match := _MISSING.search(message):
        return f"{match[1].replace(chr(39), '')} {'are' if ' and ' in match[1] else 'is'} missing"
    return "a field has the wrong type"


def check_trace(trace: Trace) -> Trace:
    """Check a trace for consistency and return it.

    Raises:
        WorkbenchError: header, footer, attribution or a round is damaged; the message says which, and the problem.
    """
    for part, event in (("header", trace.header), ("footer", trace.footer)):
        if name := find_invalid_field(event):
            raise WorkbenchError(f"The trace is damaged: the field {name} in its {part} is invalid.", _REMEDY)
    if not all(_is_picture(dataclasses.asdict(picture)) for picture in trace.header.pictures):
        raise WorkbenchError("The trace is damaged: an image in its header is invalid.", _REMEDY)
    if not _is_attribution(trace.attribution):
        raise WorkbenchError("The trace is damaged: its image attribution is invalid.", _REMEDY)
    for i, r in enumerate(trace.rounds):
        try:
            problem = f"the field {name} has the wrong type" if (name := find_invalid_field(r)) else _problem(r, i)
        except TypeError:
            problem = "a value has the wrong type"
        if problem:
            raise WorkbenchError(f"The trace is damaged in round {i + 1}: {problem}.", _REMEDY)
    return trace


def _problem(r: Round, i: int) -> str:
    nodes, n = r.nodes, len(r.nodes)
    columns = [getattr(nodes, name) for name in nodes.__dataclass_fields__ if name != "inputs"]
    if r.index != i:
        return f"its index is {r.index!r:.20}"
    if any(len(column) != n for column in [*columns, *nodes.inputs.values()]):
        return "the lists of node values differ in length"
    if any(not -1 <= parent < child for child, parent in enumerate(nodes.parents)):
        return "a draft node is listed before its parent"
    if set(nodes.status) - {ACCEPTED, REJECTED, DISCARDED}:
        return "a draft node has an unknown status"
    grown = r.grown
    if grown is not None and any(len(column) not in (0, n) for column in (grown.of, grown.before, grown.after)):
        return "the number of tree-builder values differs from the number of draft nodes"
    if grown is not None and any(not 0 <= i < len(grown.rules) for i in grown.of or [0]):
        return "a draft node names an unknown tree-builder rule"
    if any(not -1 <= probe.parent < n + j for j, probe in enumerate(r.probes)):
        return "a probe position is listed before its parent"
    if any(not 0 <= node < n for node in r.path):
        return "the accepted path names a node that does not exist"
    if any(e.kind not in (ACCEPTED, CORRECTED, BONUS, PLAIN) for e in r.emitted):
        return "an emitted token has an unknown kind"
    tops = [top for top in (*r.top_p, *r.top_q, *r.ranking) if top is not None]
    if any(not len(top.tokens) == len(top.text) == len(top.prob) for top in tops):
        return "a list of most likely tokens differs in length from their texts or probabilities"
    if not all(_is_picture(p) for p in images_of(r.vision)):
        return "an image of the round is invalid"
    return ""


def _is_attribution(value: Any) -> bool:
    """Return whether a value is a valid attribution of a trace: weights of vision tokens for each emitted token."""
    if value is None:
        return True
    if not is_object(value):
        return False
    blind, parts = value.get("p_blind"), [value.get(name) for name in ("target", "drafter")]
    rows = [row for part in parts if is_object(part) for maps in part.values() for row in _items(maps)]
    return (
        all(part is None or is_object(part) for part in parts)
        and all(is_list(row) and _are_numbers(row) for row in rows)
        and (blind is None or (is_list(blind) and _are_numbers(blind)))
    )


def _items(maps: Any) -> list[Any]:
    return maps if is_list(maps) else [maps]  # the caller rejects [maps], which is not a list of rows


def _are_numbers(values: list[Any]) -> bool:
    return all(type(x) in (int, float) and abs(x) < 2**63 for x in values)


def _is_picture(picture: Any) -> bool:
    """Return whether an image of a trace is valid, and its URL is a PNG data URL, so that nothing is fetched."""
    if not is_object(picture) or not is_png_url(picture.get("url")):
        return False
    numbers = [picture.get(name) for name in ("width", "height", "rows", "cols", "start", "end")]
    return all(type(n) is int and n >= 0 for n in numbers)
