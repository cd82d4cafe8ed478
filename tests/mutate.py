"""`python tests/mutate.py`: apply each mutation of `mutations.py`, one at a time, and check that its tests fail.

The working tree is not changed: each mutation is applied to a copy in a temporary folder. First the named tests run on
the unchanged code, because a test that fails anyway detects nothing. The exit code is 0 if each mutation was killed, 1
if one survived, 2 if one is out of date: its place is missing, or its tests fail on the unchanged code, select nothing
or fail to import.

`--function` tries every operator of `mutation_operators.py` at every place of one function instead of the list.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation_operators import Function, MutationError, all_changes
from mutations import MUTATIONS, ROOT, Mutation

LIMIT_S = 240.0
"""Seconds after which the tests of a mutation count as hung."""
LIBRARIES = (
    "torch", "transformers", "transformers.models.llama.modeling_llama", "scipy.special", "polars", "httpx",
    "hypothesis.core", "nbformat.v4", "nbclient.client",
)  # fmt: skip
"""Libraries imported before the forks that test the mutations, to save time; the last three are for pytest plugins."""
PARTS = ("workbench", "tests", "notebooks", "app.py", "pyproject.toml", "requirements.txt", "README.md", ".github")
"""Files and folders that the tests of a mutation may read, besides the assets."""
KILLED, SURVIVED, OUTDATED, HUNG, UNUSABLE = "killed", "SURVIVED", "no longer applies", "HUNG", "its tests do not run"


@dataclass
class Trial:
    """A mutation being tried in a copy of the tree."""

    mutation: Mutation
    copy: Path
    path: Path
    original_text: str
    pid: int
    log: Path
    started_at: float


def main() -> int:
    """Read the command line, try the mutations, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only these mutations; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel trials, each in its own copy")
    parser.add_argument("--list", action="store_true", help="print the mutations without trying them")
    parser.add_argument("--check", action="store_true", help="only check whether each one still applies; run no test")
    parser.add_argument("--function", metavar="MODULE:NAME", help="try every operator of this function instead")
    parser.add_argument("--tests", nargs="+", default=[], metavar="TEST", help="pytest's names for --function")
    options = parser.parse_args()
    if options.function:
        if options.only or not (options.tests or options.list or options.check):
            parser.error("--function takes --tests, and no --only")
        try:
            chosen = mutations_of_function(options.function, options.tests)
        except MutationError as error:
            parser.error(str(error))
    else:
        unknown = set(options.only) - {mutation.name for mutation in MUTATIONS}
        if unknown:
            parser.error(f"no mutation is called {', '.join(sorted(unknown))}")
        chosen = [mutation for mutation in MUTATIONS if not options.only or mutation.name in options.only]
    if options.list:
        for mutation in chosen:
            print(f"{mutation.name}\n    {mutation.function} {mutation.change}: {mutation.why}")
        return 0
    rotten = {mutation.name: problem for mutation in chosen if (problem := mutation.problem())}
    for mutation in chosen:
        if mutation.name in rotten:
            print_verdict(mutation, OUTDATED, 0.0, rotten[mutation.name])
    usable = [mutation for mutation in chosen if mutation.name not in rotten]
    if options.check:
        print(f"{len(usable)} of {len(chosen)} apply.")
        return 2 if rotten else 0
    os.environ.setdefault("TRITON_INTERPRET", "1")  # PyTorch imports Triton, which reads it then
    for library in LIBRARIES:
        importlib.import_module(library)
    importlib.import_module("torch").set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies are removed
    with tempfile.TemporaryDirectory(prefix="workbench-mutate-") as folder:
        copies = [copy_tree(Path(folder) / str(i)) for i in range(max(1, min(options.jobs, len(usable))))]
        broken = run_unchanged(copies[0], usable)
        if broken:
            print(f"The tests fail on the unchanged code: nothing was tried.\n{broken}")
            return 2
        verdicts = try_mutations(usable, copies)
    print(f"\n{verdicts.count(KILLED)} of {len(chosen)} killed, {verdicts.count(SURVIVED)} survived.")
    if rotten or set(verdicts) - {KILLED, SURVIVED}:
        return 2
    return 1 if SURVIVED in verdicts else 0


