"""Store for saved runs: a folder with one Parquet file per run, and an index for searching the runs.

- `runs/ID.parquet`: trace (`workbench.trace.export`), with tags, note and metrics in the file's metadata. These files
  are the complete store: runs may be added, copied or deleted as files.
- `index.parquet`: one row per run (`INDEX`), newest first. It is built from the files and updated if they change; it
  may be deleted at any time.

Each file is written under a temporary name and then renamed, so a kill leaves only complete runs. Several processes may
use one store: a process that changes or deletes a run holds the store's lock, the file `lock`.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl
from filelock import FileLock, Timeout

from workbench.core.errors import WorkbenchError, system_reason
from workbench.trace import export
from workbench.trace.entries import ENTRY, entry_of, entry_of_trace, read_entry, tags_of
from workbench.trace.events import Trace
from workbench.trace.files import read_regular, write_atomically
from workbench.trace.ids import is_id, new_id
from workbench.trace.private import temporary_folder
from workbench.trace.runindex import RunIndex, parse_condition, to_utc
from workbench.trace.speedup import Baseline

_KINDS = (".parquet", ".jsonl")
BASELINE = "workbench.baseline"
"""Key of the baseline (a measurement of plain decoding of the same prompt) in the metadata of a run's file."""
LOCK_S = 30.0
"""Maximum time in seconds to wait for the lock of the run store; a change holds the lock for milliseconds."""


def default_folder() -> Path:
    """Return the default folder for saved runs: `WORKBENCH_RUNS`, or else a folder in the user's data directory."""
    if folder := os.environ.get("WORKBENCH_RUNS"):
        return Path(folder)
    try:
        base = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    except RuntimeError:  # a user without a home directory: the folder lasts as long as this process
        base = temporary_folder()
    return base / "speculative-decoding-workbench" / "runs"


@dataclass(slots=True)
class ImportResult:
    """Result of importing runs: ids added, ids already in the store, skipped files with the reason, notes by file."""

    added: list[str] = field(default_factory=list[str])
    duplicates: list[str] = field(default_factory=list[str])
    problems: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, str] = field(default_factory=dict[str, str])


