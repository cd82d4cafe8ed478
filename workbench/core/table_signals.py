"""Name the signals of a round (values for display) so that views draw them as one table with coloured cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def make_table_signals(
    name: str, rows: Mapping[str, Sequence[float]], columns: Sequence[object] | None = None
) -> dict[str, float]:
    """Return one signal per table cell, named "name [row, column]".

    Args:
        name: title of the table.
        rows: row name → values of its cells.
        columns: column names; by default 1, 2, ….

    Example:
        >>> make_table_signals("run", {"attention": [1, 0]})
        {'run [attention, 1]': 1, 'run [attention, 2]': 0}
    """
    return {
        f"{name} [{row}, {column}]": value
        for row, values in rows.items()
        for column, value in zip(columns or range(1, len(values) + 1), values, strict=True)
    }
