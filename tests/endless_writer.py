"""A process that keeps runs until it is killed. Imports little: fifty of them are started."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from workbench.trace import export
from workbench.trace.store import RunStore

TRACE = Path(__file__).parent / "fixtures" / "schema-1.jsonl"
_open = Path.open


class SlowFile:
    """A file on a slow disk, so that a good part of the kills falls into a write: its bytes arrive in pieces."""

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


def keep_on_writing(folder: str, started: Any) -> None:
    """Keep runs, change them, search and delete, without an end."""
    store, trace = RunStore(folder), export.read(TRACE.read_bytes())
    Path.open = lambda self, *args, **options: SlowFile(_open(self, *args, **options))  # type: ignore[assignment]
    for i in range(10**6):
        run = store.save(trace)
        started.set()
        store.tag(run, add=["seen"])
        store.find().collect()
        if i % 3:
            store.delete(run)
