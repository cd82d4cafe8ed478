"""Comparison of two saved bench reports: find the significant differences.

Both reports contain the same prompts, so each prompt is its own control: for every method and metric, the prompts'
changes are tested with Wilcoxon's signed-rank test, which assumes no distribution. Benjamini–Hochberg over all tests of
a comparison controls the share of false alarms among the reported changes. A change must also reach the tolerance: with
many prompts the test detects changes too small to matter.

Speed is compared twice. The speed-up over plain decoding within the same session is not affected by a slower machine or
by other load; tokens per second are, for plain decoding and for all other methods. Both are the geometric means of
`workbench.trace.speedup`, so that a report's metrics here equal those in its own tables; other metrics are medians over
prompts.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from workbench.bench.lanes import BASELINE
from workbench.bench.markdown import format_value, markdown_table
from workbench.bench.report import BenchReport
from workbench.bench.statistics import average_rate, saved_rates, share
from workbench.core.errors import WorkbenchError
from workbench.models.machine import describe
from workbench.trace.speedup import speedup

ALPHA = 0.05
"""Allowed false discovery rate among the changes reported between two bench reports."""
TOLERANCE = 0.02
"""Smallest relative change of a metric that is reported as better or worse."""
FEWEST = 6
"""Number of prompts below which the signed-rank test cannot reach ALPHA (2 / 2⁶ = 0.03)."""
UNCHANGED = 1.0

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric that is compared between two bench reports, prompt by prompt.

    Attributes:
        title: title of the metric for display.
        value: function (runs of a method on a prompt, plain runs on the prompt in the same session) → metric; None: not
            defined.
        bigger_is_better: whether an increase is an improvement.
        is_speed: whether the metric is summarised over prompts by the geometric mean, like a speed-up; else by the
            median.
    """

    title: str
    value: Callable[[Sequence[Run], Sequence[Run]], float | None]
    bigger_is_better: bool = True
    is_speed: bool = False


def _rate(runs: Sequence[Run]) -> float | None:
    average = average_rate(saved_rates(runs))
    return None if average is None else average.value


def _speedup(runs: Sequence[Run], plain: Sequence[Run]) -> float | None:
    whole = any(run["decode_seconds"] is None for run in runs)  # another engine: compare whole calls on both sides
    ratio = speedup(saved_rates(runs, whole), saved_rates(plain, whole))
    return None if ratio is None else ratio.value


def _share(runs: Sequence[Run], part: str, whole: str) -> float | None:
    return share(*(sum(run[name] or 0 for run in runs) for name in (part, whole)))


FIGURES = {
    "speedup": Figure("speed-up over plain decoding", _speedup, is_speed=True),
    "tokens_per_second": Figure("tokens per second", lambda runs, _: _rate(runs), is_speed=True),
    "tau": Figure("τ", lambda runs, _: _share(runs, "tokens", "rounds")),
    "acceptance_rate": Figure("accepted / tested", lambda runs, _: _share(runs, "accepted", "tested")),
    "overhead_share": Figure(
        "overhead", lambda runs, _: _share(runs, "overhead_s", "decode_seconds"), bigger_is_better=False
    ),
}


@dataclass(slots=True)
class Change:
    """Change of one metric of one method between two bench reports.

    Attributes:
        method: name of the contender.
        figure: key of the metric in `FIGURES`.
        old: value in the old report: over prompts the geometric mean of a speed, else the median.
        new: value in the new report.
        change: relative change per prompt, summarised over prompts like `old` and `new`: 0.1 means +10 %.
        prompts: number of prompts with the metric in both reports.
        p: p-value, adjusted for all tests of the comparison; None with too few prompts.
        verdict: "better", "worse", "within noise" or "too few prompts".
    """

    method: str
    figure: str
    old: float
    new: float
    change: float
    prompts: int
    p: float | None
    verdict: str


COLUMNS: dict[str, Callable[[Change], Any]] = {
    "method": lambda c: f"`{c.method}`",
    "metric": lambda c: FIGURES[c.figure].title,
    "old": lambda c: format_value(c.old, ".4g"),
    "new": lambda c: format_value(c.new, ".4g"),
    "change": lambda c: format_value(c.change, "+.1%"),
    "p": lambda c: format_value(c.p, ".2g"),
    "prompts": lambda c: c.prompts,
    "verdict": lambda c: c.verdict,
}


