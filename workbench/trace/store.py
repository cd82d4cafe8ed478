"""Kept runs: a folder with one Parquet file a run, and a compact index to search them by.

- `runs/ID.parquet`: the trace (`workbench.trace.export`), with tags, note and figures in the file's metadata. These
  files are all there is to a store: copy, delete or add some, and the store has those runs.
- `index.parquet`: one row a run (`INDEX`), newest first. It is made from the files, and made anew for those that came,
  changed or went; it may be deleted at any time.

Every file is written beside its place and then renamed, so a kill at any point leaves whole runs only. Several
processes may keep runs in one store at once.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import io
import json
import operator
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import polars as pl

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.core.panics import no_panic
from workbench.trace import export
from workbench.trace.events import Trace
from workbench.trace.files import PART, read_regular, write_whole
from workbench.trace.frames import Schema
from workbench.trace.ids import is_id
from workbench.trace.metrics import summary

VERSION = 1
"""Of the entries and the index. A run without an entry of this version (a plain exported trace, say) gets one from its
trace when it is listed; an entry of a newer version is refused."""

FIGURES = (
    "tokens", "rounds", "drafted", "tested", "accepted", "tau", "acceptance_rate", "draft_utilisation", "seconds",
    "prefill_seconds", "tokens_per_second", "overhead_share",
)  # fmt: skip
"""Figures in the index, as `workbench.trace.metrics` defines them."""

_COUNTS = {"tokens", "rounds", "drafted", "tested", "accepted"}
_WHEN = pl.Datetime("ms", "UTC")
INDEX: Schema = {
    "id": pl.String, "created": _WHEN, "kept": _WHEN, "method": pl.String, "target": pl.String, "drafter": pl.String,
    "dtype": pl.String, "device": pl.String, "seed": pl.String, "temperature": pl.Float64, "params": pl.String,
    "promise": pl.String, "prompt": pl.String, "text": pl.String, "reason": pl.String, "tags": pl.List(pl.String),
    "note": pl.String, "prompt_tokens": pl.Int64, "max_new_tokens": pl.Int64, "pictures": pl.Int64,
    **{name: pl.Int64 if name in _COUNTS else pl.Float64 for name in FIGURES},
    "schema": pl.Int64, "file_bytes": pl.Int64, "file_ns": pl.Int64,
}  # fmt: skip
"""One row a run. `params` is JSON; `seed` is decimal digits; `created` is when it ran, `kept` when it was put here."""

ENTRY, _STAMP = "workbench.entry", "workbench.index"
"""Names in the files' metadata."""
_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|==|!=|=|>|<)\s*(\S+)\s*")
_OPERATORS = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "=": operator.eq, "!=": operator.ne, ">": operator.gt,
    "<": operator.lt,
}  # fmt: skip
_TICK_NS = 2 * 10**9
"""A change within this time of a listing may share its time stamp: such a listing is not trusted later."""
_FEW = 50
"""Changes up to which the changed files are read with every search, while more changes may come."""
_STALE_S = 3600.0
_KINDS = (".parquet", ".jsonl")


def default_folder() -> Path:
    """Where runs are kept by default: `WORKBENCH_RUNS`, or a folder among the user's own data."""
    if named := os.environ.get("WORKBENCH_RUNS"):
        return Path(named)
    try:
        base = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    except RuntimeError:  # a user without a home: as long as this process lasts
        base = _without_home()
    return base / "speculative-decoding-workbench" / "runs"


