"""The board of a finished study of distillation: the result of each loss on each kind of text for one drafter.

All figures are quotients of sums over prompts, compared on the same prompts. The verdict on a statement follows from
the interval alone: it holds if the whole interval satisfies it, does not hold if the whole interval contradicts it, and
is open otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.bench.boardfiles import describe_finished_study
from workbench.bench.markdown import format_interval, markdown_table
from workbench.bench.statistics import (
    Interval,
    Quotient,
    difference_of_quotients,
    ratio_of_quotients,
    ratio_of_sums,
)
from workbench.models.machine import describe

BOARD = "distilling.json"
RISE = 0.05
"""Required rise of α over the start's, as in a statement of DistillSpec's method card."""
HOW = {"greedy": "greedily", "sampled": "at temperature 1"}
KINDS = {
    "target": "the target's own answers",
    "given": "answers from the data set",
    "drafter": "the drafter's own, refreshed",
    "mix": "half the target's, half the drafter's",
    "all": "all answers used in training",
    "": "",
}
FIXED, OWN, BASE = "given", ("drafter", "mix"), "forward_kl"

Cell = dict[str, Any]
Columns = dict[str, Callable[[Cell], Any]]


def alpha_counts(cell: Cell, how: str) -> Quotient:
    """Return α of a cell as counts per prompt: accepted drafted tokens, and tested ones."""
    return cell[how]["accepted"], cell[how]["tested"]


def verdict(interval: Interval | None, least: float) -> str:
    """Return the verdict on "at least `least`" that follows from an interval: "holds", "does not hold" or "open"."""
    if interval is None or interval["low"] is None:
        return "open"
    return "holds" if interval["low"] >= least else "does not hold" if interval["high"] < least else "open"


def claims(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each statement that the study checks, for each way of decoding, with figure and verdict."""
    start, *cells = report["cells"]
    by_setting, results = {(cell["made"], cell["loss"]): cell for cell in cells}, list[dict[str, Any]]()
    losses = [loss for source, loss in by_setting if source == FIXED]
    for how in HOW:
        for loss in losses:
            for source in OWN:
                if (source, loss) in by_setting:
                    ratio = ratio_of_quotients(*(alpha_counts(by_setting[kind, loss], how) for kind in (source, FIXED)))
                    statement = f"{source} ≥ fixed text, {loss}: ratio of α"
                    results.append({"claim": statement, "how": how, "found": ratio, "verdict": verdict(ratio, 1.0)})
        for cell in cells:
            rise = difference_of_quotients(alpha_counts(cell, how), alpha_counts(start, how))
            statement = f"α rises by at least {RISE}: {cell['loss']} on {cell['made']}"
            results.append({"claim": statement, "how": how, "found": rise, "verdict": verdict(rise, RISE)})
        if all(("target", loss) in by_setting for loss in ("tvd_plus_plus", "total_variation")):
            ratio = ratio_of_quotients(
                *(alpha_counts(by_setting["target", loss], how) for loss in ("tvd_plus_plus", "total_variation"))
            )
            statement = "TVD++ ≥ TVD, on the target's answers: ratio of α"
            results.append({"claim": statement, "how": how, "found": ratio, "verdict": verdict(ratio, 1.0)})
    return results


def page(report: dict[str, Any]) -> str:
    """Return the board, from the study's report."""
    start, *cells = report["cells"]
    base = {cell["made"]: cell for cell in cells if cell["loss"] == BASE}
    intro = f"{start['steps']} steps on {KINDS[start['made']]}, " if start["steps"] else ""
    lines = [
        "# Distilling a draft model: loss and training text",
        "",
        f"One small draft model for `{report['target']}`, trained from the same start with each loss on each kind of "
        f"text, then measured with `{report['method']}` on the same {report['prompts']} held-out prompts (up to "
        f"{report['max_new_tokens']} tokens). DistillSpec (Zhou et al. 2024, arXiv:2310.08461) compares losses and "
        "texts; TVD++ is Direct Alignment's (Goel et al. 2024, arXiv:2403.00858). α: drafted tokens accepted / tested; "
        f"τ: tokens / passes of the target. {describe_finished_study('distilling', report['options'])} "
        "`workbench docs` writes this page.",
        "",
        f"Measured on {describe(report['machine'])}.",
        "",
        "Intervals are 95 % intervals over prompts, the same prompts on both sides of a ratio or difference. Each cell "
        "was trained with one seed; the variation between seeds is not included. With so many intervals, some do not "
        "contain the true value. A statement *holds* if its whole interval satisfies it, *does not hold* if its whole "
        "interval contradicts it, and is *open* otherwise.",
    ]
    for how, words in HOW.items():
        lines += [
            "", f"## Drafting {words}", "",
            f"The start ({intro}the text's cross-entropy alone): " if start["steps"] else "The start: ",
        ]  # fmt: skip
        lines[-1] += (
            f"α {format_interval(ratio_of_sums(*alpha_counts(start, how)))}, τ {format_interval(_tau(start, how))}."
        )
        columns: Columns = {
            "text": lambda cell: KINDS[cell["made"]],
            "loss": lambda cell: f"`{cell['loss']}`",
            "tokens read": lambda cell: f"{cell['tokens']:,}",
            "α": lambda cell, how=how: format_interval(ratio_of_sums(*alpha_counts(cell, how))),
            "α / start's": lambda cell, how=how: _ratio(cell, start, how),
            f"α / `{BASE}`'s on this text": lambda cell, how=how: _ratio(cell, base.get(cell["made"]), how),
            "τ": lambda cell, how=how: format_interval(_tau(cell, how)),
        }
        lines += ["", markdown_table(columns, cells, ("text", "loss"))]
    claim_columns: Columns = {
        "statement": lambda row: row["claim"],
        "drafting": lambda row: HOW[row["how"]],
        "measured": lambda row: format_interval(row["found"]),
        "verdict": lambda row: f"**{row['verdict']}**",
    }
    lines += [
        "",
        "## Results",
        "",
        markdown_table(claim_columns, claims(report), ("statement", "drafting", "verdict")),
        "",
    ]
    return "\n".join(lines)


def _tau(cell: Cell, how: str) -> Interval | None:
    return ratio_of_sums(cell[how]["emitted"], cell[how]["rounds"])


def _ratio(cell: Cell, other: Cell | None, how: str) -> str:
    if other is None or other is cell:
        return "–"
    return format_interval(ratio_of_quotients(alpha_counts(cell, how), alpha_counts(other, how)))
