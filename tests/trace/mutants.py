"""Traces with one wrong field, read like a file: the trace must be refused with a reason, or no reader may fail on it.

This runs as a program, without the tests' type checker in front of the product's own checks, and prints the failures
as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from workbench.bench.roofline import TargetSize, target_passes
from workbench.core.errors import WorkbenchError
from workbench.trace import acceptance, export, metrics
from workbench.trace.acceptance_statistics import acceptance_statistics
from workbench.trace.entries import entry_of_trace
from workbench.trace.events import Trace
from workbench.trace.whatif import analyse
from workbench.views import recorded_runs, replay

REMOVED = object()
SIZE = TargetSize(weights=1000, item_bytes=2, layers=3, heads=4, kv_heads=2, head_dim=5)
WRONG: dict[str, Any] = {
    "removed": REMOVED, "null": None, "text": "x", "half a character": "\ud800", "true": True, "negative": -1,
    "minus a half": -0.5, "huge": 10**400, "2**63": 2**63, "infinite": float("inf"), "list": [1], "nested": [[{}]],
    "object": {"a": 1}, "empty list": [], "empty object": {},
}  # fmt: skip
Path = tuple[str | int, ...]

# Conversion to frames and back is part of "kept".
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
    "statistics": lambda trace: json.dumps(acceptance_statistics(trace).to_wire()),
    "passes": lambda trace: target_passes(trace, SIZE),
    "report": lambda trace: replay.replay(trace),
}


ALIKE = 2
"""Number of changed entries in a mapping with arbitrary names, such as parameters: all entries are alike."""


def paths(wire: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the path of every value: all fields, and the first item of every list."""
    if at:
        yield at
    if isinstance(wire, dict):
        for name in list(wire)[: ALIKE if at and at[-1] in ("params", "rules") else None]:
            yield from paths(wire[name], (*at, name))
    elif isinstance(wire, list) and wire:
        yield from paths(wire[0], (*at, 0))


def mutants(wire: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the trace with one wrong value each, and a name."""
    for path in paths(wire):
        for kind, value in WRONG.items():
            yield f"{'.'.join(map(str, path))} {kind}", changed(wire, path, value)


def changed(wire: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value, or none, at a path; parts that are not on the path are shared."""
    copy, (step, *rest) = wire.copy(), path
    if rest:
        copy[step] = changed(wire[step], tuple(rest), value)
    elif value is REMOVED:
        del copy[step]
    else:
        copy[step] = value
    return copy


def read(wire: dict[str, Any]) -> Trace:
    """Read a trace as the app reads it from a browser; a file of JSON lines is read the same way."""
    return export.read_wire(json.loads(json.dumps(wire)))


def bases() -> list[dict[str, Any]]:
    """Return two recordings, one with images, reduced to at least one field of every kind."""
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
    """Return the error of a reader unless it is a `WorkbenchError`; empty if there is none."""
    try:
        use(trace)
    except WorkbenchError:
        return ""
    except BaseException as error:  # panics of polars, too
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def main(step: int = 1) -> None:
    """Try every `step`th mutant; print {"tried": n, "refused": n, "broke": {mutant: reader and error}}."""
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
