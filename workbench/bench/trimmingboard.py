"""The board of a finished study of VocabTrim: losses and gains of drafters with reduced vocabularies.

α, τ and time are quotients of sums over prompts; speeds are ratios of runs with the same prompt and repeat. The verdict
on a statement follows from the interval alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.bench.boardfiles import describe_finished_study
from workbench.bench.distillingboard import verdict
from workbench.bench.markdown import format_interval, format_value, markdown_table
from workbench.bench.statistics import Quotient, difference_of_quotients, ratio_of_quotients, ratio_of_sums
from workbench.models.machine import describe
from workbench.trace.speedup import FASTER, Estimate, speedup

BOARD = "trimming.json"
SOURCES = {"target": "the target's answers", "given": "the text's own answers", "": "not trimmed"}
LOSS = 0.05
"""Largest loss of τ of a trimmed drafter, as in the paper's abstract."""

Cell = dict[str, Any]


def full_vocabulary_cell(report: dict[str, Any], kind: str) -> Cell:
    """Return the drafter of a kind with its whole vocabulary."""
    return next(cell for cell in report["cells"] if cell["kind"] == kind and not cell["counted"])


def tau(cell: Cell) -> Quotient:
    """Return tokens and rounds per prompt."""
    return cell["emitted"], cell["rounds"]


def alpha(cell: Cell) -> Quotient:
    """Return accepted drafted tokens, and tested ones, per prompt."""
    return cell["accepted"], cell["tested"]


def relative_speed(cell: Cell, other: Cell) -> Estimate | None:
    """Return the speed of a cell relative to another, from runs of the same prompt in the same repeat."""
    cell_rates, other_rates = (
        {(i, k): rate for i, rates in enumerate(side["rates"]) for k, rate in enumerate(rates)}
        for side in (cell, other)
    )
    return speedup(cell_rates, other_rates)


def claims(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each statement that the study checks, for each kind of drafter, with figure and verdict."""
    results = list[dict[str, Any]]()
    for kind in dict.fromkeys(cell["kind"] for cell in report["cells"]):
        whole = full_vocabulary_cell(report, kind)
        trimmed = [cell for cell in report["cells"] if cell["kind"] == kind and cell["counted"]]
        by_size = {cell["kept"]: cell for cell in trimmed if cell["counted"] == "target"}
        best = max(by_size.values(), key=lambda cell: _value(relative_speed(cell, whole)), default=None)
        if best is not None:
            ratio = relative_speed(best, whole)
            statement = (
                f"{kind}: some size is faster than the whole vocabulary (the best of {len(by_size)}: {best['kept']:,})"
            )
            holds = ratio is not None and ratio.verdict == FASTER
            results.append({"claim": statement, "found": str(ratio or "–"), "verdict": "holds" if holds else "open"})
            tau_ratio = ratio_of_quotients(tau(best), tau(whole))
            statement = f"{kind}: τ at that size is at least {1 - LOSS:.2f} of the whole vocabulary's"
            results.append(
                {"claim": statement, "found": format_interval(tau_ratio), "verdict": verdict(tau_ratio, 1 - LOSS)}
            )
        for cell in trimmed:
            if cell["counted"] == "given" and cell["kept"] in by_size:
                ratio = ratio_of_quotients(tau(by_size[cell["kept"]]), tau(cell))
                statement = (
                    f"{kind}, {cell['kept']:,} tokens: counted in the target's answers ≥ in the text's: ratio of τ"
                )
                results.append({"claim": statement, "found": format_interval(ratio), "verdict": verdict(ratio, 1.0)})
    return results


def page(reports: dict[str, Any] | list[dict[str, Any]]) -> str:
    """Return the board, from the study's report, for one target or for several."""
    lines = [
        "# Trimming a drafter's vocabulary",
        "",
        "Drafters that can propose only the most frequent tokens, on held-out prompts, greedy (VocabTrim, Goel et al. "
        "2025, arXiv:2506.22694). The text is still the target's: tokens that a drafter cannot propose come from the "
        "target itself. `workbench docs` writes this page.",
        "",
        "α: drafted tokens accepted / tested; τ: tokens / passes of the target. Outside: share of the target's tokens "
        "that the drafter could not propose; in greedy decoding an upper bound on the loss at any position. ms: time "
        "of the drafter's forwards per drafted token. Intervals are 95 % intervals over prompts.",
    ]
    for report in reports if isinstance(reports, list) else [reports]:
        lines += _target_section(report)
    return "\n".join([*lines, ""])


def _target_section(report: dict[str, Any]) -> list[str]:
    """Return one target's part of the board."""
    counted = " and ".join(f"{n:,} tokens of {SOURCES[name]}" for name, n in report["counted"].items())
    lines = [
        "", f"## For `{report['target']}`", "",
        f"{report['form'].capitalize()}s for {report['prompts']} prompts, up to {report['max_new_tokens']} tokens. "
        f"Counted in {counted}. {describe_finished_study('trimming', report['options'])} Measured on "
        f"{describe(report['machine'])}.",
    ]  # fmt: skip
    for kind in dict.fromkeys(cell["kind"] for cell in report["cells"]):
        whole = full_vocabulary_cell(report, kind)
        columns: dict[str, Callable[[Cell], Any]] = {
            "tokens": lambda cell: f"{cell['kept']:,}",
            "counted in": lambda cell: SOURCES[cell["counted"]],
            "outside": lambda cell: format_value(sum(cell["outside"]) / sum(cell["emitted"]), ".1%"),
            "α": lambda cell: format_interval(ratio_of_sums(*alpha(cell))),
            "α − full vocabulary's": lambda cell, whole=whole: _change(cell, whole),
            "τ": lambda cell: format_interval(ratio_of_sums(*tau(cell))),
            "τ / full vocabulary's": lambda cell, whole=whole: _ratio(cell, whole),
            "ms": lambda cell: format_value(1e3 * sum(cell["draft_s"]) / max(sum(cell["drafted"]), 1), ".3f"),
            "speed / full vocabulary's": lambda cell, whole=whole: (
                "–" if cell is whole else str(relative_speed(cell, whole) or "–")
            ),
            "speed / plain decoding's": lambda cell: str(relative_speed(cell, report["plain"]) or "–"),
        }
        rows = sorted((cell for cell in report["cells"] if cell["kind"] == kind), key=lambda cell: -cell["kept"])
        lines += ["", f"**`{kind}`**", "", markdown_table(columns, rows, ("counted in",))]
    claim_columns: dict[str, Callable[[dict[str, Any]], Any]] = {
        "statement": lambda row: row["claim"],
        "measured": lambda row: row["found"],
        "verdict": lambda row: f"**{row['verdict']}**",
    }
    return [*lines, "", "**Results**", "", markdown_table(claim_columns, claims(report), ("statement", "verdict"))]


def _value(estimate: Estimate | None) -> float:
    return 0.0 if estimate is None else estimate.value


def _change(cell: Cell, whole: Cell) -> str:
    return "–" if cell is whole else format_interval(difference_of_quotients(alpha(cell), alpha(whole)))


def _ratio(cell: Cell, whole: Cell) -> str:
    return "–" if cell is whole else format_interval(ratio_of_quotients(tau(cell), tau(whole)))
