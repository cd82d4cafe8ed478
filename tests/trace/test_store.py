"""Saved runs: complete or absent, searchable, and readable across versions."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from filelock import FileLock
from killable_writers import edit_store_in_loop, forkserver_context, set_if_preloaded
from traces import FIXTURES, HOSTILE, make_hostile_trace

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.trace import export, metrics
from workbench.trace import store as store_module
from workbench.trace.entries import ENTRY, INDEX, VERSION, entry_of_trace
from workbench.trace.events import SCHEMA_VERSION, Trace
from workbench.trace.runindex import RunIndex
from workbench.trace.store import RunStore


def recorded(**changes: Any) -> Trace:
    """Return a trace of three rounds; `changes` are set in its header."""
    trace = export.read((FIXTURES.parent / "schema-1.jsonl").read_bytes())
    trace.header = dataclasses.replace(trace.header, **changes)
    return trace


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "store")


def ids(store: RunStore, **filters: Any) -> list[str]:
    return store.find(**filters).select("id").collect()["id"].to_list()


def test_empty_store_needs_no_folder(store: RunStore) -> None:
    assert store.find().collect().schema == INDEX
    assert not store.folder.exists()


def test_saved_run_is_read_unchanged(store: RunStore) -> None:
    trace = recorded()
    run = store.save(trace, tags=["b", " a "], note="first")
    assert store.load(run) == trace
    row = store.find().collect().row(0, named=True)
    assert (row["id"], row["tags"], row["note"], row["method"]) == (run, ["a", "b"], "first", trace.header.method)
    assert row["tau"] == metrics.tau(trace.rounds)
    assert store.entry(run)["tokens"] == len(trace.token_ids)


def test_hostile_texts_are_saved_and_found_unchanged(store: RunStore) -> None:
    run = store.save(make_hostile_trace(), tags=["<b>"], note="".join(HOSTILE))
    assert store.load(run) == make_hostile_trace()
    assert ids(store, text="</script><img") == [run]
    assert ids(store, tags=["<b>"]) == [run]


def test_filters(store: RunStore) -> None:
    day = "2026-03-0{}T12:00:00+0100"
    plain = store.save(recorded(created=day.format(1), method="autoregressive", prompt="The LIGHTHOUSE (old)"))
    tree = store.save(recorded(created=day.format(2), method="draft-tree", drafter="small"), tags=["x", "y"])
    chain = store.save(recorded(created=day.format(3), method="draft-model", target="other"), ["x"], "Äpfel")
    date = datetime.date
    assert ids(store) == [chain, tree, plain], "newest first"
    assert ids(store, method="draft-tree") == [tree]
    assert ids(store, method=["draft-tree", "autoregressive"]) == [tree, plain]
    assert ids(store, target="other") == [chain]
    assert ids(store, drafter="small") == [tree]
    assert ids(store, tags=["x"]) == [chain, tree]
    assert ids(store, tags=["x", "y"]) == [tree]
    assert ids(store, text="lighthouse (OLD)") == [plain], "every word, regardless of case, and no patterns"
    assert ids(store, text="äpfel") == [chain]
    assert ids(store, text="lighthouse äpfel") == []
    assert ids(store, since=date(2026, 3, 2)) == [chain, tree]
    assert ids(store, until=date(2026, 3, 2)) == [tree, plain], "the whole day"
    assert ids(store, since=datetime.datetime(2026, 3, 2, 11, 30)) == [chain]
    assert ids(store, where=["tau>=1", "prompt_tokens<100000"], tags=["y"]) == [tree]
    assert ids(store, where=["tau>1000"]) == []


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("tau", "cannot be read"),
        ("tau>two", "is not a number"),
        ("tua>2", "Did you mean 'tau'"),
        ("prompt>2", "no metric"),
    ],
)
def test_wrong_condition_is_refused_with_a_reason(store: RunStore, condition: str, says: str) -> None:
    with pytest.raises(WorkbenchError, match=says) as error:
        store.find(where=[condition])
    assert error.value.remedy or isinstance(error.value, UnknownNameError)


def test_tags_and_notes_change_without_changing_the_trace(store: RunStore) -> None:
    trace = recorded()
    run = store.save(trace, ["a"])
    assert store.tag(run, add=["c", "b"], remove=["a"]) == ["b", "c"]
    store.note(run, "looked at")
    assert store.find().select("tags", "note").collect().row(0) == (["b", "c"], "looked at")
    assert store.load(run) == trace
    for wrong in ("", "a,b", "x" * 61, "line\nbreak"):
        with pytest.raises(WorkbenchError, match="is not a valid tag"):
            store.tag(run, add=[wrong])
    assert store.entry(run)["tags"] == ["b", "c"]


def slowly(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: time.sleep(0.02)) -> None:
    """Call `then` between reading an entry and writing its file."""
    read = store_module.read_entry

    def reading(path: Path) -> dict[str, Any]:
        entry = read(path)
        then()
        return entry

    monkeypatch.setattr(store_module, "read_entry", reading)


def test_tags_added_at_the_same_time_are_all_saved(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand for apps: the lock is the system's, on a file that each opens separately."""
    run = store.save(recorded())
    slowly(monkeypatch)
    threads = [threading.Thread(target=RunStore(store.folder).tag, args=(run, [f"t{i}"])) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    monkeypatch.undo()
    assert store.entry(run)["tags"] == [f"t{i}" for i in range(8)]


def test_tag_does_not_restore_a_deleted_run(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, began, deleted = store.save(recorded()), threading.Event(), threading.Event()
    slowly(monkeypatch, lambda: (began.set(), deleted.wait(0.2)))
    tagging = threading.Thread(target=store.tag, args=(run, ["late"]))
    tagging.start()
    assert began.wait(60)
    RunStore(store.folder).delete(run)
    deleted.set()
    tagging.join(60)
    assert not store.has(run)
    assert ids(store) == []


def test_file_deleted_by_hand_is_not_restored(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.save(recorded())
    slowly(monkeypatch, lambda: (store.folder / "runs" / f"{run}.parquet").unlink())
    with pytest.raises(WorkbenchError, match="No run"):
        store.note(run, "late")
    assert not store.has(run)


def test_store_locked_by_another_process_reports_it(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.save(recorded())
    monkeypatch.setattr(store_module, "LOCK_S", 0.05)
    with FileLock(store.folder / "lock"), pytest.raises(WorkbenchError, match="Another process"):
        store.delete(run)
    assert store.has(run)


def test_deleted_runs_are_gone_and_a_wrong_id_deletes_nothing(store: RunStore) -> None:
    one, two = store.save(recorded()), store.save(recorded())
    with pytest.raises(WorkbenchError, match="No run"):
        store.delete(one, "20200101-000000-00000000")
    assert set(ids(store)) == {one, two}
    store.delete(one)
    assert ids(store) == [two]
    with pytest.raises(WorkbenchError, match="is not a run id"):
        store.load("../../etc/passwd")


def test_index_follows_files_added_by_others(store: RunStore, tmp_path: Path) -> None:
    """Another process, a manual copy, or a lost index: the files are authoritative."""
    ours = store.save(recorded())
    assert ids(store) == [ours]
    theirs = RunStore(store.folder).save(recorded(), ["theirs"])
    assert set(ids(store)) == {ours, theirs}
    elsewhere = RunStore(tmp_path / "elsewhere")
    copied = elsewhere.save(recorded())
    name = f"{copied}.parquet"
    (store.folder / "runs" / name).write_bytes((elsewhere.folder / "runs" / name).read_bytes())
    (store.folder / "runs" / f"{ours}.parquet").unlink()
    assert set(ids(store)) == {theirs, copied}
    (store.folder / "index.parquet").write_bytes(b"PAR1 no longer an index")
    assert set(ids(store)) == {theirs, copied}


def test_settled_index_is_used_unchanged(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.save(recorded())
    past = time.time() - 3600
    os.utime(store.folder / "runs", (past, past))
    assert ids(store) == [run]
    monkeypatch.setattr(RunIndex, "_list_files", lambda self: pytest.fail("the folder was listed again"))
    assert ids(store) == [run]


def test_unreadable_file_is_named_and_other_runs_are_found(store: RunStore) -> None:
    run = store.save(recorded())
    runs = store.folder / "runs"
    (runs / "20200101-000000-00000000.parquet").write_bytes(b"PAR1 junk")
    (runs / "20200101-000000-00000001.parquet").write_bytes(
        export.to_parquet(recorded(), {ENTRY: json.dumps(store.entry(run) | {"tags": [[1]], "tau": "high"})})
    )
    (runs / "holiday.jpg").write_bytes(b"x")
    assert ids(store) == [run]
    assert set(store.problems) == {
        "20200101-000000-00000000.parquet", "20200101-000000-00000001.parquet", "holiday.jpg"
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_export_and_import(store: RunStore, tmp_path: Path, kind: Any) -> None:
    traces = [recorded(seed=i) for i in range(2)]
    runs = [store.save(t, [f"seed-{t.header.seed}"], "kept") for t in traces]
    files = store.export(runs, tmp_path / "out", kind)
    other = RunStore(tmp_path / "other")
    done = other.import_(tmp_path / "out", tags=["imported"])
    assert [other.load(run) for run in done.added] == traces
    tags = {tuple(t) for t in other.find().select("tags").collect()["tags"].to_list()}
    if kind == "parquet":
        assert done.added == runs
        assert tags == {("imported", "seed-0"), ("imported", "seed-1")}
        assert other.entry(runs[0])["note"] == "kept"
        assert other.import_(*files).duplicates == runs
    else:
        assert tags == {("imported",)}
    single = store.export(runs[:1], tmp_path / f"one.{kind}")
    assert export.read(single[0].read_bytes()) == traces[0]
    with pytest.raises(WorkbenchError, match="A single file cannot hold"):
        store.export(runs, tmp_path / "two.parquet")


def test_import_names_unreadable_files(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.jsonl").write_text("no trace")
    (tmp_path / "in" / "good.jsonl").write_text(export.to_json_lines(recorded()))
    done = store.import_(tmp_path / "in", tmp_path / "missing.parquet")
    assert len(done.added) == 1
    assert {Path(name).name for name in done.problems} == {"bad.jsonl", "missing.parquet"}


# -- versions ------------------------------------------------------------------------------------------------------


def test_file_of_schema_1_is_read_and_saved(store: RunStore) -> None:
    """Written by the workbench before traces had images."""
    old = FIXTURES.parent / "schema-1.parquet"
    trace = export.read(old.read_bytes())
    assert trace == recorded()
    assert (trace.header.schema, trace.header.pictures, trace.attribution) == (1, [], None)
    assert [r.vision for r in trace.rounds] == [{}] * 3
    (run,) = store.import_(old).added
    assert store.load(run) == trace


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_of_schema_4_is_read_unchanged(kind: str, store: RunStore) -> None:
    """Written by the workbench before passes had probes; otherwise equal to today's synthetic chain."""
    old = FIXTURES.parent / f"schema-4.{kind}"
    trace = export.read(old.read_bytes())
    wire = json.loads((FIXTURES / "chain.json").read_text())
    wire["header"]["schema"] = 4
    wire["header"]["rules"] = json.loads(json.dumps(trace.to_wire()["header"]["rules"]))  # with the texts of that time
    assert trace == Trace.from_wire(wire)
    assert {"ratio", "residual"} <= set(trace.header.rules)
    assert all(r.probes == [] for r in trace.rounds)
    (run,) = store.import_(old).added
    assert store.load(run) == trace


def test_run_without_an_entry_gets_one(store: RunStore) -> None:
    """Exported traces from before the store have no entry: version 0."""
    run = "20260101-000000-0a1b2c3d"
    (store.folder / "runs").mkdir(parents=True)
    old = FIXTURES.parent / "schema-1.parquet"
    (store.folder / "runs" / f"{run}.parquet").write_bytes(old.read_bytes())
    assert ids(store, where=["tau>=1"]) == [run]
    assert store.tag(run, add=["old"]) == ["old"]
    assert ids(store, tags=["old"]) == [run]


def with_metadata(path: Path, **changes: str) -> None:
    known = {**pl.read_parquet_metadata(path), **changes}
    known.pop("ARROW:schema", None)
    out = io.BytesIO()
    pl.read_parquet(path).write_parquet(out, metadata=known)
    path.write_bytes(out.getvalue())


def test_newer_trace_is_refused_with_the_reason(store: RunStore, tmp_path: Path) -> None:
    run = store.save(recorded())
    path = store.folder / "runs" / f"{run}.parquet"
    wire = json.loads(pl.read_parquet_metadata(path)["workbench.run"])
    newer = wire | {"schema": SCHEMA_VERSION + 1, "something_new": [1]}
    with_metadata(path, **{"workbench.run": json.dumps(newer)})
    with pytest.raises(WorkbenchError, match=f"has schema version {SCHEMA_VERSION + 1}") as error:
        store.load(run)
    assert error.value.remedy == "Update the workbench to open this trace."
    assert ids(store) == [run], "its entry can still be read"
    assert "Update the workbench" in store_problem(RunStore(tmp_path / "x"), path)


def store_problem(store: RunStore, path: Path) -> str:
    return next(iter(store.import_(path).problems.values()))


def test_newer_entry_and_newer_index_are_refused(store: RunStore) -> None:
    run, other = store.save(recorded()), store.save(recorded())
    path = store.folder / "runs" / f"{run}.parquet"
    with_metadata(path, **{ENTRY: json.dumps(store.entry(run) | {"version": VERSION + 1})})
    with pytest.raises(WorkbenchError, match="newer version of the workbench"):
        store.entry(run)
    assert ids(store) == [other]
    assert "newer version of the workbench" in store.problems[path.name]
    with_metadata(store.folder / "index.parquet", **{"workbench.index": json.dumps({"version": VERSION + 1})})
    with pytest.raises(WorkbenchError, match="Update the workbench"):
        store.find()


# -- writes --------------------------------------------------------------------------------------------------------

KILLS = 50


def test_fifty_writers_import_polars_once() -> None:
    context = forkserver_context()
    found = context.Event()
    writer = context.Process(target=set_if_preloaded, args=(found,))
    writer.start()
    writer.join()
    assert found.is_set()


@pytest.mark.slow
def test_writer_killed_at_any_point_leaves_only_complete_runs(store: RunStore) -> None:
    """`kill -9`, fifty times, at random points while writing, tagging, indexing and deleting."""
    context = forkserver_context()
    dice, expected, checked, cut_short = random.Random(6), recorded(), set(), 0
    for _ in range(KILLS):
        started = context.Event()
        writer = context.Process(target=edit_store_in_loop, args=(str(store.folder), started))
        writer.start()
        assert started.wait(120), "the writer never began"
        time.sleep(dice.uniform(0, 0.1))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert writer.exitcode == -signal.SIGKILL, "it was killed while it wrote"
        found = set(ids(store))
        assert not store.problems
        assert {path.stem for path in (store.folder / "runs").glob("*.parquet")} == found
        assert all(store.load(run) == expected for run in found - checked)
        checked = found
        cut_short += len(list((store.folder / "runs").glob(".*.part")))
    assert all(store.load(run) == expected for run in checked)
    assert checked, "no run was saved before a kill, so that nothing was tested"
    assert cut_short, "no kill happened during a write, so that nothing was tested"


def test_failing_write_keeps_the_old_files(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, really, here = store.save(recorded(), ["before"]), os.fsync, threading.get_ident()

    def full(fd: int) -> None:
        if threading.get_ident() == here:  # other parts of this process may be writing, too
            raise OSError(28, "No space left on device")
        really(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkbenchError, match="No space left"):
        store.tag(run, add=["after"])
    with pytest.raises(WorkbenchError, match="No space left"):
        store.save(recorded())
    monkeypatch.undo()
    assert [p.name for p in (store.folder / "runs").iterdir()] == [f"{run}.parquet"]
    assert store.entry(run)["tags"] == ["before"]


def test_partial_files_of_a_killed_writer_are_removed_after_an_hour(store: RunStore) -> None:
    run = store.save(recorded())
    old, young = (store.folder / "runs" / f".{run}.parquet.{n}.part" for n in ("0000", "1111"))
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    assert ids(store) == [run]
    assert not old.exists()
    assert young.exists(), "it may be in use"


def test_read_only_store_can_still_be_searched(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.save(recorded())
    for writer in ("runindex", "store"):
        monkeypatch.setattr(
            f"workbench.trace.{writer}.write_atomically", lambda *_: (_ for _ in ()).throw(OSError(30, "read-only"))
        )
    assert ids(store) == [run]
    with pytest.raises(WorkbenchError, match="read-only"):
        store.save(recorded())


def test_one_bad_file_does_not_stop_an_import(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name in ("a", "b", "c", "e"):
        (place / f"{name}.jsonl").write_text(export.to_json_lines(recorded()))
    lines = (place / "c.jsonl").read_text().splitlines(keepends=True)
    (place / "c.jsonl").write_text("".join(lines[:2]))
    (place / "d.jsonl").mkdir()

    def fails(trace: Trace, *more: Any) -> Any:
        if next(calls) == 1:
            raise OverflowError("unexpected value")
        return entry_of_trace(trace, *more)

    calls = iter(range(99))
    monkeypatch.setattr("workbench.trace.store.entry_of_trace", fails)
    done = store.import_(*sorted(place.iterdir()))
    assert len(done.added) == 3
    assert {Path(name).name for name in done.problems} == {"b.jsonl"}
    assert list(done.notes.values()) == [export.INCOMPLETE]
    assert [Path(name).name for name in done.notes] == ["c.jsonl"]
