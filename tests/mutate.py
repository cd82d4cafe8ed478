"""`python tests/mutate.py`: break the code in each way of `mutations.py`, one at a time, and see whether tests notice.

The working tree is never touched: every break is made in a copy of it, in a temporary folder. First the named tests are
run unbroken, because a test that fails anyway notices nothing. The exit code is 0 if each mutation was killed, 1 if one
survived, 2 if the list has rotted: a text that is not there exactly once, tests that fail unbroken, run none or break
in importing.
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

from mutations import MUTATIONS, ROOT, Mutation

LIMIT_S = 240.0
"""Seconds after which the tests of a mutation count as hung."""
LIBRARIES = ("torch", "transformers", "transformers.models.llama.modeling_llama", "scipy.special", "polars", "httpx")
"""Imported once: each mutation is then tried in a fork, which takes seconds less."""
PARTS = ("workbench", "tests", "notebooks", "app.py", "pyproject.toml", "requirements.txt", "README.md", ".github")
"""What the tests of a mutation may read, besides the assets."""
KILLED, SURVIVED, GONE, HUNG, UNUSABLE = "killed", "SURVIVED", "no longer applies", "HUNG", "its tests do not run"


@dataclass
class Trial:
    """A mutation being tried in a copy of the tree."""

    mutation: Mutation
    copy: Path
    whole: str
    pid: int
    log: Path
    begun: float


def main() -> int:
    """Read the command line, try the mutations, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only these; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once, each in a copy of its own")
    parser.add_argument("--list", action="store_true", help="print the list and try nothing")
    parser.add_argument("--check", action="store_true", help="only say whether each one still applies; run no test")
    options = parser.parse_args()
    unknown = set(options.only) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        parser.error(f"no mutation is called {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in MUTATIONS if not options.only or mutation.name in options.only]
    if options.list:
        for mutation in chosen:
            print(f"{mutation.name}\n    {mutation.file}: {mutation.why}")
        return 0
    rotten = [mutation for mutation in chosen if mutation.count() != 1 or mutation.lost()]
    for mutation in rotten:
        there = f"its text is there {mutation.count()} times in {mutation.file}"
        say(mutation, GONE, 0.0, there if mutation.count() != 1 else f"no test is called {mutation.lost()[0]}")
    if options.check:
        print(f"{len(chosen) - len(rotten)} of {len(chosen)} apply.")
        return 2 if rotten else 0
    chosen = [mutation for mutation in chosen if mutation not in rotten]
    if not all(test.endswith(".js") for mutation in chosen for test in mutation.tests):
        for library in LIBRARIES:
            importlib.import_module(library)
        importlib.import_module("torch").set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copies go, whoever ends it
    with tempfile.TemporaryDirectory(prefix="workbench-mutate-") as folder:
        copies = [copied(Path(folder) / str(i)) for i in range(max(1, min(options.jobs, len(chosen))))]
        broken = unbroken(copies[0], chosen)
        if broken:
            print(f"The tests fail unbroken: nothing was tried.\n{broken}")
            return 2
        verdicts = tried(chosen, copies)
    print(f"\n{verdicts.count(KILLED)} of {len(chosen) + len(rotten)} killed, {verdicts.count(SURVIVED)} survived.")
    if rotten or set(verdicts) - {KILLED, SURVIVED}:
        return 2
    return 1 if SURVIVED in verdicts else 0


def copied(folder: Path) -> Path:
    """A copy of what tests read, without a git repository (CI's copy has none); recordings and models are links."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "assets").symlink_to(ROOT / "assets")
    return folder


def unbroken(copy: Path, mutations: Iterable[Mutation]) -> str:
    """What fails of the named tests where nothing is broken; empty where all pass."""
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    begun = time.monotonic()
    for some in ([t for t in tests if t.endswith(".js")], [t for t in tests if not t.endswith(".js")]):
        if some:
            log = copy / "unbroken.log"
            status = os.waitstatus_to_exitcode(os.waitpid(started(copy, some, log), 0)[1])
            if status:
                return "\n".join([f"exit code {status}", *log.read_text(errors="replace").splitlines()[-30:]])
    print(f"{len(tests)} tests pass unbroken ({time.monotonic() - begun:.0f} s)\n", flush=True)
    return ""


def tried(mutations: Sequence[Mutation], copies: list[Path]) -> list[str]:
    """Try them, as many at once as there are copies; a line is printed for each as soon as it is known."""
    waiting, free, running, verdicts = list(mutations), list(copies), list[Trial](), list[str]()
    try:
        while waiting or running:
            while waiting and free:
                mutation, copy = waiting.pop(0), free.pop()
                log, whole = copy / "trial.log", (copy / mutation.file).read_text(encoding="utf-8")
                (copy / mutation.file).write_text(whole.replace(mutation.old, mutation.new), encoding="utf-8")
                running.append(Trial(mutation, copy, whole, started(copy, mutation.tests, log), log, time.monotonic()))
            time.sleep(0.05)
            for trial in list(running):
                verdict = ended(trial)
                if verdict is None:
                    continue
                running.remove(trial)
                (trial.copy / trial.mutation.file).write_text(trial.whole, encoding="utf-8")
                free.append(trial.copy)
                lines = trial.log.read_text(errors="replace").splitlines()
                by = next((line for line in lines if line.startswith(("FAILED ", "not ok "))), "")
                if verdict not in (KILLED, SURVIVED):
                    by = " / ".join(lines[-3:])
                say(trial.mutation, verdict, time.monotonic() - trial.begun, by or trial.mutation.why)
                verdicts.append(verdict)
    finally:  # they have a group of their own, which Ctrl-C does not reach
        for trial in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trial.pid, signal.SIGKILL)
    return verdicts


def ended(trial: Trial) -> str | None:
    """The verdict; None while it is running."""
    pid, status = os.waitpid(trial.pid, os.WNOHANG)
    if not pid:
        if time.monotonic() - trial.begun < LIMIT_S:
            return None
        os.killpg(trial.pid, signal.SIGKILL)
        os.waitpid(trial.pid, 0)
        return HUNG
    return {0: SURVIVED, 1: KILLED}.get(os.waitstatus_to_exitcode(status), UNUSABLE)


def started(copy: Path, tests: Sequence[str], log: Path) -> int:
    """Run tests in a fork with its own process group, in the copy; returns its id."""
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
        sys.dont_write_bytecode = True  # two breaks of one second and one size would share their bytecode
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        if tests[0].endswith(".js"):
            os.execvp("node", ["node", "--test", "--test-reporter=tap", *tests])
        sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry).resolve() not in (ROOT, ROOT / "tests"))]
        sys.modules.pop("mutations", None)
        import pytest

        imported = "ignore::pytest.PytestAssertRewriteWarning"  # plugins that came with the libraries
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


def say(mutation: Mutation, verdict: str, seconds: float, words: str) -> None:
    """A line of the table, with the command that tries it alone where it was not killed."""
    print(f"{verdict:<10} {seconds:4.0f} s  {mutation.name:<44} {words[:150]}", flush=True)
    if verdict != KILLED:
        print(f"{'':18} python tests/mutate.py --only {shlex.quote(mutation.name)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
