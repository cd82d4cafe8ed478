"""Traces with one field wrong, each read as a file is: refused in words, or nothing that reads a trace breaks on it.

Run as a program, where no type checker stands in front of the product's own checks; it prints what broke, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from workbench.core.errors import WorkbenchError
from workbench.trace import acceptance, export, metrics
from workbench.trace.entries import entry_of_trace
from workbench.trace.events import Trace
from workbench.trace.whatif import analyse
from workbench.views import recorded_runs, replay

REMOVED = object()
WRONG: dict[str, Any] = {
    "removed": REMOVED, "null": None, "text": "x", "half a character": "\ud800", "true": True, "negative": -1,
    "minus a half": -0.5, "huge": 10**400, "2**63": 2**63, "infinite": float("inf"), "list": [1], "nested": [[{}]],
    "object": {"a": 1}, "empty list": [], "empty object": {},
}  # fmt: skip
Path = tuple[str | int, ...]

# That a trace becomes frames, and these a trace, is in "kept".
CONSUMERS: dict[str, Callable[[Trace], Any]] = {
    "summary": lambda trace: json.dumps(metrics.summary(trace)),
    "grounded": lambda trace: (metrics.grounded(trace), metrics.word_kinds(trace, {})),
    "definitions": lambda trace: [d.to_wire() for d in acceptance.definitions(trace.rounds, trace.header.rules)],
    "kept": lambda trace: export.read(
        export.to_parquet(trace, {"entry": json.dumps(entry_of_trace(trace, "20261122-000000-00000000", (), ""))})
    ),
    "index": lambda trace: pl.DataFrame([entry_of_trace(trace, "x", (), "")]),
    "json lines": lambda trace: export.read(export.to_json_lines(trace).encode()),
    "listed": lambda trace: recorded_runs.describe("x", trace),
    "what if": lambda trace: analyse(trace),
    "report": lambda trace: replay.replay(trace),
}


ALIKE = 2
"""Entries of a mapping with names of its own, parameters say, that are changed: the others are like them."""


def paths(wire: Any, at: Path = ()) -> Iterator[Path]:
    """Every place of a value: all fields, and of every list its first item."""
    if at:
        yield at
    if isinstance(wire, dict):
        for name in list(wire)[: ALIKE if at and at[-1] in ("params", "rules") else None]:
            yield from paths(wire[name], (*at, name))
    elif isinstance(wire, list) and wire:
        yield from paths(wire[0], (*at, 0))


def mutants(wire: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The trace with one value wrong, each with its name."""
    for path in paths(wire):
        for kind, value in WRONG.items():
            yield f"{'.'.join(map(str, path))} {kind}", changed(wire, path, value)


def changed(wire: Any, path: Path, value: Any) -> Any:
    """A copy with another value, or none, at a place. What is not on the way there is shared."""
    copy, (step, *rest) = wire.copy(), path
    if rest:
        copy[step] = changed(wire[step], tuple(rest), value)
    elif value is REMOVED:
        del copy[step]
    else:
        copy[step] = value
    return copy


def read(wire: dict[str, Any]) -> Trace:
    """As the app reads what a browser sends; a file of JSON lines comes to the same."""
    return export.read_wire(json.loads(json.dumps(wire)))


def bases() -> list[dict[str, Any]]:
    """Two recordings, one with pictures, cut to what has every kind of field."""
    found = []
    for name in ("switch", "specvlm"):
        wire = recorded_runs.trace(name).to_wire()
        trees = [(any(r["top_q"]), len(r["nodes"]["tokens"])) for r in wire["rounds"]]
        drafted = trees.index(max(trees))
        kept = wire["rounds"][drafted : drafted + 1]
        for i, r in enumerate(kept):
            r["index"] = i
            r["vision"] = r["vision"] or wire["rounds"][0]["vision"]
            r["changes"] = r["changes"] or [{"name": "depth", "before": 1, "after": 2}]
            r["shared"] = r["shared"] or {"rows": 2, "draft_s": 0.1}
            r["signals"] = r["signals"] or {"confidence": 0.5}
        maps = {"attention": [[1, 2]], "gradient": [[3, 4]]}
        found.append(wire | {"rounds": kept, "attribution": {"target": maps, "drafter": None, "p_blind": [0.5]}})
        read(found[-1])
    return found


def what_breaks(use: Callable[[Trace], Any], trace: Trace) -> str:
    """What a reader raised that is no refusal in words; empty where it did well."""
    try:
        use(trace)
    except WorkbenchError:
        return ""
    except BaseException as error:  # polars panics, too
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def main(step: int = 1) -> None:
    """Try every `step`th mutant; print {"tried": n, "refused": n, "broke": {mutant: consumer and error}}."""
    seen, tried, refused, broke = 0, 0, 0, {}
    text, pictures = bases()
    of_pictures = ("header.pictures", "rounds.0.vision", "attribution")
    for wire, parts in ((text, ("",)), (pictures, of_pictures)):
        for name, mutant in mutants(wire):
            if not name.startswith(parts):
                continue
            seen += 1
            if seen % step:
                continue
            tried += 1
            try:
                trace = read(mutant)
            except WorkbenchError:
                refused += 1
                continue
            except BaseException as error:
                broke[name] = f"read: {type(error).__name__}: {error}"[:200]
                continue
            for consumer, use in CONSUMERS.items():
                if said := what_breaks(use, trace):
                    broke.setdefault(name, f"{consumer}: {said}")
    json.dump({"tried": tried, "refused": refused, "broke": broke}, sys.stdout)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
