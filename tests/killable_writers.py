"""Processes that write files until they are killed. They import little, because tests start fifty of them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from workbench.bench.tables import write_rows
from workbench.cli.generate import write_trace
from workbench.trace import export
from workbench.trace.store import RunStore
from workbench.views import recorded_runs

TRACE = Path(__file__).parent / "fixtures" / "schema-1.jsonl"
ROWS = [{"name": "a" * 50, "value": i} for i in range(200)]
WRITERS: dict[str, Callable[[Path], Any]] = {
    "trace.jsonl": lambda path: write_trace(export.read(TRACE.read_bytes()), path),
    "table.csv": lambda path: write_rows(ROWS, path),
    "table.parquet": lambda path: write_rows(ROWS, path),
    "recording.json.gz": lambda path: recorded_runs.write(path, export.read(TRACE.read_bytes())),
}
"""Functions that write files of users, by file name."""
IMPORTED_BY = os.getpid()
_open = Path.open


def forkserver_context() -> Any:
    """Return a context that forks processes from a server, which has imported this file and Polars once for all.

    The server uses PYTHONPATH and not `sys.path` (CPython before 3.14), and reports no failed imports.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killable_writers"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def set_if_preloaded(found: Any) -> None:
    """Set an event if this file was imported before this process was forked."""
    if os.getpid() != IMPORTED_BY:
        found.set()


class SlowFile:
    """A file that is written slowly, piece by piece, so that many kills happen during a write."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        step = len(data) // 16 + 1
        for start in range(0, len(data), step):
            self._file.write(data[start : start + step])
            self._file.flush()
            time.sleep(0.001)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> SlowFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()


def overwrite_in_loop(kind: str, file: str, started: Any) -> None:
    """Write one file repeatedly, as the commands and the recorder do (see `WRITERS`)."""
    write, path = WRITERS[kind], Path(file)
    write(path)
    Path.open = lambda self, *args, **options: SlowFile(_open(self, *args, **options))  # type: ignore[assignment]
    started.set()
    while True:
        write(path)


def edit_store_in_loop(folder: str, started: Any) -> None:
    """Save, tag, search and delete runs in an endless loop."""
    store, trace = RunStore(folder), export.read(TRACE.read_bytes())
    Path.open = lambda self, *args, **options: SlowFile(_open(self, *args, **options))  # type: ignore[assignment]
    for i in range(10**6):
        run = store.save(trace)
        started.set()
        store.tag(run, add=["seen"])
        store.find().collect()
        if i % 3:
            store.delete(run)
