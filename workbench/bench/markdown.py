"""Markdown tables for comparisons, sweeps, bench reports and boards of results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def markdown_table(columns: Mapping[str, Callable[[T], Any]], rows: Iterable[T], left: Collection[str] = ()) -> str:
    """Return a Markdown table of some rows, with the columns' titles in the first line.

    Args:
        columns: title, and function of a row that returns the cell; special characters are escaped.
        rows: rows of any kind.
        left: titles of text columns, aligned left like the first one. Others are aligned right.

    Example:
        >>> print(markdown_table({"n": str, "n²": lambda n: n * n}, [2, 3]))
        | n | n² |
        |---|--:|
        | 2 | 4 |
        | 3 | 9 |
    """
    sides = "|".join("---" if i == 0 or title in left else "--:" for i, title in enumerate(columns))
    cells = [[_cell(fill(row)) for fill in columns.values()] for row in rows]
    return "\n".join([f"| {' | '.join(columns)} |", f"|{sides}|", *(f"| {' | '.join(line)} |" for line in cells)])


def format_value(value: float | None, form: str) -> str:
    """Return a value as text; None (a ratio with denominator 0) becomes a dash."""
    return "–" if value is None else format(value, form)


def format_interval(figure: Mapping[str, Any] | None) -> str:
    """Format a value with its interval like an `Estimate`: "1.52 [1.31–1.77]"; negative ends are joined by "to".

    Example:
        >>> format_interval({"value": -0.004, "low": -0.07, "high": 0.01})
        '0.00 [−0.07 to 0.01]'
    """
    if not figure:
        return "–"
    value, low, high = (None if figure[k] is None else _hundredths(figure[k]) for k in ("value", "low", "high"))
    if low is None or high is None:
        return f"{value}"
    between = " to " if "−" in low + high else "–"
    return f"{value} [{low}{between}{high}]"


def _hundredths(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")  # no "-0.00"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
