"""The claims board: each paper's claim and its measurements, on the bundled pair and on a real chat model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from workbench.bench import board, labs
from workbench.bench.claims import (
    BUNDLED,
    COLUMNS,
    CONTRADICTED,
    INCONCLUSIVE,
    VERDICTS,
    Claim,
    Measurement,
    column_of,
    compute_verdict,
    scale_of,
)
from workbench.bench.claims import claims as all_claims
from workbench.bench.markdown import markdown_table as table
from workbench.bench.study import Rows, Study, in_turn
from workbench.core.errors import WorkbenchError
from workbench.models.machine import describe_hardware

BOARD = "claims"


def save(claim: Claim, measured: Measurement, column: str = BUNDLED) -> None:
    """Save the measured value of a paper's claim to a column (target) of the claims board."""
    board.save(BOARD, claim.row(column), {"measured": asdict(measured)}, lambda saved: markdown(rows(saved)))


def measure_claims(
    claims: Sequence[Claim], target: str | None, scale_options: Mapping[str, Any], saves: bool
) -> Study[Claim, Measurement | None]:
    """Return the study that measures papers' claims one by one; a claim with a missing requirement has the result None.

    Args:
        claims: the claims. If one of several claims cannot be measured, the study continues with the next claim.
        target: target of all measurements; None: for each claim the bundled target that it is designed for.
        scale_options: fields of `workbench.bench.claims.Scale` that differ from the target's scale.
        saves: whether to save each value on the board.
    """
    by_name = {claim.name: claim for claim in claims}

    def measure(claim: Claim) -> Measurement | None:
        column = column_of(claim, target)
        if claim.missing_requirement(column):
            return None
        return labs.measure(claim, replace(scale_of(claim.target(column)), **scale_options))

    def save_row(name: str, figure: Measurement | None) -> None:
        if saves and figure is not None:
            save(by_name[name], figure, column_of(by_name[name], target))

    store = Rows[Claim](lambda claim: claim.name, save_row=save_row)
    runner = in_turn(measure, WorkbenchError if len(claims) > 1 else ())
    return Study(claims, runner, store, key=lambda claim: claim.name)