class RunStore:
    """Store of saved runs in a folder.

    Args:
        folder: folder of the store, created with the first run; None: `default_folder()`.

    Example: `RunStore("my-runs").find(method="draft-model", where=["tau>=2"]).select("id", "tau").collect()`
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self._runs = self.folder / "runs"
        self._index = RunIndex(self._runs, self.folder / "index.parquet")
        self.problems = self._index.problems
        """Files of the store that the last search could not read, with the reason."""

    # -- writing -------------------------------------------------------------------------------------------------

    def save(self, trace: Trace, tags: Iterable[str] = (), note: str = "", baseline: Baseline | None = None) -> str:
        """Save a run as a new file of the store.

        Args:
            trace: complete or partial trace of the run.
            tags: tags for searching; surrounding spaces are removed, commas are refused.
            note: free text.
            baseline: plain decoding measured with the run.

        Returns:
            Id of the run; ids sort by time.

        Raises:
            WorkbenchError: the folder cannot be written, or a tag is invalid.
        """
        entry = entry_of_trace(trace, new_id(), tags, note)
        baseline_metadata = {BASELINE: json.dumps(baseline.to_wire())} if baseline else {}
        self._write(entry["id"], export.to_parquet(trace, {ENTRY: json.dumps(entry), **baseline_metadata}))
        return entry["id"]

    def tag(self, run: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> list[str]:
        """Add tags to a saved run, remove tags from it, and return its resulting tags, sorted.

        Raises:
            WorkbenchError: there is no such run, or a tag is invalid.
        """
        tags_to_add, tags_to_remove = set(tags_of(add)), set(tags_of(remove))
        return self._rewrite(
            run, lambda entry: entry | {"tags": sorted((set(entry["tags"]) | tags_to_add) - tags_to_remove)}
        )["tags"]

    def note(self, run: str, note: str) -> None:
        """Replace the user's note of a saved run.

        Raises:
            WorkbenchError: there is no such run.
        """
        self._rewrite(run, lambda entry: entry | {"note": note})

    def delete(self, *runs: str) -> None:
        """Delete saved runs. If one of them does not exist, none is deleted.

        Raises:
            WorkbenchError: there is no such run, or it cannot be deleted.
        """
        for run in runs:
            self._path(run)
        try:
            with self._lock() if runs else contextlib.nullcontext():
                for path in [self._path(run) for run in runs]:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise WorkbenchError(f"{error.filename} cannot be deleted: {system_reason(error)}.") from None

    # -- reading -------------------------------------------------------------------------------------------------

    def has(self, run: str) -> bool:
        """Return whether the run store contains a run with this id."""
        return is_id(run) and self._file(run).is_file()

    def load(self, run: str) -> Trace:
        """Return the trace of a saved run.

        Raises:
            WorkbenchError: there is no such run, its file is damaged, or a newer workbench wrote it.
        """
        return export.read_parquet(self._path(run).read_bytes())

    def baseline(self, run: str) -> Baseline | None:
        """Return the baseline (plain decoding of the same prompt) that was saved with a run; None if there is none.

        Raises:
            WorkbenchError: there is no such run, its file is damaged, or a newer workbench wrote it.
        """
        self.entry(run)  # raises a readable error for a damaged file
        stored = pl.read_parquet_metadata(self._path(run)).get(BASELINE)
        return Baseline.from_wire(json.loads(stored)) if stored else None

    def entry(self, run: str) -> dict[str, Any]:
        """Return the index entry of one saved run: header, metrics, tags and note.

        Raises:
            WorkbenchError: there is no such run, its file is damaged, or a newer workbench wrote it.
        """
        return read_entry(self._path(run))

    def find(
        self,
        *,
        method: str | Sequence[str] | None = None,
        target: str | Sequence[str] | None = None,
        drafter: str | Sequence[str] | None = None,
        tags: Iterable[str] = (),
        text: str | None = None,
        since: datetime.date | None = None,
        until: datetime.date | None = None,
        where: Iterable[str] = (),
    ) -> pl.LazyFrame:
        """Find the saved runs that match all filters, newest first; rows are read only when `.collect()` is called.

        Args:
            method: registry name, or several names of which one must match.
            target: name of the target, or several names of which one must match.
            drafter: name of the drafter, or several names of which one must match.
            tags: tags that the run must all have.
            text: words that must all occur in prompt, text or note; case is ignored.
            since: earliest time of the run; a date means midnight UTC.
            until: latest time of the run; a date includes its whole day.
            where: conditions on numeric columns of the index, such as "tau>=2.5" or "prompt_tokens<100".

        Returns:
            One row per run, with the columns of `INDEX`.

        Raises:
            WorkbenchError: a condition cannot be parsed or names no numeric column, or a newer workbench wrote the
                index.
        """
        rows = self._index.rows()
        for column, value in (("method", method), ("target", target), ("drafter", drafter)):
            if value is not None:
                rows = rows.filter(pl.col(column).is_in([value] if isinstance(value, str) else list(value)))
        for tag in tags:
            rows = rows.filter(pl.col("tags").list.contains(tag))
        for word in (text or "").split():
            pattern = f"(?i){re.escape(word)}"
            rows = rows.filter(pl.any_horizontal(pl.col("prompt", "text", "note").str.contains(pattern)))
        if since is not None:
            rows = rows.filter(pl.col("created") >= to_utc(since))
        if until is not None:
            whole_day = datetime.timedelta(days=0 if isinstance(until, datetime.datetime) else 1)
            rows = rows.filter(pl.col("created") < to_utc(until) + whole_day)
        for expression in where:
            rows = rows.filter(parse_condition(expression))
        return rows

    # -- exchanging ----------------------------------------------------------------------------------------------

    def export(self, runs: Sequence[str], to: Path | str, kind: Literal["parquet", "jsonl"] = "parquet") -> list[Path]:
        """Copy one saved run into a .parquet or .jsonl file, or any number of runs into a folder.

        Parquet files include tags, note and id; JSON Lines files contain only the trace.

        Raises:
            WorkbenchError: there is no such run, or the files cannot be written.
        """
        to = Path(to)
        paths = {run: self._path(run) for run in runs}
        if to.suffix in _KINDS and len(runs) != 1:
            raise WorkbenchError(f"A single file cannot hold {len(runs)} exported runs.", "Name a folder.")
        targets = {run: to if to.suffix in _KINDS else to / f"{run}.{kind}" for run in runs}
        for run, target in targets.items():
            data = paths[run].read_bytes()
            if target.suffix == ".jsonl":
                data = export.to_json_lines(export.read_parquet(data)).encode()
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, data)
            except OSError as error:
                raise WorkbenchError(
                    f"{target} cannot be written: {system_reason(error)}.", "Choose another path."
                ) from None
        return list(targets.values())

    def import_(self, *paths: Path | str, tags: Iterable[str] = ()) -> ImportResult:
        """Import runs from .parquet or .jsonl files, or from folders of such files (e.g. another store's `runs`).

        A run whose id is already in the store is skipped. A file that cannot be read is reported in the result, and the
        other files are still imported. Imported runs keep their tags and get `tags` in addition.
        """
        result, tags = ImportResult(), tags_of(tags)
        for file in _files(paths):
            try:
                trace = export.read(read_regular(file))
                old_entry = entry_of(file) or {}
                run = old_entry.get("id") if is_id(str(old_entry.get("id"))) else None
                if run and self._file(run).exists():
                    result.duplicates.append(run)
                    continue
                entry = entry_of_trace(
                    trace, run or new_id(), {*old_entry.get("tags", ()), *tags}, str(old_entry.get("note", ""))
                )
                data = export.to_parquet(trace, {ENTRY: json.dumps(entry)})
                with self._lock():
                    if self._file(entry["id"]).exists():  # another import added it since
                        result.duplicates.append(entry["id"])
                        continue
                    self._write(entry["id"], data)
                result.added.append(entry["id"])
                if export.INCOMPLETE in trace.footer.warnings:
                    result.notes[str(file)] = export.INCOMPLETE
            except WorkbenchError as error:
                result.problems[str(file)] = str(error)
            except OSError as error:
                result.problems[str(file)] = system_reason(error)
            except Exception as error:  # an unforeseen error in one file must not stop the others
                result.problems[str(file)] = f"The file cannot be imported ({type(error).__name__})."
        return result

    # -- files --------------------------------------------------------------------------------------------------

    def _file(self, run: str) -> Path:
        if not is_id(run):
            raise WorkbenchError(f"{run[:40]!r} is not a run id.", "Ids look like 20261121-153000-0a1b2c3d.")
        return self._runs / f"{run}.parquet"

    def _path(self, run: str) -> Path:
        path = self._file(run)
        if not path.is_file():
            raise WorkbenchError(
                f"No run {run} is saved in {self.folder}.", "`workbench runs list` shows the saved runs."
            )
        return path

    def _write(self, run: str, data: bytes) -> None:
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file(run), data)
        except OSError as error:
            raise WorkbenchError(
                f"The run cannot be saved in {self.folder}: {system_reason(error)}.", "Name another folder."
            ) from None

    def _rewrite(self, run: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Rewrite the file of a saved run with a changed index entry, and return that entry. The trace is not parsed.

        The entry is read and written under the lock, so that concurrent changes are not lost and a run that another
        process deleted is not restored.

        Raises:
            WorkbenchError: there is no such run, or its file cannot be written.
        """
        self._path(run)
        with self._lock():
            data = self._path(run).read_bytes()
            entry = change(self.entry(run))
            file_metadata = pl.read_parquet_metadata(io.BytesIO(data)) | {ENTRY: json.dumps(entry)}
            file_metadata.pop("ARROW:schema", None)
            out = io.BytesIO()
            pl.read_parquet(io.BytesIO(data)).write_parquet(out, metadata=file_metadata)
            self._path(run)  # raises if the file was deleted by hand meanwhile
            self._write(run, out.getvalue())
        return entry

    @contextlib.contextmanager
    def _lock(self) -> Generator[None]:
        """Hold the lock of the run store inside the block, so that no other process or thread changes the store.

        Raises:
            WorkbenchError: the folder cannot be written, or another process holds the lock for `LOCK_S` seconds.
        """
        lock: Any = FileLock(self.folder / "lock", timeout=LOCK_S)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise WorkbenchError(
                f"Another process has held the lock on {self.folder} for {LOCK_S:.0f} seconds.",
                "Stop that process, or try again.",
            ) from None
        except OSError as error:
            raise WorkbenchError(
                f"The runs in {self.folder} cannot be changed: {system_reason(error)}.", "Name another folder."
            ) from None
        try:
            yield
        finally:
            lock.release()


def _files(paths: Iterable[Path | str]) -> Iterable[Path]:
    for path in map(Path, paths):
        yield from sorted(p for p in path.iterdir() if p.suffix in _KINDS and p.is_file()) if path.is_dir() else [path]
