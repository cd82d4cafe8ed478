"""Signals that belong together in a table: the views draw them as one, a coloured cell each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def cells(name: str, rows: Mapping[str, Sequence[float]], columns: Sequence[object] | None = None) -> dict[str, float]:
    """Signals of a round, "name [row, column]" each.

    Args:
        name: of the table.
        rows: the numbers of each row, by its name.
        columns: their names; numbers from 1 by default.

    Example:
        >>> cells("run", {"attention": [1, 0]})
        {'run [attention, 1]': 1, 'run [attention, 2]': 0}
    """
    return {
        f"{name} [{row}, {column}]": value
        for row, values in rows.items()
        for column, value in zip(columns or range(1, len(values) + 1), values, strict=True)
    }