@dataclass(slots=True)
class Regression:
    """Result of the comparison of two saved reports.

    Attributes:
        changes: one change for every method and metric that both reports have.
        differences: settings and facts about the machine that differ, as (name, old, new).
        missing: methods that only one report has.
        machines: descriptions of the old and the new machine.
    """

    changes: list[Change]
    differences: list[tuple[str, Any, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    machines: tuple[str, str] = ("", "")

    @property
    def worse(self) -> list[Change]:
        """Return the metrics that are significantly worse in the new report."""
        return [change for change in self.changes if change.verdict == "worse"]

    def to_wire(self) -> dict[str, Any]:
        """Return the result of the comparison of two bench reports as plain JSON."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Return the comparison of two bench reports as Markdown: the significant changes, then all changes."""
        significant = [change for change in self.changes if change.verdict in ("better", "worse")]
        lines = [f"**{len(significant)} of {len(self.changes)} metrics differ significantly.**", ""]
        lines += [_sentence(change) for change in significant] + [""] * bool(significant)
        lines += [markdown_table(COLUMNS, self.changes, left=("metric", "verdict"))]
        lines += ["", f"Old: {self.machines[0]}.", f"New: {self.machines[1]}."]
        if self.differences:
            lines.append("Differences: " + "; ".join(f"{n} {old} → {new}" for n, old, new in self.differences) + ".")
        if self.missing:
            lines.append(f"Present in only one of the reports: {', '.join(self.missing)}.")
        lines.append(
            f"Significance: Wilcoxon's signed-rank test over prompts, with Benjamini–Hochberg's correction over "
            f"all metrics at {ALPHA:.0%}; changes below {TOLERANCE:.0%} are not reported."
        )
        return "\n".join(lines) + "\n"


def compare_reports(old: BenchReport, new: BenchReport, tolerance: float = TOLERANCE) -> Regression:
    """Compare two saved reports of a bench, prompt by prompt.

    Raises:
        WorkbenchError: a report has no runs, or the reports have no prompt and method in common.
    """
    for label, report in (("old", old), ("new", new)):
        if not report.runs:
            raise WorkbenchError(
                f"The {label} report contains no runs.", "Give a report that `workbench bench --out` wrote."
            )
    before, after = _by_method(old.runs), _by_method(new.runs)
    shared = [method for method in before if method in after]
    cases, p_values = [], []
    for method in shared:
        for name, figure in FIGURES.items():
            if name == "speedup" and method == BASELINE:
                continue
            pairs = _pairs(before, after, method, figure)
            if pairs:
                cases.append((method, name, pairs))
                p_values.append(_p_value(pairs))
    if not cases:
        raise WorkbenchError("The reports have no prompt and method in common.", "Compare runs of the same suite.")
    testable = [p for p in p_values if p is not None and p != UNCHANGED]
    adjusted = iter(stats.false_discovery_control(testable) if testable else [])
    changes = [
        _change(method, name, pairs, p if p in (None, UNCHANGED) else float(next(adjusted)), tolerance)
        for (method, name, pairs), p in zip(cases, p_values, strict=True)
    ]
    return Regression(
        changes,
        _differences(old, new),
        sorted(set(before) ^ set(after)),
        (describe(old.machine), describe(new.machine)),
    )


def _by_method(runs: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    """Group the runs of a bench report by method and prompt.

    Prompts are identified by name, so that reports may order them differently.
    """
    grouped: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        grouped[run["contender"]][run["name"]].append(run)
    return grouped


def _pairs(before: Any, after: Any, method: str, figure: Figure) -> list[tuple[float, float]]:
    pairs = []
    for prompt, runs in before[method].items():
        if prompt in after[method]:
            old = figure.value(runs, before.get(BASELINE, {}).get(prompt, []))
            new = figure.value(after[method][prompt], after.get(BASELINE, {}).get(prompt, []))
            if old is not None and new is not None:
                pairs.append((old, new))
    return pairs


def _p_value(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Test whether a metric's changes on the prompts are symmetric about zero; return the p-value.

    The result is None with too few prompts.

    The result is `UNCHANGED` if no prompt differs, as with τ of greedy runs: this counts as no test and needs no
    correction.
    """
    if len(pairs) < FEWEST:
        return None
    steps = [math.log(new / old) if old > 0 and new > 0 else new - old for old, new in pairs]
    if not any(steps):
        return UNCHANGED
    method = "exact" if len(steps) <= 50 and all(steps) and len(set(map(abs, steps))) == len(steps) else "asymptotic"
    result: Any = stats.wilcoxon(np.asarray(steps), zero_method="zsplit", method=method)
    return min(float(result.pvalue), 1 - 1e-9)


def _change(method: str, name: str, pairs: Sequence[tuple[float, float]], p: float | None, tolerance: float) -> Change:
    if FIGURES[name].is_speed:
        old, new = (statistics.geometric_mean(side) for side in zip(*pairs, strict=True))
        change = new / old - 1
    else:
        old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
        change = statistics.median((b - a) / a if a else float(b != a) for a, b in pairs)
    verdict = "within noise"
    if p is None:
        verdict = "too few prompts"
    elif p < ALPHA and abs(change) >= tolerance:
        verdict = "better" if (change > 0) == FIGURES[name].bigger_is_better else "worse"
    return Change(method, name, old, new, change, len(pairs), p, verdict)


def _differences(old: BenchReport, new: BenchReport) -> list[tuple[str, Any, Any]]:
    ignored = {"date", "load"}
    sections = [(old.settings, new.settings), (old.machine, new.machine)]
    return [
        (name, before.get(name), after.get(name))
        for before, after in sections
        for name in dict.fromkeys([*before, *after])
        if name not in ignored and before.get(name) != after.get(name)
    ]


def _sentence(change: Change) -> str:
    figure = FIGURES[change.figure]
    return (
        f"- `{change.method}`: {figure.title} is {change.verdict} by {abs(change.change):.1%} "
        f"({change.old:.4g} → {change.new:.4g}, p = {change.p:.2g})"
    )
