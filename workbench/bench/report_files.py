"""Read and write bench reports as JSON or Parquet files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import polars as pl

from workbench.bench.report import RUN_COLUMNS, SCHEMA_VERSION, BenchReport
from workbench.bench.rows import ESTIMATES, BenchRow, speeds
from workbench.bench.statistics import saved_rates
from workbench.core.errors import WorkbenchError, system_reason
from workbench.core.panics import PanicError, convert_panics
from workbench.trace.files import read_regular
from workbench.trace.speedup import Estimate

_METADATA = "workbench.report"
_REMEDY = "Give a report that `workbench bench --out` wrote as .json or .parquet."
_INTS = {"prompt", "question", "turn", "repeat", "tokens", "rounds", "growth_bytes"}
_TEXTS = {"contender", "name", "group", "category"}
_LISTS = {"steps", "token_ids"}


def _kind(column: str) -> Any:
    if column in _LISTS:
        return pl.List(pl.Int64)
    return pl.Int64 if column in _INTS else pl.String if column in _TEXTS else pl.Float64


PARQUET_SCHEMA = {column: _kind(column) for column in RUN_COLUMNS}
"""Columns of a bench report's Parquet file, which has one row per timed run."""


def to_parquet(report: BenchReport) -> bytes:
    """Return a bench report as Parquet, with one row per timed run; the file's metadata contains all other fields."""
    runs = pl.DataFrame(report.runs, schema=PARQUET_SCHEMA)
    rest = {name: value for name, value in report.to_wire().items() if name != "runs"}
    out = io.BytesIO()
    runs.write_parquet(out, metadata={_METADATA: json.dumps(rest, ensure_ascii=False)})
    return out.getvalue()


def read_report(path: Path) -> BenchReport:
    """Read a saved report of a bench, JSON or Parquet.

    Raises:
        WorkbenchError: the file cannot be read, is not a report, or was written by a newer version of the workbench.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be read: {system_reason(error)}.", _REMEDY) from None
    try:
        if data.startswith(b"PAR1"):
            with convert_panics():
                wire = json.loads(pl.read_parquet_metadata(io.BytesIO(data))[_METADATA])
                wire["runs"] = pl.read_parquet(io.BytesIO(data)).to_dicts()
        else:
            wire = json.loads(data)
        version = wire.pop("schema")
        if version > SCHEMA_VERSION:
            raise WorkbenchError(
                f"{path} has report schema {version}; this version of the workbench reads schemas up to "
                f"{SCHEMA_VERSION}.",
                "Update the workbench.",
            )
        if version < SCHEMA_VERSION:
            _renew(wire)
        wire["rows"] = [_row(row) for row in wire["rows"]]
        wire["groups"] = {name: [_row(row) for row in rows] for name, rows in wire["groups"].items()}
        return BenchReport(**wire)
    except (ValueError, KeyError, TypeError, AttributeError, PanicError, pl.exceptions.PolarsError) as error:
        raise WorkbenchError(f"{path} is not a saved benchmark report ({type(error).__name__}).", _REMEDY) from None


def _row(row: dict[str, Any]) -> BenchRow:
    estimates = {name: Estimate(**row[name]) for name in ESTIMATES if row[name] is not None}
    positions = [(depth, tested, accepted) for depth, tested, accepted in row["acceptance_by_position"]]
    return BenchRow(**{**row, **estimates, "acceptance_by_position": positions})


def _renew(wire: dict[str, Any]) -> None:
    """Convert a report of an earlier schema in place: compute its speeds again from its runs.

    A report without runs loses its speeds: medians cannot be converted into geometric means, nor rates of whole calls
    into rates of decoding.
    """
    for group, rows in [(None, wire["rows"]), *wire["groups"].items()]:
        runs = [run for run in wire["runs"] if group in (None, run["group"])]
        by_contender = {name: [r for r in runs if r["contender"] == name] for name in {r["contender"] for r in runs}}
        decode, call = (
            {name: saved_rates(subset, whole) for name, subset in by_contender.items()} for whole in (False, True)
        )
        for row in rows:
            for old_column in ("speedup_in_total", "speedup_per_tau"):
                row.pop(old_column, None)
            fields = speeds(row["method"], row["kind"] == "workbench", decode, call)
            row |= {key: value.to_wire() if isinstance(value, Estimate) else value for key, value in fields.items()}
