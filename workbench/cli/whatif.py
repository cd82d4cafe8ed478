"""`workbench whatif`: explain the speed of a recorded run, and estimate its speed with other drafts."""

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
            help="Trace to examine (JSON Lines or Parquet), or the name of a bundled recording. Further traces "
            "of the same prompt: plain decoding, as the baseline, and other drafters, to combine with the first.",
        ),
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Explain the speed of a recorded run, and estimate its speed with other drafts. No model is loaded.

    Example: workbench whatif draft-tree autoregressive medusa
    """
    from workbench.bench import whatif_errors
    from workbench.trace import whatif as analysis

    trace, *others = [read(name) for name in files]
    report = analysis.analyse(trace, others, errors=whatif_errors.errors())
    if as_json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        _print(report)


def read(name: str) -> Trace:
    """Read a trace from its file, or a bundled recording by its name.

    Raises:
        UnknownNameError: there is neither such a file nor such a recording.
        WorkbenchError: the file cannot be read.
    """
    from workbench.views import recorded_runs

    path = Path(name)
    if not path.exists():
        if name in recorded_runs.names():
            return recorded_runs.trace(name)
        raise UnknownNameError(
            f"There is no file {name}.",
            f"Give a trace file, or one of the bundled recordings: {', '.join(recorded_runs.names())}.",
        )
    if name.endswith(recorded_runs.SUFFIX):
        return recorded_runs.read(path)
    return read_trace(path)


def _print(report: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for line in report["words"]:
        console.print(f"• {line}", markup=False)
    lengths, theory = report["lengths"], report["theory"]
    if lengths:
        fixed = [*lengths["fixed"], lengths["oracle"], lengths["recorded"]]
        rows = [(a["name"], _two(a["tau"]), f"{a['tokens_per_second']:.0f}", _two(a["relative"])) for a in fixed]
        _table(
            console,
            "Predicted τ and speed with other draft lengths, from the measured times of this run",
            ("draft", "τ", "tokens/s", "× recorded"),
            rows,
        )
        _error(console, report, "τ", "lengths")
        _error(console, report, "× recorded", "speeds")
        _error(console, report, "no draft", "plain")
    if report["rescues"]:
        rows = [
            (e["depth"], e["tested"], *(e["ranks"].get(r, 0) for r in "123"), e["beyond"], e["unknown"])
            for e in report["rescues"]
        ]
        head = ("depth", "tested", "rank 1", "rank 2", "rank 3", "beyond", "unknown")
        _table(console, "Rank of the target's token in the drafter's distribution", head, rows)
        taus = ", ".join(f"width {w['width']} {w['tau']:.2f}" for w in report["widths"])
        remark = "; tokens of unknown rank count as rejected" if any(e["unknown"] for e in report["rescues"]) else ""
        console.print(f"τ of a tree, estimated from the acceptance rate at each depth: {taus}{remark}")
        _error(console, report, "τ of a tree", "width")
    for c in report["combinations"]:
        console.print(
            f"{harmless(c['first'])} has τ {c['tau_first']:.2f}, {harmless(c['second'])} {c['tau_second']:.2f}; "
            f"with the better of both drafts at every position, τ would be {c['tau']:.2f} ({c['tokens']} common "
            f"tokens).",
            markup=False,
        )
    if report["combinations"]:
        _error(console, report, "τ with the better of both drafts", "combination")
    if theory["rate"] is not None:
        best = theory["best"]
        console.print(
            f"τ measured {theory['tau']:.2f}; by theory {theory['tau_by_position']:.2f} with an acceptance rate "
            f"per position, {theory['tau_iid']:.2f} with one rate for all positions"
            + (
                f"; at the run's mean costs, draft length {best['depth']} is best: {best['speedup']:.2f} times plain "
                "decoding"
                if best
                else ""
            )
        )
        _error(console, report, "τ with an acceptance rate per position", "by-position")
        _error(console, report, "τ with one acceptance rate for all positions", "iid")
        _error(console, report, "speed-up by the formula", "formula")
        for b in theory["transport"]:
            console.print(
                f"{b['siblings']} sampled sibling tokens: one of them was accepted at {b['accepted']:.0%} of "
                f"{b['places']} positions; no lossless verifier can exceed an acceptance rate of {b['bound']:.0%}."
            )
    rows = [
        (
            d["user"],
            d["name"],
            d["formula"],
            f"{d['part']} / {d['whole']}",
            " ".join(map(_two, d["values"])) or _two(d["value"]),
        )
        for d in report["definitions"]
    ]
    _table(
        console,
        "Definitions of acceptance, evaluated on this run",
        ("used by", "name", "formula", "counts", "value"),
        rows,
    )


def _error(console: Console, report: dict[str, Any], name: str, key: str) -> None:
    """Print the measured error of a prediction by `whatif`; nothing if it was not measured.

    Args:
        console: console to print to.
        report: output of `workbench.trace.whatif.analyse`.
        name: text that describes the prediction.
        key: key of the prediction in the report.
    """
    if error := report["errors"].get(key):
        console.print(f"  {name}: {error}", markup=False)


def _table(console: Console, title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(harmless(str(cell)) for cell in row))
    console.print()
    console.print(table)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