def mutations_of_function(address: str, tests: Sequence[str]) -> list[Mutation]:
    """Return a mutation for every operator at every place of a function, named by its line and operator.

    Raises:
        MutationError: there is no such function.
    """
    function, found = Function.find(address, ROOT), list[Mutation]()
    lines = function.source.decode().splitlines()
    for change in all_changes(function):
        line = change.line(function)
        found.append(Mutation(f"{line}: {change}", address, change, tuple(tests), lines[line - 1].strip()))
    return found


def copy_tree(folder: Path) -> Path:
    """Copy the files that tests read, without the git repository, as in CI; recordings and models are links."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "assets").symlink_to(ROOT / "assets")
    return folder


def run_unchanged(copy: Path, mutations: Iterable[Mutation]) -> str:
    """Run the named tests on the unchanged code; return the end of their output if one fails, else ""."""
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    if not tests:
        return ""
    begun, log = time.monotonic(), copy / "unbroken.log"
    status = os.waitstatus_to_exitcode(os.waitpid(start_tests(copy, tests, log), 0)[1])
    if status:
        return "\n".join([f"exit code {status}", *log.read_text(errors="replace").splitlines()[-30:]])
    print(f"The tests pass on the unchanged code ({time.monotonic() - begun:.0f} s)\n", flush=True)
    return ""


def try_mutations(mutations: Sequence[Mutation], copies: list[Path]) -> list[str]:
    """Test mutations, one per copy at a time; print the verdict of each as soon as it is known."""
    waiting, free, running, verdicts = list(mutations), list(copies), list[Trial](), list[str]()
    try:
        while waiting or running:
            while waiting and free:
                mutation, copy = waiting.pop(0), free.pop()
                function = Function.find(mutation.function, copy)
                log, path, whole = copy / "trial.log", function.path, function.source.decode()
                path.write_text(mutation.change.apply(function), encoding="utf-8")
                pid = start_tests(copy, mutation.tests, log)
                running.append(Trial(mutation, copy, path, whole, pid, log, time.monotonic()))
            time.sleep(0.05)
            for trial in list(running):
                verdict = poll_trial(trial)
                if verdict is None:
                    continue
                running.remove(trial)
                trial.path.write_text(trial.original_text, encoding="utf-8")
                free.append(trial.copy)
                lines = trial.log.read_text(errors="replace").splitlines()
                by = next((line for line in lines if line.startswith("FAILED ")), "")
                if verdict not in (KILLED, SURVIVED):
                    by = " / ".join(lines[-3:])
                print_verdict(trial.mutation, verdict, time.monotonic() - trial.started_at, by or trial.mutation.why)
                verdicts.append(verdict)
    finally:  # the forks have their own process groups, which Ctrl-C does not reach
        for trial in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trial.pid, signal.SIGKILL)
    return verdicts


def poll_trial(trial: Trial) -> str | None:
    """Return the verdict; None while it is running."""
    pid, status = os.waitpid(trial.pid, os.WNOHANG)
    if not pid:
        if time.monotonic() - trial.started_at < LIMIT_S:
            return None
        os.killpg(trial.pid, signal.SIGKILL)
        os.waitpid(trial.pid, 0)
        return HUNG
    return {0: SURVIVED, 1: KILLED}.get(os.waitstatus_to_exitcode(status), UNUSABLE)


def start_tests(copy: Path, tests: Sequence[str], log: Path) -> int:
    """Run tests of the copy in a fork with its own process group; return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(copy)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.dont_write_bytecode = True  # its key, seconds and size, can be the same for two mutations
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry).resolve() not in (ROOT, ROOT / "tests"))]
        for module in ("mutations", "mutation_operators"):
            sys.modules.pop(module, None)
        import pytest

        imported = "ignore::pytest.PytestAssertRewriteWarning"  # for plugins that the libraries imported
        code = int(pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-W", imported, *tests]))
        used = Path(sys.modules["workbench"].__file__ or "").resolve()
        if not used.is_relative_to(copy.resolve()):
            print(f"the tests ran on {used}")
            code = 3
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def print_verdict(mutation: Mutation, verdict: str, seconds: float, words: str) -> None:
    """Print a line of the table; for a mutation of the list that was not killed, also the command to run it alone."""
    print(f"{verdict:<10} {seconds:4.0f} s  {mutation.name:<44} {words[:150]}", flush=True)
    if verdict != KILLED and mutation in MUTATIONS:
        print(f"{'':18} python tests/mutate.py --only {shlex.quote(mutation.name)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
