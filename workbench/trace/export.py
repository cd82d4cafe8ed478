"""A trace as a file: JSON Lines or Parquet, and back. The page makes other kinds, `views/js/shared/exports.js`.

- JSON Lines: one object a line, each with its kind under `event`: the header, the rounds, the footer, and the
  attribution where somebody asked for it.
- Parquet: one table with a row a round; nodes, places, tokens and phases are lists of structs in it, header and footer
  stand in the file's metadata. One nested table rather than several files in an archive, because it is what
  `polars.read_parquet(file)` and `pandas.read_parquet(file)` open as it is: `.explode("nodes").unnest("nodes")`.
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
from workbench.core.panics import no_panic, quiet
from workbench.trace import frames
from workbench.trace.events import SCHEMA_VERSION, NewerTraceError, Round, Trace
from workbench.trace.kinds import is_list, is_object, misfit
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED
from workbench.trace.pictures import is_png_url, pictures_of
from workbench.trace.tokens import BONUS, CORRECTED, PLAIN

MAX_BYTES = 64 * 2**20
"""Largest trace file that is read."""

INCOMPLETE = "The file ends before its footer: the run is incomplete, rounds are missing at its end."
"""Warning of a trace whose file was cut at the end of a line."""

_METADATA = "workbench.run"
_REMEDY = "Give a file that the workbench exported as JSON Lines or Parquet."


def json_lines(trace: Trace) -> str:
    """One object a line."""
    events = [("header", trace.header), *(("round", r) for r in trace.rounds), ("footer", trace.footer)]
    wire = [{"event": kind, **event.to_wire()} for kind, event in events]
    if trace.attribution is not None:
        wire.append({"event": "attribution", **trace.attribution})
    lines = [json.dumps(event, ensure_ascii=False) for event in wire]
    return "".join(f"{line}\n" for line in lines)


def read_json_lines(text: str) -> Trace:
    """The inverse of `json_lines`. A file that ends early, without a footer, gives what it holds, and says so.

    Raises:
        WorkbenchError: it is no such file, it is damaged, or a newer workbench wrote it.
    """
    wire: dict[str, Any] = {"header": None, "rounds": [], "footer": None}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            kind = event.pop("event")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise WorkbenchError(f"Line {number} is no event of a trace.", _REMEDY) from None
        if kind == "round":
            wire["rounds"].append(event)
        elif kind in ("header", "footer", "attribution"):
            wire[kind] = event
        else:
            raise WorkbenchError(f"Line {number} is an event of unknown kind {str(kind)[:40]!r}.", _REMEDY)
    if wire["header"] is None:
        raise WorkbenchError("The file has no header line.", _REMEDY)
    if wire["footer"] is None:
        wire["footer"] = {"warnings": [INCOMPLETE]}
    return read_wire(wire)


def parquet(trace: Trace, metadata: Mapping[str, str] | None = None) -> bytes:
    """A Parquet file, as bytes. `metadata`: what else its metadata shall say."""
    tables = frames.to_frames(trace)
    out = io.BytesIO()
    known = {**(metadata or {}), _METADATA: json.dumps(tables.run.row(0, named=True))}
    frames.nest(tables).write_parquet(out, metadata=known)
    return out.getvalue()


def read_parquet(data: bytes) -> Trace:
    """The inverse of `parquet`.

    Raises:
        WorkbenchError: it is no such file, it is damaged, or a newer workbench wrote it.
    """
    try:
        with no_panic(), quiet():
            known = pl.read_parquet_metadata(io.BytesIO(data))
            nested = pl.read_parquet(io.BytesIO(data))
    except Exception as error:  # polars raises several kinds, and panics on some files
        raise WorkbenchError(f"This is no Parquet file that can be read: {type(error).__name__}.", _REMEDY) from None
    if _METADATA not in known:
        raise WorkbenchError("This Parquet file is no trace of the workbench.", _REMEDY)
    try:
        run = json.loads(known[_METADATA])
        if run["schema"] > SCHEMA_VERSION:  # before its columns are looked for
            raise WorkbenchError(
                f"This trace has schema {run['schema']}; this workbench reads up to {SCHEMA_VERSION}.",
                "Update the workbench to open it.",
            )
        trace = frames.from_frames(frames.flatten(pl.DataFrame([run], schema=frames.RUN), nested))
    except ValueError as error:
        raise WorkbenchError(str(error), _REMEDY) from None
    except (pl.exceptions.PolarsError, KeyError, TypeError) as error:
        raise WorkbenchError(f"The trace is damaged: {type(error).__name__}.", _REMEDY) from None
    return checked(trace)


def read(data: bytes) -> Trace:
    """A trace from a file of either kind, told apart by its first bytes.

    Raises:
        WorkbenchError: it is too large, or cannot be read.
    """
    if len(data) > MAX_BYTES:
        raise WorkbenchError(f"The file has {len(data) / 2**20:.0f} MiB; at most {MAX_BYTES >> 20} are read.", _REMEDY)
    if data.startswith(b"PAR1"):
        return read_parquet(data)
    try:
        return read_json_lines(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise WorkbenchError("The file is neither Parquet nor UTF-8 text.", _REMEDY) from None


def read_wire(wire: dict[str, Any]) -> Trace:
    """`Trace.from_wire` for data from outside: what does not fit is said in words.

    Raises:
        WorkbenchError: a field is missing, unknown or of the wrong kind, or a newer workbench wrote it.
    """
    try:
        trace = Trace.from_wire(wire)
    except NewerTraceError as error:
        raise WorkbenchError(str(error), "") from None
    except KeyError as error:
        raise WorkbenchError(f"The trace is damaged: {str(error.args[0])[:40]} is missing.", _REMEDY) from None
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise WorkbenchError(f"The trace is damaged: {_words_of(error)}.", _REMEDY) from None
    return checked(trace)


_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.+)")


def _words_of(error: Exception) -> str:
    """Return what does not fit, in words: Python's own are about functions that nobody called."""
    said = str(error)
    if found := _ARGUMENT.search(said):
        return f"there is no field {found[1]!r}"
    if found := _MISSING.search(said):
        return f"{found[1].replace(chr(39), '')} {'are' if ' and ' in found[1] else 'is'} missing"
    return "a part of it is of another kind than it should be"


