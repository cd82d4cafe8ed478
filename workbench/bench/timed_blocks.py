"""Run a list of measurements (blocks), each with a time limit, within a total time limit; save each result at once."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from workbench.core.errors import WorkbenchError, is_out_of_memory
from workbench.kernels.device_clock import synchronise
from workbench.trace.files import write_atomically

DONE, CUT, FAILED, SKIPPED = "done", "cut", "failed", "skipped"


class TimeUpError(Exception):
    """Raised when the time limit of a block, one measurement of a benchmark run, has ended."""


class SkippedBlockError(Exception):
    """Raised when a block, one measurement of a benchmark run, cannot run on this machine; the message says why."""


@dataclass
class BlockRun:
    """A benchmark run of several blocks (measurements), with the report that all blocks extend.

    Attributes:
        device: device of the measurements.
        report: the report as JSON values.
        ends_at: end of the current block's time limit, by `time.monotonic`.
        block: name of the current block.
        n_failed_parts: number of parts of the current block that raised an error.
    """

    device: torch.device
    report: dict[str, Any] = field(default_factory=lambda: {"blocks": [], "skipped": []})
    ends_at: float = float("inf")
    block: str = ""
    n_failed_parts: int = 0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run the `with` block as a part of a benchmark block: an error ends the part only; the block has failed."""
        try:
            yield
        except (TimeUpError, SkippedBlockError):
            raise
        except Exception as error:
            self.skip(f"{self.block}: {name}", _describe(error))
            self.n_failed_parts += 1

    def check(self) -> None:
        """Raise TimeUpError if the time limit of the current block has ended."""
        if time.monotonic() >= self.ends_at:
            raise TimeUpError

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Append an entry to the list `key` of the report; raise TimeUpError if the block's time limit has ended."""
        self.report.setdefault(key, []).append({"block": self.block, **entry})
        self.check()

    def skip(self, what: str, why: str) -> None:
        """Add a measurement that was not made, and the reason, to the report's list, if it is not in the list yet."""
        entry = {"block": what, "why": why}
        if entry not in self.report["skipped"]:
            self.report["skipped"].append(entry)


@dataclass(frozen=True, slots=True)
class Block:
    """A block: one measurement of a benchmark run, with a time limit.

    Attributes:
        name: name of the block in the report.
        seconds: time limit of the block, in seconds.
        measure: function that adds its results to the report.
    """

    name: str
    seconds: float
    measure: Callable[[BlockRun], None]


def run_blocks(
    blocks: Sequence[Block],
    run: BlockRun,
    total_s: float,
    path: Path | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """Run the blocks (measurements) of a benchmark one after the other; after each block, the report is saved.

    If a block raises an error or exceeds its time limit, its entries so far are kept, and the next block runs. Blocks
    that are marked as done in the report are not run again.

    Args:
        blocks: blocks in order.
        run: benchmark run with the report that is extended.
        total_s: time limit of all blocks in seconds. Blocks that would start later are skipped.
        path: file of the report; None: the report is not saved.
        progress: function that is called with a line of text before each block.

    Returns:
        The report.
    """
    ends_at = time.monotonic() + total_s
    finished = finished_blocks(run.report)
    run.report["complete"] = False
    try:
        for block in [block for block in blocks if block.name not in finished]:
            save_report(run.report, path)
            _run_block(block, run, ends_at, progress)
        run.report["complete"] = True
    finally:
        save_report(run.report, path)
    return run.report


def _run_block(block: Block, run: BlockRun, all_end_at: float, progress: Callable[[str], None]) -> None:
    """Run one block of a benchmark run, and record its status in the report."""
    start = time.monotonic()
    run.block, run.ends_at, run.n_failed_parts = block.name, min(start + block.seconds, all_end_at), 0
    progress(f"{block.name} (at most {max(0.0, run.ends_at - start):.0f} s)")
    status, why = DONE, ""
    try:
        if start >= all_end_at:
            raise SkippedBlockError("the time limit of the whole suite had passed")
        block.measure(run)
        status = FAILED if run.n_failed_parts else DONE
    except TimeUpError:
        status, why = (
            CUT,
            (f"measurement stopped at its time limit of {run.ends_at - start:.3g} s; finished measurements are kept"),
        )
    except SkippedBlockError as reason:
        status, why = SKIPPED, str(reason)
    except (Exception, SystemExit) as error:  # a kernel's compiler raises many types
        status, why = FAILED, _describe(error)
    run.report["blocks"].append(
        {
            "block": block.name,
            "status": status,
            "s": round(time.monotonic() - start, 3),
            "box_s": block.seconds,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        }
    )
    if why:
        run.skip(block.name, why)


def finished_blocks(report: dict[str, Any]) -> set[str]:
    """Return the names of a benchmark report's blocks that were measured completely."""
    return {entry["block"] for entry in report["blocks"] if entry["status"] == DONE}


def keep_finished(report: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an earlier benchmark report without the entries of blocks that were not measured completely."""
    names = finished_blocks(report)
    return {
        key: [entry for entry in value if entry["block"].partition(":")[0] in names]
        if isinstance(value, list)
        else value
        for key, value in report.items()
    }


def save_report(report: dict[str, Any], path: Path | None) -> None:
    """Write a benchmark report to its JSON file; without a file, do nothing."""
    if path is not None:
        write_atomically(path, f"{json.dumps(report, ensure_ascii=False, indent=1)}\n".encode())


def _describe(error: BaseException) -> str:
    if is_out_of_memory(error):
        return "out of memory"
    message = error.message if isinstance(error, WorkbenchError) else str(error)
    return f"{type(error).__name__}: {(message.strip() or 'no message').splitlines()[0]}"


def quartiles(values: Sequence[float], unit: str, digits: int = 4) -> dict[str, Any]:
    """Return the median, the quartiles and the number of some values under keys that start with their unit.

    Args:
        values: at least one value.
        unit: unit of the values, such as "ms".
        digits: significant digits.
    """
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    rounded = [float(f"{value:.{digits}g}") for value in (middle, low, high)]
    return {unit: rounded[0], f"{unit}_q25": rounded[1], f"{unit}_q75": rounded[2], "n": len(values)}


def time_calls(work: Callable[[], object], run: BlockRun, n: int, warm_up: int = 2) -> tuple[list[float], list[float]]:
    """Call a function several times; return for each call the seconds on the device and the seconds on the host.

    On a GPU, CUDA events measure the device time, including idle time before a late kernel; the host does not wait
    between calls. On a CPU both times are the wall time.

    Args:
        work: function that starts the work.
        run: benchmark run, whose time limit is checked between calls.
        n: number of calls.
        warm_up: number of calls before the measured ones.
    """
    for _ in range(warm_up):
        work()
    run.check()
    synchronise(run.device)
    host, marks = list[float](), list[torch.cuda.Event]()
    is_cuda = run.device.type == "cuda"
    if is_cuda:
        marks.append(_event())
    for _ in range(n):
        start = time.perf_counter()
        work()
        host.append(time.perf_counter() - start)
        if is_cuda:
            marks.append(_event())
        run.check()
    synchronise(run.device)
    if not is_cuda:
        return host, host
    return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)], host


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
