"""Order of the test files for xdist: the longest first, and files that wait mixed with files that compute.

xdist itself orders by the number of tests, so that files with a few long tests come last and one worker ends minutes
after the others. Durations come from `durations.json`, written by `pytest --record-durations`; the time
of a file without a record is estimated from the kinds of its tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

DURATIONS_FILE = Path(__file__).with_name("durations.json")
"""Seconds of each test file in the last recorded run."""
NOTEBOOK_S, WAITING_S, SLOW_S, QUICK_S = 20.0, 6.0, 4.0, 0.2
"""Estimated seconds of a test without a record: a notebook, a test that waits for a browser or processes, a slow test,
any other test."""


def file_of(item: pytest.Item) -> str:
    """Return the part of a test's id that xdist keeps on one worker with `--dist loadfile`."""
    return item.nodeid.partition("::")[0]


def is_waiting(item: pytest.Item) -> bool:
    """Return whether a test waits for other processes: a browser, a notebook kernel, servers."""
    marked = item.get_closest_marker("browser") or item.get_closest_marker("processes")
    return bool(marked) or file_of(item).endswith(".ipynb")


def estimate_seconds(item: pytest.Item) -> float:
    """Return the estimated duration of a test, in seconds, by its kind."""
    if file_of(item).endswith(".ipynb"):
        return NOTEBOOK_S
    return WAITING_S if is_waiting(item) else SLOW_S if item.get_closest_marker("slow") else QUICK_S


def order_files(files: Mapping[str, tuple[float, bool]]) -> list[str]:
    """Return file names in the order in which workers get them.

    Args:
        files: for each file its seconds, and whether it spends them waiting.

    Returns:
        File names, the longest first within each of the two kinds. The next file is always of the kind with the larger
        share of its total time left.
    """
    kinds = [sorted((name for name in files if files[name][1] is kind), key=lambda name: (-files[name][0], name))
             for kind in (True, False)]  # fmt: skip
    whole = [sum(files[name][0] for name in kind) for kind in kinds]
    left, order = list(whole), list[str]()
    while any(kinds):
        kind = max((i for i in (0, 1) if kinds[i]), key=lambda i: left[i] / whole[i])
        order.append(kinds[kind].pop(0))
        left[kind] -= files[order[-1]][0]
    return order


def load_durations() -> dict[str, float]:
    """Return the recorded seconds of each file; empty if there is no record."""
    return json.loads(DURATIONS_FILE.read_text(encoding="utf-8")) if DURATIONS_FILE.is_file() else {}


def sort_tests(items: list[pytest.Item]) -> None:
    """Sort tests by the order of their files; the order within a file does not change."""
    record = load_durations()
    files: dict[str, tuple[float, bool]] = {}
    for item in items:
        so_far, waited = files.get(file_of(item), (0.0, False))
        files[file_of(item)] = so_far + estimate_seconds(item), waited or is_waiting(item)
    files = {name: (record.get(name, assumed), waited) for name, (assumed, waited) in files.items()}
    place = {name: i for i, name in enumerate(order_files(files))}
    items.sort(key=lambda item: place[file_of(item)])


class DurationRecorder:
    """Add up the seconds of each file and write them to `DURATIONS_FILE` when the session ends
    (`--record-durations`)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of a set-up, call or tear-down to its file."""
        name = report.nodeid.partition("::")[0]
        self.seconds[name] = self.seconds.get(name, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the durations; files that were not run keep their record."""
        rows = {name: round(seconds, 1) for name, seconds in sorted((load_durations() | self.seconds).items())}
        DURATIONS_FILE.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
