"""Read the measured speed-up and τ of methods on a target from the saved boards, for display. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.bench import boardfiles
from workbench.trace.speedup import Estimate, speedup

PLAIN = "autoregressive"
Key = tuple[tuple[str, int], int]
"""Key of a measured run: ((kind of the prompt, number of the prompt), repeat)."""
Runs = Mapping[Key, Sequence[float]]
"""Measured runs by `Key`; a run is [generated tokens, target passes, seconds of decoding]."""


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Measured speed of a method on a target.

    Attributes:
        method: registry name of the method.
        speedup: tokens per second relative to plain decoding, geometric mean over prompts.
        tau: tokens per target pass, over all prompts.
        by_kind: speed-up by kind of prompt, in the order of the board.
        board: board that contains the measurement.
        date: date of the measurement.
    """

    method: str
    speedup: Estimate
    tau: float
    by_kind: tuple[tuple[str, float], ...]
    board: str
    date: str

    def to_wire(self) -> dict[str, Any]:
        """Return the measured speed as plain JSON."""
        return asdict(self)


def measured_targets() -> list[str]:
    """Return the targets with at least one measured method, the targets with the most measured methods first."""
    names = {row["target"] for board in ("work", "heads") for row in boardfiles.read(board).values()}
    counts = {name: len(measured_speeds(name)) for name in names}
    return sorted((name for name in names if counts[name]), key=lambda name: (-counts[name], name))


def measured_speeds(target: str) -> dict[str, MeasuredSpeed]:
    """Return the measured speed of each method on a target, by method.

    The workload board (nine kinds of prompts, short drafts) takes precedence over the board of heads (larger drafts).

    Args:
        target: name as on the boards.
    """
    found: dict[str, MeasuredSpeed] = {}
    for method, board, date, runs, plain in (*_heads(target), *_workloads(target)):
        ratio, passes = speedup_of_runs(runs, plain), sum(run[1] for run in runs.values())
        if ratio is None or not passes:
            continue
        kinds = dict.fromkeys(kind for (kind, _), _ in runs)
        by_kind = ((kind, speedup_of_runs(_of_kind(runs, kind), plain)) for kind in kinds)
        found[method] = MeasuredSpeed(
            method,
            ratio,
            sum(run[0] for run in runs.values()) / passes,
            tuple((kind, each.value) for kind, each in by_kind if each is not None),
            board,
            date,
        )
    return found


def speedup_of_runs(runs: Runs, plain: Runs) -> Estimate | None:
    """Return the speed-up of a method's runs over runs of plain decoding, paired by prompt; None without pairs."""
    return speedup(*({key: run[0] / run[2] for key, run in side.items()} for side in (runs, plain)))


def workload_runs(rows: Iterable[Mapping[str, Any]], method: str) -> dict[Key, Sequence[float]]:
    """Return a method's runs in rows of the workload board by ((kind, prompt), repeat 0), without empty runs."""
    return _complete({
        ((row["kind"], i), 0): run
        for row in rows if method in row["methods"]
        for i, run in enumerate(row["methods"][method]["runs"])
    })  # fmt: skip


def head_runs(row: Mapping[str, Any], runs: Sequence[Sequence[float]]) -> dict[Key, Sequence[float]]:
    """Return the runs of one head by ((kind, prompt), repeat 0); runs without tokens are left out.

    Args:
        row: a row of the heads board; the name of each of its prompts begins with the kind of prompt.
        runs: the head's runs, one for each prompt of the row.
    """
    kinds = [name.split("-")[0] for name in row["prompts"]]
    return _complete({((kind, i), 0): run for i, (kind, run) in enumerate(zip(kinds, runs, strict=True))})


def _of_kind(runs: Runs, kind: str) -> Runs:
    return {key: run for key, run in runs.items() if key[0][0] == kind}


def _workloads(target: str) -> Iterator[tuple[str, str, str, Runs, Runs]]:
    """Yield for each method on the workload board: method, board, date, the method's runs, runs of plain decoding."""
    rows = [row for row in boardfiles.read("work").values() if row["target"] == target]
    for method in dict.fromkeys(name for row in rows for name in row["methods"] if name != PLAIN):
        own = [row for row in rows if method in row["methods"] and PLAIN in row["methods"]]
        newest = max((row["date"] for row in own), default="")
        yield method, "work", newest, workload_runs(own, method), workload_runs(own, PLAIN)


def _heads(target: str) -> Iterator[tuple[str, str, str, Runs, Runs]]:
    """Yield for each measured drafting head: its method, board, date, the head's runs, runs of plain decoding."""
    for row in boardfiles.read("heads").values():
        if row["target"] == target:
            plain = head_runs(row, row["plain"])
            for head in row["heads"].values():
                yield head["method"], "heads", row.get("date", ""), head_runs(row, head["runs"]), plain


def _complete(runs: Runs) -> dict[Key, Sequence[float]]:
    """Return the runs in which tokens, target passes and decoding time are all above 0."""
    return {key: run for key, run in runs.items() if run[0] and run[1] and run[2]}