@cache
def _without_home() -> Path:
    """A temporary folder that nobody else may look into, and that goes with the process."""
    place = Path(tempfile.mkdtemp(prefix="workbench-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


@dataclass(slots=True)
class Imported:
    """What an import did: ids added, ids that were there already, files left out and why, and notes on files read."""

    added: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


class RunStore:
    """Runs that were kept, in a folder.

    Args:
        folder: made with the first run; None: `default_folder()`.

    Example: `RunStore("kept").find(method="draft-model", where=["tau>=2"]).select("id", "tau").collect()`
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self._runs = self.folder / "runs"
        self._index_file = self.folder / "index.parquet"
        self.problems: dict[str, str] = {}
        """Files of the store that the last search could not read, and why."""

    # -- writing -------------------------------------------------------------------------------------------------

    def save(self, trace: Trace, tags: Iterable[str] = (), note: str = "") -> str:
        """Keep a run.

        Args:
            trace: of a run that has ended, or of what there is of it.
            tags: words to find it by; spaces around them are dropped, a comma inside one is refused.
            note: anything.

        Returns:
            Its id, which sorts by time.

        Raises:
            WorkbenchError: the folder cannot be written, or a tag is none.
        """
        entry = entry_of_trace(trace, _new_id(), tags, note)
        self._write(entry["id"], export.parquet(trace, {ENTRY: json.dumps(entry)}))
        return entry["id"]

    def tag(self, run: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> list[str]:
        """Add tags to a run and take others away; returns those it has then, in order.

        Raises:
            WorkbenchError: there is no such run, or a tag is none.
        """
        tags = sorted((set(self.entry(run)["tags"]) | set(_tags(add))) - set(_tags(remove)))
        self._rewrite(run, tags=tags)
        return tags

    def note(self, run: str, note: str) -> None:
        """Replace the note of a run.

        Raises:
            WorkbenchError: there is no such run.
        """
        self._rewrite(run, note=note)

    def delete(self, *runs: str) -> None:
        """Delete runs, all of them or, where one does not exist, none.

        Raises:
            WorkbenchError: there is no such run, or it cannot be deleted.
        """
        paths = [self._path(run) for run in runs]
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise WorkbenchError(f"{error.filename} cannot be deleted: {error.strerror}.") from None

    # -- reading -------------------------------------------------------------------------------------------------

    def has(self, run: str) -> bool:
        """Whether a run is kept here."""
        return is_id(run) and self._file(run).is_file()

    def load(self, run: str) -> Trace:
        """The trace of a run.

        Raises:
            WorkbenchError: there is no such run, its file is damaged, or a newer workbench wrote it.
        """
        return export.read_parquet(self._path(run).read_bytes())

    def entry(self, run: str) -> dict[str, Any]:
        """The row of one run, as in the index: header, figures, tags and note.

        Raises:
            WorkbenchError: as for `load`.
        """
        return _read_entry(self._path(run))

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
        """Runs that fit all filters, newest first; nothing is read from the index before `.collect()`.

        Args:
            method: registry name, or several of which one must fit.
            target: name of the target, or several.
            drafter: name of the drafter, or several.
            tags: all of them must be there.
            text: every word must occur in prompt, text or note; case does not matter.
            since: earliest time of the run; a date begins at midnight UTC.
            until: latest time of the run; a date includes its whole day.
            where: conditions on numbers of the index, such as "tau>=2.5" or "prompt_tokens<100".

        Returns:
            The rows, with the columns of `INDEX`.

        Raises:
            WorkbenchError: a condition cannot be read or names no number, or a newer workbench wrote the index.
        """
        found = self._index()
        for column, wanted in (("method", method), ("target", target), ("drafter", drafter)):
            if wanted is not None:
                found = found.filter(pl.col(column).is_in([wanted] if isinstance(wanted, str) else list(wanted)))
        for tag in tags:
            found = found.filter(pl.col("tags").list.contains(tag))
        for word in (text or "").split():
            pattern = f"(?i){re.escape(word)}"
            found = found.filter(pl.any_horizontal(pl.col("prompt", "text", "note").str.contains(pattern)))
        if since is not None:
            found = found.filter(pl.col("created") >= _moment(since))
        if until is not None:
            whole_day = datetime.timedelta(days=0 if isinstance(until, datetime.datetime) else 1)
            found = found.filter(pl.col("created") < _moment(until) + whole_day)
        for condition in where:
            found = found.filter(_condition(condition))
        return found

    # -- exchanging ----------------------------------------------------------------------------------------------

    def export(self, runs: Sequence[str], to: Path | str, kind: Literal["parquet", "jsonl"] = "parquet") -> list[Path]:
        """Copy runs into files: one into a file, by its ending .parquet or .jsonl, any number into a folder.

        Parquet keeps tags, note and id; JSON lines hold the trace alone.

        Raises:
            WorkbenchError: there is no such run, or the files cannot be written.
        """
        to = Path(to)
        paths = {run: self._path(run) for run in runs}
        if to.suffix in _KINDS and len(runs) != 1:
            raise WorkbenchError(f"{len(runs)} runs do not go into one file.", "Name a folder.")
        places = {run: to if to.suffix in _KINDS else to / f"{run}.{kind}" for run in runs}
        for run, place in places.items():
            data = paths[run].read_bytes()
            if place.suffix == ".jsonl":
                data = export.json_lines(export.read_parquet(data)).encode()
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                write_whole(place, data)
            except OSError as error:
                raise WorkbenchError(f"{place} cannot be written: {error.strerror}.", "Choose another.") from None
        return list(places.values())

    def import_(self, *paths: Path | str, tags: Iterable[str] = ()) -> Imported:
        """Keep runs from files of either kind, or from folders of such files (another store's `runs`, say).

        A run that is here already, by its id, is left as it is. A file that cannot be read is named in the result and
        stops nothing. Added runs get `tags` besides their own.
        """
        done, tags = Imported(), _tags(tags)
        for file in _files(paths):
            try:
                trace = export.read(read_regular(file))
                old = _entry_of(file) or {}
                run = old.get("id") if is_id(str(old.get("id"))) else None
                if run and self._file(run).exists():
                    done.known.append(run)
                    continue
                entry = entry_of_trace(trace, run or _new_id(), {*old.get("tags", ()), *tags}, str(old.get("note", "")))
                self._write(entry["id"], export.parquet(trace, {ENTRY: json.dumps(entry)}))
                done.added.append(entry["id"])
                if export.INCOMPLETE in trace.footer.warnings:
                    done.notes[str(file)] = export.INCOMPLETE
            except WorkbenchError as error:
                done.problems[str(file)] = str(error)
            except OSError as error:
                done.problems[str(file)] = str(error.strerror)
            except Exception as error:  # nothing that nobody foresaw in one file stops the others
                done.problems[str(file)] = f"It cannot be kept ({type(error).__name__})."
        return done

    # -- files and index -----------------------------------------------------------------------------------------

    def _file(self, run: str) -> Path:
        if not is_id(run):
            raise WorkbenchError(f"{run[:40]!r} is no id of a run.", "Ids look like 20261121-153000-0a1b2c3d.")
        return self._runs / f"{run}.parquet"

    def _path(self, run: str) -> Path:
        path = self._file(run)
        if not path.is_file():
            raise WorkbenchError(
                f"No run {run} is kept in {self.folder}.", "`workbench runs list` shows those that are."
            )
        return path

    def _write(self, run: str, data: bytes) -> None:
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
            write_whole(self._file(run), data)
        except OSError as error:
            raise WorkbenchError(
                f"The run cannot be kept in {self.folder}: {error.strerror}.", "Name another folder."
            ) from None

    def _rewrite(self, run: str, **changes: Any) -> None:
        """The same file with another entry. Only the metadata differs; the trace is not taken apart."""
        data = self._path(run).read_bytes()
        entry = self.entry(run) | changes
        known = pl.read_parquet_metadata(io.BytesIO(data)) | {ENTRY: json.dumps(entry)}
        known.pop("ARROW:schema", None)
        out = io.BytesIO()
        pl.read_parquet(io.BytesIO(data)).write_parquet(out, metadata=known)
        self._write(run, out.getvalue())

    def _index(self) -> pl.LazyFrame:
        """The index as it is; where the folder of runs has changed since, with what has come and without what went."""
        try:
            stamp = self._runs.stat().st_mtime_ns
        except FileNotFoundError:
            return pl.LazyFrame(schema=INDEX)
        state = self._read_state()
        old = pl.scan_parquet(self._index_file) if state.get("version") == VERSION else pl.LazyFrame(schema=INDEX)
        if state == {"version": VERSION, "stamp": stamp, "settled": True}:
            return old
        self.problems = {}
        listed = time.time_ns()
        files = self._list_files()
        seen = {run: (ns, size) for run, ns, size in old.select("id", "file_ns", "file_bytes").collect().iter_rows()}
        gone = [run for run, known in seen.items() if files.get(run) != known]
        new = self._read_rows(files, (run for run, now in files.items() if seen.get(run) != now))
        kept = old.filter(~pl.col("id").is_in(gone)) if gone else old
        index = pl.concat([kept, new.lazy()]).sort("created", "id", descending=True)
        settled = stamp + _TICK_NS < listed and not self.problems
        if not settled and len(gone) + new.height <= _FEW and state.get("version") == VERSION:
            return index  # more may come soon
        whole = index.collect()
        self._write_index(whole, {"version": VERSION, "stamp": stamp, "settled": settled})
        return whole.lazy()

    def _list_files(self) -> dict[str, tuple[int, int]]:
        """Id → (time of the last change in ns, bytes) of every run; what a killed process left half-written goes."""
        files: dict[str, tuple[int, int]] = {}
        with os.scandir(self._runs) as found:
            for file in found:
                run = file.name.removesuffix(".parquet")
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    if is_id(run):
                        facts = file.stat()
                        files[run] = (facts.st_mtime_ns, facts.st_size)
                    elif not file.name.endswith(PART):
                        self.problems[file.name] = "This is no file of the store."
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
            row = _read_entry(self._file(run)) | {"id": run, "file_ns": ns, "file_bytes": size}
            row |= {name: datetime.datetime.fromisoformat(row[name]) for name in ("created", "kept")}
            return {name: row[name] for name in INDEX}
        except WorkbenchError as error:
            self.problems[f"{run}.parquet"] = str(error)
        except (KeyError, TypeError, ValueError):
            self.problems[f"{run}.parquet"] = "Its entry is damaged."
        except FileNotFoundError:
            pass  # deleted since the listing
        return None

    def _fits(self, row: dict[str, Any]) -> bool:
        try:
            pl.DataFrame([row], schema=INDEX)
        except (pl.exceptions.PolarsError, TypeError):
            self.problems[f"{row['id']}.parquet"] = "Its entry is damaged."
            return False
        return True

    def _read_state(self) -> dict[str, Any]:
        try:
            with no_panic():
                state = json.loads(pl.read_parquet_metadata(self._index_file)[_STAMP])
        except Exception:  # missing, or no index: it is made from the runs (polars raises several kinds)
            return {}
        if state.get("version", 0) > VERSION:
            raise WorkbenchError(
                f"A newer workbench keeps runs in {self.folder}.", "Update the workbench to read them."
            )
        return state

    def _write_index(self, index: pl.DataFrame, state: dict[str, Any]) -> None:
        out = io.BytesIO()
        index.write_parquet(out, metadata={_STAMP: json.dumps(state)})
        try:
            write_whole(self._index_file, out.getvalue())
        except OSError:
            return  # a store that can only be read is listed anew every time


def _new_id() -> str:
    """The time to the millisecond, then 20 random bits."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03x}{secrets.randbits(20):05x}"


def _tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str):
        raise WorkbenchError("Tags are a list of words.", f"Write [{tags!r}].")
    cleaned = [tag.strip() for tag in tags]
    for tag in cleaned:
        if not tag or "," in tag or not tag.isprintable() or len(tag) > 60:
            raise WorkbenchError(f"{tag[:60]!r} is no tag.", "A tag is a word of up to 60 characters without commas.")
    return sorted(set(cleaned))


def entry_of_trace(trace: Trace, run: str, tags: Iterable[str], note: str) -> dict[str, Any]:
    """What the index will know of a run, as plain JSON."""
    header, now = trace.header, datetime.datetime.now(datetime.timezone.utc)
    figures = summary(trace)
    temperature = header.params.get("temperature")
    return {
        "version": VERSION,
        "id": run,
        "created": (_created(header.created) or now).isoformat(),
        "kept": now.isoformat(),
        **{name: getattr(header, name) for name in ("method", "target", "drafter", "dtype", "device", "promise")},
        **{name: getattr(header, name) for name in ("prompt", "max_new_tokens", "schema")},
        "seed": str(header.seed),
        "temperature": float(temperature) if isinstance(temperature, (int, float)) else None,
        "params": json.dumps(header.params),
        "text": trace.text,
        "reason": trace.footer.reason,
        "tags": _tags(tags),
        "note": note,
        "prompt_tokens": len(header.prompt_tokens),
        "pictures": len(header.pictures),
        **{name: figures[name] for name in FIGURES},
    }


def _entry_of(file: Path) -> dict[str, Any] | None:
    """The entry in a Parquet file's metadata, if it has one that this version understands.

    Raises:
        WorkbenchError: the file is no Parquet file, or a newer workbench wrote its entry.
    """
    if file.suffix != ".parquet":
        return None
    try:
        with no_panic():
            entry = json.loads(pl.read_parquet_metadata(file).get(ENTRY, "{}"))
    except FileNotFoundError:
        raise
    except Exception as error:  # polars raises several kinds, and panics on some files
        raise WorkbenchError(f"This is no Parquet file that can be read: {type(error).__name__}.") from None
    version = entry.get("version", 0) if isinstance(entry, dict) else None
    if type(version) is not int:
        raise WorkbenchError("Its entry is damaged.")
    if version > VERSION:
        raise WorkbenchError("A newer workbench kept this run.", "Update the workbench to read it.")
    return entry if version == VERSION else None


def _read_entry(path: Path) -> dict[str, Any]:
    """The entry of a run; where the file has none of this version, it is made from the trace."""
    known = _entry_of(path)
    if known is not None:
        return known
    entry = entry_of_trace(export.read_parquet(path.read_bytes()), path.stem, (), "")
    return entry | {"kept": datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc).isoformat()}


def _created(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None


def _moment(when: datetime.date) -> datetime.datetime:
    if not isinstance(when, datetime.datetime):
        when = datetime.datetime.combine(when, datetime.time())
    return when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)


def _condition(text: str) -> pl.Expr:
    """A condition on a number of the index, "tau>=2.5" say, as an expression."""
    numbers = [name for name, kind in INDEX.items() if kind in (pl.Int64, pl.Float64) and not name.startswith("file_")]
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise WorkbenchError(f"The condition {text[:60]!r} cannot be read.", "Write a figure and a number: tau>=2.5")
    name, sign, value = match.groups()
    if name not in numbers:
        raise UnknownNameError.of("figure", name, numbers)
    try:
        number = float(value)
    except ValueError:
        raise WorkbenchError(f"{value[:20]!r} is no number.", f"Write {name}{sign}2.5") from None
    return _OPERATORS[sign](pl.col(name), number)


def _files(paths: Iterable[Path | str]) -> Iterable[Path]:
    for path in map(Path, paths):
        yield from sorted(p for p in path.iterdir() if p.suffix in _KINDS and p.is_file()) if path.is_dir() else [path]
