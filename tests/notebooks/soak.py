"""Run lessons repeatedly with different executors under a given machine load, and print a table of the results.

    python tests/notebooks/soak.py --runs 10 --load 2            # all lessons, both executors in turn
    python tests/notebooks/soak.py 01 08 --executor stock        # some lessons, as papermill and nbconvert run them
    python tests/notebooks/soak.py 10 11 --runs 1 --target FOLDER    # on another target; nothing else is set

Not a test, because it takes an hour. A lesson that fails here depends on timing or chance; see its log in `--out`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workbench.site import execution, notebook_pairs

EXECUTORS = {
    "stock": ["-m", "jupyter", "nbconvert", "--to", "notebook", "--execute", "--ExecutePreprocessor.timeout={limit}"],
    "nbmake": ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "slow", "--nbmake-timeout={limit}"],
}
"""`stock`: nbclient without changes; `nbmake`: pytest with the patient client of `workbench.site.execution`."""
BURN = "while True: sum(range(10000))"


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a lesson. `cpu_s` is processor time of executor and kernel, `seconds` wall time."""

    lesson: str
    run: int
    executor: str
    seconds: float
    cpu_s: float
    ok: bool

    def row(self) -> str:
        """Return the row of the table."""
        ok = "ok" if self.ok else "FAILED"
        return f"| {self.lesson} | {self.run} | {self.executor} | {self.seconds:.0f} | {self.cpu_s:.0f} | {ok} |"


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run processes that keep one core busy each."""
    burning = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def with_target(lesson: str, target: str, out: Path) -> Path:
    """Write a copy of a lesson with `TARGET` set in its parameters cell."""
    text = (notebook_pairs.FOLDER / f"{lesson}.ipynb").read_text(encoding="utf-8")
    path = out / f"{lesson}.ipynb"
    path.write_text(text.replace('"TARGET = None', f'"TARGET = {target!r}'), encoding="utf-8")
    return path


def execute(lesson: str, run: int, executor: str, out: Path, limit_s: int, target: str = "") -> Result:
    """Run one lesson in a new process; its output is saved under `out`."""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *(part.format(limit=limit_s) for part in EXECUTORS[executor])]
    command.append(str(with_target(lesson, target, out) if target else notebook_pairs.FOLDER / f"{lesson}.ipynb"))
    if executor == "stock":
        command += ["--output-dir", str(out), "--output", f"{lesson}-{run}"]
    log = out / f"{lesson}-{run}-{executor}.log"
    began = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=notebook_pairs.FOLDER, env=execution.environment()
        )
        _, status, used = os.wait4(process.pid, 0)  # resource usage of the process and its kernel
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    return Result(lesson, run, executor, seconds, used.ru_utime + used.ru_stime, process.returncode == 0)


def summary(results: list[Result]) -> str:
    """Return a table with one line per lesson and executor: runs, successes, and times."""
    lines = ["| lesson | executor | runs | ok | median s | longest s | median CPU s |", "|---|---|--:|--:|--:|--:|--:|"]
    for lesson, executor in dict.fromkeys((r.lesson, r.executor) for r in results):
        mine = [r for r in results if (r.lesson, r.executor) == (lesson, executor)]
        seconds = [r.seconds for r in mine]
        lines.append(
            f"| {lesson} | {executor} | {len(mine)} | {sum(r.ok for r in mine)} | {statistics.median(seconds):.0f} | "
            f"{max(seconds):.0f} | {statistics.median(r.cpu_s for r in mine):.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the lessons named on the command line. Return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", help="names of lessons or prefixes of them (default: all)")
    parser.add_argument("--runs", type=int, default=10, help="runs of each lesson (default 10)")
    parser.add_argument("--load", type=int, default=0, help="processes that keep one core busy each (default 0)")
    parser.add_argument("--executor", choices=[*EXECUTORS, "both"], default="both", help="both: alternate between them")
    parser.add_argument("--target", default="", help="Hub id or folder of another target")
    parser.add_argument("--limit", type=int, default=execution.LIMIT_S, help="time limit of one cell in seconds")
    parser.add_argument("--out", type=Path, default=notebook_pairs.ROOT / "dist" / "soak", help="outputs and logs")
    given = parser.parse_args()
    chosen = [name for name in notebook_pairs.names() if not given.lessons or name.startswith(tuple(given.lessons))]
    executors = list(EXECUTORS) if given.executor == "both" else [given.executor]
    print("| lesson | run | executor | seconds | CPU s | |\n|---|--:|---|--:|--:|---|", flush=True)
    results: list[Result] = []
    with busy(given.load):
        for run in range(given.runs):
            for lesson in chosen:
                results.append(
                    execute(lesson, run, executors[run % len(executors)], given.out, given.limit, given.target)
                )
                print(results[-1].row(), flush=True)
    print("\n" + summary(results))
    return 0 if all(r.ok for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
