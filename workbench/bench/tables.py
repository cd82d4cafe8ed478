"""Write table rows of plain values as CSV or Parquet, with Polars. Display tables are in `workbench.bench.markdown`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from workbench.core.errors import WorkbenchError, system_reason
from workbench.trace.files import write_atomically


def as_bytes(rows: Sequence[Mapping[str, Any]], kind: str) -> bytes:
    """Return table rows as the bytes of a CSV or Parquet file (`kind` "csv" or "parquet").

    The columns are in order of appearance.
    """
    import polars as pl

    names = list(dict.fromkeys(name for row in rows for name in row))
    frame = pl.DataFrame([{name: row.get(name) for name in names} for row in rows], infer_schema_length=None)
    out = BytesIO()
    if kind == "csv":
        frame.write_csv(out)
    else:
        frame.write_parquet(out)
    return out.getvalue()


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write table rows to a file in the format of its suffix, .csv or .parquet.

    Raises:
        WorkbenchError: the file cannot be written.
    """
    try:
        write_atomically(path, as_bytes(rows, path.suffix.removeprefix(".")))
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be written: {system_reason(error)}.", "Choose another file.") from None
