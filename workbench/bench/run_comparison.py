"""Compare two saved runs, or two groups of runs: differences with 95 % intervals, or reasons why they do not compare.

Only prompts that both groups ran count, and runs are paired by prompt, as on the page Compare. All pages use the same
estimators: `trace.speedup` for speeds, `bench.statistics` for other metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workbench.bench.statistics import Quotient, difference_of_quotients
from workbench.trace.events import Header, Trace
from workbench.trace.metrics import summary
from workbench.trace.speedup import INCONCLUSIVE, speedup

HIGHER, LOWER = "higher", "lower"
NOT_ALTERNATED = (
    "The runs were not measured alternately, so a change of the machine's load can explain a difference in speed. "
    "The Compare page measures alternately."
)
FIGURES = {"tau": ("tokens", "rounds"), "acceptance_rate": ("accepted", "tested")}
"""Metrics that are quotients of sums over runs: names of numerator and denominator in `trace.metrics.summary`."""

ByPrompt = Mapping[int, Sequence[dict[str, Any]]]
"""Summaries of saved runs by prompt index; the runs of a prompt are in the order in which they were made."""


def compare_runs(first: Sequence[Trace], second: Sequence[Trace]) -> dict[str, Any]:
    """Return the differences between two groups of runs as plain data.

    Args:
        first: runs of one group.
        second: runs of the other group, the reference: metrics are first / second or first − second.

    Returns:
        `problems`: reasons why the groups are not comparable (if there are any, there are no metrics); `notes`: limits
        of the comparison; `prompts`: number of prompts that both ran; `figures`: by name, `value`, `low`, `high`, `n`
        (prompts), and `verdict`. `speed` is the ratio of tokens per second; `tau` and `acceptance_rate` are
        differences, first − second. An interval needs several prompts; without one, `low` is None and `verdict` states
        n.
    """
    headers = [trace.header for trace in (*first, *second)]
    problems = [f"{title}: {values}." for title, values in _differing(headers, _TARGET)]
    numbers = {key: i for i, key in enumerate(dict.fromkeys(_prompt(header) for header in headers))}
    groups = [_by_prompt(runs, numbers) for runs in (first, second)]
    common = sorted(groups[0].keys() & groups[1].keys())
    if not common:
        problems.append("The two groups of runs have no prompt in common.")
    if problems:
        return {"problems": problems, "notes": [], "prompts": len(common), "figures": {}}
    used = [{prompt: group[prompt] for prompt in common} for group in groups]
    machines = [f"{title}: {values}." for title, values in _differing(headers, _MACHINE)]
    notes = [f"{title}: {values}." for title, values in _differing(headers, _SAMPLING)]
    n_unused = sum(len(runs) for group in groups for prompt, runs in group.items() if prompt not in common)
    if n_unused:
        notes.append(f"Not used: {n_unused} runs whose prompt occurs in only one of the groups.")
    figures = {name: _difference(used, *parts) for name, parts in FIGURES.items()}
    if machines:
        notes += ["Speeds are not comparable. " + " ".join(machines)]
    else:
        figures["speed"] = _speed(used)
        notes.append(NOT_ALTERNATED)
    known = {name: figure for name, figure in figures.items() if figure is not None}
    return {"problems": [], "notes": notes, "prompts": len(common), "figures": known}


_Fields = Mapping[str, Callable[[Header], Any]]
_TARGET: _Fields = {"The targets differ": lambda header: header.target}
_MACHINE: _Fields = {
    "The machines differ": lambda header: header.hardware or "unknown",
    "The devices differ": lambda header: header.device,
    "The number formats (dtypes) differ": lambda header: header.dtype,
}
_SAMPLING: _Fields = {
    "The temperatures differ": lambda header: header.params.get("temperature", 0),
    "The maximum numbers of new tokens differ": lambda header: header.max_new_tokens,
}


def _differing(headers: Iterable[Header], fields: _Fields) -> list[tuple[str, str]]:
    """Return (title, values) of each setting that is not the same in all compared runs."""
    found = {title: sorted({str(value(header)) for header in headers}) for title, value in fields.items()}
    return [(title, " and ".join(values)) for title, values in found.items() if len(values) > 1]


def _prompt(header: Header) -> tuple[Any, ...]:
    return tuple(header.prompt_tokens), tuple(picture.url for picture in header.pictures)


def _by_prompt(runs: Sequence[Trace], numbers: Mapping[tuple[Any, ...], int]) -> dict[int, list[dict[str, Any]]]:
    grouped: dict[int, list[dict[str, Any]]] = {}
    for trace in sorted(runs, key=lambda trace: trace.header.created):
        grouped.setdefault(numbers[_prompt(trace.header)], []).append(summary(trace))
    return grouped


def _difference(groups: Sequence[ByPrompt], part: str, whole: str) -> dict[str, Any] | None:
    """Return the difference of `part` / `whole` between two groups of runs; None if a prompt's `whole` is 0."""
    quotients: list[Quotient] = []
    for group in groups:
        sums = [[sum(run[name] for run in runs) for runs in group.values()] for name in (part, whole)]
        if not all(sums[1]):
            return None
        quotients.append((sums[0], sums[1]))
    interval = difference_of_quotients(quotients[0], quotients[1])
    return interval and interval | {"verdict": _verdict(interval)}


def _verdict(interval: Mapping[str, Any]) -> str:
    if interval["low"] is None:
        return f"n = {interval['n']}: no interval"
    return HIGHER if interval["low"] > 0 else LOWER if interval["high"] < 0 else INCONCLUSIVE


def _speed(groups: Sequence[ByPrompt]) -> dict[str, Any] | None:
    rates = [
        {(prompt, i): run["tokens_per_second"] or 0.0 for prompt, runs in group.items() for i, run in enumerate(runs)}
        for group in groups
    ]
    ratio = speedup(rates[0], rates[1])
    return ratio and ratio.to_wire() | {"verdict": ratio.verdict, "basis": ratio.basis}
