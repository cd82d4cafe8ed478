"""Measure how long searches take in a store with many saved runs."""

from __future__ import annotations

import datetime
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from workbench.bench.interleaved_measurement import Progress
from workbench.bench.markdown import markdown_table
from workbench.models.machine import describe, machine_facts
from workbench.trace import export, store
from workbench.trace.events import Footer, Header, Round, Trace
from workbench.trace.nodes import Nodes
from workbench.trace.store import RunStore
from workbench.trace.tokens import EmittedToken

PAGE = 50
SETTLED_S = 2.5
"""Seconds without a change of the folder after which a store of runs uses its search index again."""
_SYLLABLES = ("dra", "gon", "light", "house", "ri", "ver", "bo", "at", "sto", "ry", "se", "ven")
_WORDS = [a + b for a in _SYLLABLES for b in _SYLLABLES]


@dataclass(frozen=True, slots=True)
class Query:
    """A query for saved runs, the seconds of each repetition of the query, and the number of matching runs."""

    name: str
    rows: int
    seconds: list[float]


def bench_store(n_runs: int, repeats: int = 10, progress: Progress | None = None) -> list[Query]:
    """Fill a store of saved runs in a temporary folder, and measure the time of searches in it.

    Every run is a real file with an artificial text, method, tags, metrics and date. A query ends when the rows of one
    page (`PAGE`) are in memory. The first query has to build the index; a later one follows directly after a save.
    """
    with tempfile.TemporaryDirectory(prefix="workbench-runs-") as folder:
        run_store = RunStore(folder)
        for i in range(n_runs):
            if progress is not None and i % 100 == 0:
                progress(i, n_runs, "writing runs")
            _write_run(Path(folder), i)
        day = datetime.date(2026, 6, 1)
        queries: dict[str, Callable[[], pl.LazyFrame]] = {
            "newest": run_store.find,
            "one method": lambda: run_store.find(method="draft-tree"),
            "a tag": lambda: run_store.find(tags=["tag-3"]),
            "search for three words of the text": lambda: run_store.find(text="Dragon lighthouse river"),
            "search for a word that does not occur": lambda: run_store.find(text="submarine"),
            "a month": lambda: run_store.find(since=day, until=day + datetime.timedelta(days=30)),
            "a figure": lambda: run_store.find(where=["tau>=3.5"]),
            "all of these": lambda: run_store.find(
                method="draft-tree", tags=["tag-6"], text="dragon", since=day, where=["tau>=1.5"]
            ),
        }
        results = [_timed("first query (builds the index)", run_store.find, 1)]
        results += [_timed(name, query, repeats) for name, query in queries.items()]
        trace = _trace(n_runs)
        save_s, find_s = [], []
        for _ in range(repeats):
            start = time.perf_counter()
            run_store.save(trace)
            save_s.append(time.perf_counter() - start)
            find_s += _timed("", run_store.find, 1).seconds
        time.sleep(SETTLED_S)
        later = _timed("next query, seconds after the saves (updates the index)", run_store.find, 1)
        return [
            *results, Query("newest runs, directly after a save", n_runs + repeats, find_s), later,
            Query("save a run", 1, save_s),
        ]  # fmt: skip


def report(queries: list[Query], n_runs: int) -> str:
    """Return the search times of the store of runs as a table, one row per query."""
    columns: dict[str, Callable[[Query], str]] = {
        "query": lambda q: q.name,
        "runs found": lambda q: f"{q.rows:,}",
        "median ms": lambda q: f"{1e3 * statistics.median(q.seconds):.1f}",
        "slowest ms": lambda q: f"{1e3 * max(q.seconds):.1f}",
    }
    note = f"Store of {n_runs:,} runs, pages of {PAGE} runs. Measured on {describe(machine_facts())}."
    return f"{markdown_table(columns, queries)}\n\n{note}"


def _timed(name: str, query: Callable[[], pl.LazyFrame], repeats: int) -> Query:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        query().head(PAGE).collect()
        seconds.append(time.perf_counter() - start)
    return Query(name, query().select(pl.len()).collect().item(), seconds)


def _write_run(folder: Path, i: int) -> None:
    """Write an artificial run with an artificial date in the format of `RunStore`, without waiting for the disk."""
    trace = _trace(i)
    run = f"{20260101 + i % 28:08d}-{i % 10**6:06d}-{i:08x}"
    entry = store.entry_of_trace(trace, run, [f"tag-{i % 20}"], "")
    path = folder / "runs" / f"{run}.parquet"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(export.to_parquet(trace, {store.ENTRY: json.dumps(entry)}))


def _trace(i: int) -> Trace:
    words = random.Random(i).choices(_WORDS, k=190)
    created = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(minutes=40 * i)
    header = Header(
        target=f"target-{i % 3}",
        drafter="text-drafter",
        method=("autoregressive", "draft-model", "draft-tree", "prompt-lookup")[i % 4],
        params={"temperature": 0.0, "depth": 4},
        promise="exact",
        seed=i,
        prompt=" ".join(words[:30]),
        prompt_tokens=[1, 2, 3],
        prompt_text=["a", "b", "c"],
        max_new_tokens=128,
        dtype="float32",
        device="cpu",
        created=created.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    nodes = Nodes([7] * 4, [-1, 0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], ["x"] * 4, [0.5] * 4, [0.5] * 4, [1.0] * 4,
                  [None] * 4, ["accepted"] * (i % 5) + ["discarded"] * (4 - i % 5), ["draft-model"] * 4)  # fmt: skip
    emitted = [EmittedToken(7, "x", k, k + 1, "accepted", k, 3 + k, 0.5) for k in range(1 + i % 5)]
    rounds = [Round(0, "draft-model", {}, nodes, list(range(i % 5)), 7, "bonus", emitted, seconds=0.01)]
    return Trace(header, rounds, Footer("length", " ".join(words[30:]), 0.01))
