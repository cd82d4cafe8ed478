"""`workbench whatif`: why a recorded run is as fast as it is, and what other drafts would have given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from workbench.cli.options import Debug, Json
from workbench.cli.stream import harmless
from workbench.cli.traces import read_trace
from workbench.core.errors import UnknownNameError

if TYPE_CHECKING:
    from workbench.trace.events import Trace


def whatif(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [FILE2 …]",
            help="A trace (JSON Lines or Parquet) or the name of a bundled recording. Further ones: plain decoding of "
            "the same prompt to compare with, and runs of other drafters to combine with.",
        ),
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say why a recorded run is as fast as it is, and what other drafts would have given. No model is loaded.

    Example: workbench whatif draft-tree autoregressive medusa
    """
    from workbench.bench import whatif_errors
    from workbench.trace import whatif as analysis

    trace, *others = [read(name) for name in files]
    found = analysis.analyse(trace, others, errors=whatif_errors.errors())
    if as_json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        _print(found)


def read(name: str) -> Trace:
    """A trace by its file, or by the name of a bundled recording.

    Raises:
        UnknownNameError: neither.
        WorkbenchError: it cannot be read.
    """
    from workbench.views import recorded

    path = Path(name)
    if not path.exists():
        if name in recorded.names():
            return recorded.trace(name)
        raise UnknownNameError(
            f"There is no file {name}.", f"Give a trace, or one of the recordings: {', '.join(recorded.names())}."
        )
    if name.endswith(recorded.SUFFIX):
        return recorded.read(path)
    return read_trace(path)


def _print(found: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for line in found["words"]:
        console.print(f"• {line}", markup=False)
    lengths, theory = found["lengths"], found["theory"]
    if lengths:
        fixed = [*lengths["fixed"], lengths["oracle"], lengths["recorded"]]
        rows = [(a["name"], _two(a["tau"]), f"{a['tokens_per_second']:.0f}", _two(a["relative"])) for a in fixed]
        _table(
            console, "Other draft lengths, by the run's own times", ("draft", "τ", "tokens/s", "× as recorded"), rows
        )
        _error(console, found, "τ", "lengths")
        _error(console, found, "× as recorded", "speeds")
        _error(console, found, "no draft", "plain")
    if found["rescues"]:
        rows = [
            (e["depth"], e["tested"], *(e["ranks"].get(r, 0) for r in "123"), e["beyond"], e["unknown"])
            for e in found["rescues"]
        ]
        head = ("depth", "tested", "rank 1", "rank 2", "rank 3", "beyond", "unknown")
        _table(console, "Where the target's token stood among the drafter's", head, rows)
        taus = ", ".join(f"{w['width']} wide {w['tau']:.2f}" for w in found["widths"])
        lost = "; unknown counts as lost" if any(e["unknown"] for e in found["rescues"]) else ""
        console.print(f"τ of a tree, estimated from how often each depth passed where it was tested: {taus}{lost}")
        _error(console, found, "τ of a tree", "width")
    for c in found["combinations"]:
        console.print(
            f"{harmless(c['first'])} gives τ {c['tau_first']:.2f}, {harmless(c['second'])} {c['tau_second']:.2f}; the "
            f"better of both at every place {c['tau']:.2f} ({c['tokens']} common tokens).",
            markup=False,
        )
    if found["combinations"]:
        _error(console, found, "the better of both", "combination")
    if theory["rate"] is not None:
        best = theory["best"]
        console.print(
            f"Theory: τ {theory['tau']:.2f}; {theory['tau_by_position']:.2f} by position, {theory['tau_iid']:.2f} if "
            "every draft were accepted alike"
            + (
                f"; {best['depth']} levels come out best by its mean costs, {best['speedup']:.2f} times plain decoding"
                if best
                else ""
            )
        )
        _error(console, found, "by position", "by-position")
        _error(console, found, "if every draft were accepted alike", "iid")
        _error(console, found, "speed-up by the formula", "formula")
        for b in theory["transport"]:
            console.print(
                f"{b['siblings']} sampled siblings: {b['accepted']:.0%} of {b['places']} places accepted one; no exact "
                f"rule could exceed {b['bound']:.0%}."
            )
    rows = [
        (
            d["user"],
            d["name"],
            d["formula"],
            f"{d['part']} / {d['whole']}",
            " ".join(map(_two, d["values"])) or _two(d["value"]),
        )
        for d in found["definitions"]
    ]
    _table(
        console,
        "Every definition of acceptance, from this one run",
        ("whose", "name", "formula", "counts", "value"),
        rows,
    )


def _error(console: Console, found: dict[str, Any], name: str, key: str) -> None:
    """Print the measured error of a prediction beside it."""
    if said := found["errors"].get(key):
        console.print(f"  {name}: {said}", markup=False)


def _table(console: Console, title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(harmless(str(cell)) for cell in row))
    console.print()
    console.print(table)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