def checked(trace: Trace) -> Trace:
    """The trace itself, if its rounds hold together.

    Raises:
        WorkbenchError: naming the round and what is wrong with it.
    """
    for part, event in (("header", trace.header), ("footer", trace.footer)):
        if name := misfit(event):
            raise WorkbenchError(f"The trace is damaged: {name} of its {part} is none.", _REMEDY)
    if not all(_is_picture(dataclasses.asdict(picture)) for picture in trace.header.pictures):
        raise WorkbenchError("The trace is damaged: a picture of its header is none.", _REMEDY)
    if not _is_attribution(trace.attribution):
        raise WorkbenchError("The trace is damaged: its attribution is none.", _REMEDY)
    for i, r in enumerate(trace.rounds):
        try:
            wrong = f"{name} is of the wrong kind" if (name := misfit(r)) else _what_is_wrong(r, i)
        except TypeError:
            wrong = "a value is of the wrong kind"
        if wrong:
            raise WorkbenchError(f"The trace is damaged in round {i + 1}: {wrong}.", _REMEDY)
    return trace


def _what_is_wrong(r: Round, i: int) -> str:
    nodes, n = r.nodes, len(r.nodes)
    columns = [getattr(nodes, name) for name in nodes.__dataclass_fields__ if name != "inputs"]
    if r.index != i:
        return f"its index is {r.index!r:.20}"
    if any(len(column) != n for column in [*columns, *nodes.inputs.values()]):
        return "the columns of its nodes differ in length"
    if any(not -1 <= parent < child for child, parent in enumerate(nodes.parents)):
        return "a node comes before its parent"
    if set(nodes.status) - {ACCEPTED, REJECTED, DISCARDED}:
        return "a node has an unknown status"
    grown = r.grown
    if grown is not None and any(len(column) not in (0, n) for column in (grown.of, grown.before, grown.after)):
        return "what is said of its growth does not fit its nodes"
    if grown is not None and any(not 0 <= i < len(grown.rules) for i in grown.of or [0]):
        return "a node was put there by an unknown rule"
    if any(not -1 <= probe.parent < n + j for j, probe in enumerate(r.probes)):
        return "a probe comes before its parent"
    if any(not 0 <= node < n for node in r.path):
        return "its path leaves the tree"
    if any(e.kind not in (ACCEPTED, CORRECTED, BONUS, PLAIN) for e in r.emitted):
        return "a token is of an unknown kind"
    if any(not len(top.tokens) == len(top.text) == len(top.prob) for top in [*r.top_p, *r.top_q] if top is not None):
        return "likeliest tokens, their texts and probabilities differ in number"
    if not all(_is_picture(p) for p in pictures_of(r.vision)):
        return "what it sees cannot be read"
    return ""


def _is_attribution(found: Any) -> bool:
    """Whether it is what `Trace.attribution` says."""
    if found is None:
        return True
    if not is_object(found):
        return False
    blind, parts = found.get("p_blind"), [found.get(name) for name in ("target", "drafter")]
    rows = [row for part in parts if is_object(part) for maps in part.values() for row in _items(maps)]
    return (
        all(part is None or is_object(part) for part in parts)
        and all(is_list(row) and _are_numbers(row) for row in rows)
        and (blind is None or (is_list(blind) and _are_numbers(blind)))
    )


def _items(maps: Any) -> list[Any]:
    return maps if is_list(maps) else [maps]  # which then is no row


def _are_numbers(values: list[Any]) -> bool:
    return all(type(x) in (int, float) and abs(x) < 2**63 for x in values)


def _is_picture(picture: Any) -> bool:
    """Whether it can be drawn, and drawing it fetches nothing from anywhere: its address is its own PNG."""
    if not is_object(picture) or not is_png_url(picture.get("url")):
        return False
    numbers = [picture.get(name) for name in ("width", "height", "rows", "cols", "start", "end")]
    return all(type(n) is int and n >= 0 for n in numbers)