def claim_entry(
    claim: Claim, measured: Measurement | None, column: str = BUNDLED, saved_row: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the entry of a paper's claim for one target: measured value and verdict, or the missing requirement.

    Args:
        claim: claim of a paper.
        measured: measured value; None if there is none.
        column: column of the claims board: one of `COLUMNS`, or the name of another target.
        saved_row: the saved row that contains the value.
    """
    lacking = claim.missing_requirement(column)
    verdict = compute_verdict(claim, measured, lacking)
    facts, (date, explanation) = (saved_row or {}).get("machine"), claim.reason(column)
    return {
        "column": column,
        "target": claim.target(column),
        "verdict": verdict,
        "measured": asdict(measured) if measured else None,
        "lacking": "" if measured else lacking,
        "why": explanation if verdict in (CONTRADICTED, INCONCLUSIVE) and (saved_row or {}).get("date") == date else "",
        "date": (saved_row or {}).get("date", ""),
        "commit": board.commit_of(saved_row or {}),
        "machine": describe_hardware(facts) if facts else "",
        "load": facts.get("load") if facts else None,
        "command": claim.command(column),
    }


def rows(saved_rows: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return a dict for each claim of a paper: the claim, and its entry in the board's first column.

    The entries of the other columns are the list `elsewhere`. Verdicts are computed again.

    Args:
        saved_rows: saved measurements; by default those of the repository.
    """
    saved_rows = board.read(BOARD) if saved_rows is None else saved_rows
    entries = []
    for claim in all_claims():
        first, *others = (_column(claim, column, saved_rows) for column in COLUMNS)
        entries.append(claim.to_wire() | first | {"elsewhere": others})
    return entries


def counts(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the number of claims with each verdict, for each column (target) of the claims board."""
    by_column: dict[str, dict[str, int]] = {}
    for column in (c for row in rows for c in _columns(row)):
        of_column = by_column.setdefault(column["column"], dict.fromkeys(VERDICTS, 0))
        of_column[column["verdict"]] += 1
    return by_column


def _column(claim: Claim, column: str, saved_rows: dict[str, Any]) -> dict[str, Any]:
    row = saved_rows.get(claim.row(column))
    figure = row and row["measured"]
    return claim_entry(claim, Measurement(**figure) if figure else None, column, row if figure else None)


def format_paper_figure(low: float | None, high: float | None, neutral: float) -> str:
    """Return a paper's value or range of values as text."""
    if low is None or high is None:
        return f"more than {neutral:g} (the paper gives no number)"
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def format_figure(measured: dict[str, Any]) -> str:
    """Return a measured value with its interval and number of observations as text."""
    figure = f"{measured['value']:.3g} ({measured['low']:.3g}–{measured['high']:.3g}, n = {measured['n']})"
    answers = measured.get("answers")
    return figure + (
        f"; correct answers relative to the exact verifier {answers['value']:.3g} "
        f"({answers['low']:.3g}–{answers['high']:.3g})"
        if answers
        else ""
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the board of papers' claims as Markdown: verdict counts, claims with values, and measurement details."""
    claim_columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "method": lambda row: f"`{row['method']}`",
        "claim": lambda row: (
            row["quantity"] + (f"<br>*By construction:* {row['by_construction']}" if row["by_construction"] else "")
        ),
        "the paper's setting, value and source": lambda row: (
            f"{row['setting']}: **{format_paper_figure(row['low'], row['high'], row['neutral'])}**; {row['source']}"
        ),
    }
    for i, title in enumerate(COLUMNS.values()):
        claim_columns[title] = partial(lambda i, row: _cell(row, _columns(row)[i]), i)
    figures = [
        {"name": row["name"], "timed": row["timed"]} | column
        for row in rows
        for column in _columns(row)
        if column["measured"]
    ]
    lines = [
        "# Claims board",
        "",
        table(COUNT_COLUMNS, [{"column": column} | of for column, of in counts(rows).items()], left=("target",)),
        "",
        *RULES,
        "",
        table(claim_columns, rows, left=claim_columns),
        "",
        "## How each figure was measured",
        "",
        table(FIGURE_COLUMNS, figures, left=[title for title in FIGURE_COLUMNS if title != "n"]),
    ]
    return "\n".join(lines) + "\n"


RULES = (
    "Each row compares a value that a paper claims with the same quantity measured here: on the small bundled models, "
    "and on SmolLM2-135M-Instruct, a real chat model. `workbench.bench.claims.compute_verdict` computes the verdict "
    "from the two values:",
    "",
    "- **reproduced in size**: the whole 95 % interval lies on the paper's side of “no change”, and the "
    "measured value lies in the paper's range, extended by 25 % at both ends (by a narrower tolerance for a "
    "closed-form prediction).",
    "- **reproduced in direction**: the whole 95 % interval lies on the paper's side of “no change”.",
    "- **inconclusive**: the 95 % interval contains “no change”.",
    "- **contradicted**: the whole 95 % interval lies on the opposite side of “no change” from the paper.",
    "",
    "A claim of no change (1 in the paper) is reproduced if the whole interval lies within the tolerance, and "
    "contradicted if the whole interval lies outside. **By construction**: the value follows from a definition "
    "or from the way it is measured; it is shown, but counts as no verdict. **Answers not kept**: an "
    "approximate verifier gives fewer than 95 % of the exact verifier's correct answers in the same runs, so "
    "its gain gets no verdict. "
    "Claims about speed keep the value of the last measurement on an idle machine. `workbench claims --all --report` "
    "measures everything again, with `--target smollm2` for SmolLM2.",
)


def _count_of(verdict: str) -> Callable[[dict[str, Any]], str]:
    """Return the function that formats an entry of the table of counts: the number of claims with this verdict."""
    return lambda row: str(row[verdict])


COUNT_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "target": lambda row: str(COLUMNS.get(row["column"]) or row["column"]),
    **{verdict: _count_of(verdict) for verdict in VERDICTS},
}
FIGURE_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "claim": lambda row: f"`{row['name']}`",
    "n": lambda row: str(row["measured"]["n"]),
    "setting": lambda row: row["measured"]["setting"],
    "date, commit": lambda row: f"{row['date']}, {row['commit']}",
    "machine": lambda row: row["machine"] + (f", load {row['load']}" if row["timed"] else ""),
    "command": lambda row: f"`{row['command']}`",
}


def _columns(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row, *row["elsewhere"]]


def _cell(row: dict[str, Any], column: dict[str, Any]) -> str:
    """Return a claim's table cell as text: verdict, value, and the missing requirement or the explanation."""
    parts = [f"**{column['verdict']}**"]
    if column["measured"]:
        parts.append(format_figure(column["measured"]))
    if lacks := row["lacks"] or column["lacking"]:
        parts.append(f"lacks {row['lacks']}" if row["lacks"] else lacks)
    if column["why"]:
        parts.append(f"*Why:* {column['why']}")
    return "<br>".join(parts)
