"""Maintain the index of saved runs: one row per run, updated for added, changed and deleted files."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import operator
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.core.panics import convert_panics
from workbench.trace.entries import INDEX, VERSION, read_entry
from workbench.trace.files import PART, write_atomically
from workbench.trace.ids import is_id

_STAMP = "workbench.index"
"""Key in the metadata of the index file for the index's version and the time stamp of the indexed folder."""
_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|==|!=|=|>|<)\s*(\S+)\s*")
_OPERATORS = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "=": operator.eq, "!=": operator.ne, ">": operator.gt,
    "<": operator.lt,
}  # fmt: skip
_TICK_NS = 2 * 10**9
"""Assumed resolution of file-system time stamps in nanoseconds. If the folder of runs changed less than this time
before it was listed, the listing may have missed a change, so the folder is listed again."""
_FEW = 50
"""Maximum number of changed runs that are not yet written to the index file if the folder of runs may still change."""
_STALE_S = 3600.0
"""Age in seconds at which a temporary file in the folder of runs is considered abandoned and is deleted."""


class RunIndex:
    """Index of a folder of saved runs: a table with one row per run.

    Args:
        runs: folder with the run files.
        file: Parquet file of the index; may be deleted at any time.
    """

    def __init__(self, runs: Path, file: Path) -> None:
        self.runs, self.file = runs, file
        self.problems: dict[str, str] = {}
        """File name → reason why the last listing could not read the file."""

    def rows(self) -> pl.LazyFrame:
        """Return the table of saved runs. If the folder of runs has changed, the table is updated first."""
        try:
            stamp = self.runs.stat().st_mtime_ns
        except FileNotFoundError:
            return pl.LazyFrame(schema=INDEX)
        state = self._read_state()
        old = pl.scan_parquet(self.file) if state.get("version") == VERSION else pl.LazyFrame(schema=INDEX)
        if state == {"version": VERSION, "stamp": stamp, "settled": True}:
            return old
        self.problems.clear()
        listed_ns = time.time_ns()
        files = self._list_files()
        indexed = {run: (ns, size) for run, ns, size in old.select("id", "file_ns", "file_bytes").collect().iter_rows()}
        outdated = [run for run, stamps in indexed.items() if files.get(run) != stamps]
        new = self._read_rows(files, (run for run, current in files.items() if indexed.get(run) != current))
        unchanged = old.filter(~pl.col("id").is_in(outdated)) if outdated else old
        index = pl.concat([unchanged, new.lazy()]).sort("created", "id", descending=True)
        settled = stamp + _TICK_NS < listed_ns and not self.problems
        if not settled and len(outdated) + new.height <= _FEW and state.get("version") == VERSION:
            return index  # not written: the next change may come soon
        table = index.collect()
        self._write_index(table, {"version": VERSION, "stamp": stamp, "settled": settled})
        return table.lazy()

    def _list_files(self) -> dict[str, tuple[int, int]]:
        """Return modification time (ns) and size (bytes) of each run's file by id; delete abandoned temporary files."""
        files: dict[str, tuple[int, int]] = {}
        with os.scandir(self.runs) as entries:
            for file in entries:
                run = file.name.removesuffix(".parquet")
                with contextlib.suppress(FileNotFoundError):  # deleted by another process
                    if is_id(run):
                        status = file.stat()
                        files[run] = (status.st_mtime_ns, status.st_size)
                    elif not file.name.endswith(PART):
                        self.problems[file.name] = "The file is in the run store's folder but is not a saved run."
                    elif time.time() - file.stat().st_mtime > _STALE_S:
                        Path(file.path).unlink()
        return files

    def _read_rows(self, files: dict[str, tuple[int, int]], wanted: Iterable[str]) -> pl.DataFrame:
        rows = [row for run in wanted if (row := self._read_row(run, *files[run]))]
        try:
            return pl.DataFrame(rows, schema=INDEX)
        except (pl.exceptions.PolarsError, TypeError):
            return pl.DataFrame([row for row in rows if self._fits(row)], schema=INDEX)

    def _read_row(self, run: str, ns: int, size: int) -> dict[str, Any] | None:
        try:
            identity: dict[str, Any] = {"id": run, "file_ns": ns, "file_bytes": size}
            row = read_entry(self.runs / f"{run}.parquet") | identity
            row |= {name: datetime.datetime.fromisoformat(row[name]) for name in ("created", "kept")}
            return {name: row[name] for name in INDEX}
        except WorkbenchError as error:
            self.problems[f"{run}.parquet"] = str(error)
        except (KeyError, TypeError, ValueError):
            self.problems[f"{run}.parquet"] = "The run's summary in this file (its index entry) is damaged."
        except FileNotFoundError:
            pass  # deleted since the listing
        return None

    def _fits(self, row: dict[str, Any]) -> bool:
        try:
            pl.DataFrame([row], schema=INDEX)
        except (pl.exceptions.PolarsError, TypeError):
            self.problems[f"{row['id']}.parquet"] = "The run's summary in this file (its index entry) is damaged."
            return False
        return True

    def _read_state(self) -> dict[str, Any]:
        try:
            with convert_panics():
                state = json.loads(pl.read_parquet_metadata(self.file)[_STAMP])
        except Exception:  # missing or damaged: the index is rebuilt (polars raises several exception types)
            return {}
        if state.get("version", 0) > VERSION:
            raise WorkbenchError(
                f"A newer version of the workbench wrote the runs in {self.file.parent}.",
                "Update the workbench to read these runs.",
            )
        return state

    def _write_index(self, index: pl.DataFrame, state: dict[str, Any]) -> None:
        out = io.BytesIO()
        index.write_parquet(out, metadata={_STAMP: json.dumps(state)})
        try:
            write_atomically(self.file, out.getvalue())
        except OSError:
            return  # read-only store: its folder is listed at every search


def parse_condition(text: str) -> pl.Expr:
    """Parse a condition on a numeric column of the index of runs, such as "tau>=2.5", into a Polars expression."""
    numbers = [name for name, kind in INDEX.items() if kind in (pl.Int64, pl.Float64) and not name.startswith("file_")]
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise WorkbenchError(f"The condition {text[:60]!r} cannot be read.", "Write a metric and a number: tau>=2.5")
    name, sign, value = match.groups()
    if name not in numbers:
        raise UnknownNameError.of("metric", name, numbers)
    try:
        number = float(value)
    except ValueError:
        raise WorkbenchError(f"{value[:20]!r} is not a number.", f"Write {name}{sign}2.5") from None
    return _OPERATORS[sign](pl.col(name), number)


def to_utc(when: datetime.date) -> datetime.datetime:
    """Convert a date or a time to a time with a time zone. A date becomes midnight UTC; the default zone is UTC."""
    if not isinstance(when, datetime.datetime):
        when = datetime.datetime.combine(when, datetime.time())
    return when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)
