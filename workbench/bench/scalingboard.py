"""The board of a finished scaling study: its runs, the fitted scaling law, and the residuals of the runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.bench.boardfiles import describe_finished_study
from workbench.bench.markdown import format_value, markdown_table
from workbench.models.machine import describe
from workbench.trace.scaling import NAMES, fit, runs_from_report

BOARD = "scaling.json"


def page(report: dict[str, Any]) -> str:
    """Return the board, from the study's report."""
    runs, fitted = runs_from_report(report), fit(runs_from_report(report))
    run_rows = [
        {"cell": cell, "tau": run.tau, "left": residual}
        for cell, run, residual in zip(report["cells"], runs, fitted.left, strict=True)
    ]
    columns: dict[str, Callable[[dict[str, Any]], Any]] = {
        "parameters": lambda row: f"{row['cell']['parameters']:,}",
        "tokens read": lambda row: f"{row['cell']['tokens']:,}",
        "held-out agreement": lambda row: format_value(row["cell"]["agreement"], ".3f"),
        "τ": lambda row: format_value(row["tau"], ".3f"),
        "τ − fitted τ": lambda row: format_value(row["left"], "+.3f"),
        "minutes": lambda row: format_value(row["cell"]["seconds"] / 60, ".1f"),
    }
    names = ("τ at one token and one parameter", *(f"τ for {name}" for name in NAMES[1:]))
    law_rows = [
        {"name": name, "value": value, "low": low, "high": high}
        for name, value, low, high in zip(names, fitted.values, fitted.low, fitted.high, strict=True)
    ]
    numbers: dict[str, Callable[[dict[str, Any]], Any]] = {
        "coefficient": lambda row: row["name"],
        "value": lambda row: format_value(row["value"], ".3f"),
        "95 % interval": lambda row: f"{row['low']:.3f} to {row['high']:.3f}",
    }
    lines = [
        "# Scaling of a drafter",
        "",
        f"`{report['method']}` heads of several sizes for `{report['target']}`, each trained on more and more tokens "
        f"of the target's own answers, then measured on the same {report['prompts']} held-out prompts (greedy, up to "
        f"{report['max_new_tokens']} tokens, drafted as a {report['form']}). Scylla (Yan et al. 2025, "
        "arXiv:2505.07858) finds τ log-linear in both: τ = a + b · log₁₀ tokens + c · log₁₀ parameters. "
        f"{describe_finished_study('scaling', report['options'])} `workbench docs` writes this page.",
        "",
        f"Measured on {describe(report['machine'])}.",
        "",
        f"The fit explains {fitted.r2:.1%} of the variance of τ over {len(runs)} runs. Its intervals are over prompts; "
        "the variation between training seeds is not included. Tokens are those of the prompts and answers in "
        "training, including repetitions.",
        "",
        markdown_table(numbers, law_rows, ("coefficient",)),
        "",
        markdown_table(columns, run_rows, ()),
        "",
    ]
    return "\n".join(lines)
