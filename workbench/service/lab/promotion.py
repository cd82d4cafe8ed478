"""A head of the lab drafts in the app: a copy in a folder of its own, as `--head` takes it, and a note in its run."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.engine.checksums import NAME, what_is_wrong
from workbench.service.lab.runs import DONE, PROMOTED_AT, LabRun
from workbench.trace.files import write_whole

Takes = Callable[[str, bool], int]
"""`Backend.prefer_heads`: draft with the heads in a folder, or no longer; returns how many running generations do."""


def promote(run: LabRun, runs: Sequence[LabRun], heads: Path, takes: Takes) -> dict[str, Any]:
    """Let a run's head, as it was last saved, draft.

    Args:
        run: the run.
        runs: all of them: of each kind of head for a target one drafts.
        heads: folder of the copies.
        takes: lets the backend draft with it.

    Returns:
        {"folder", "step", "switched"}: where it is, and how many generations that go on draft with it now.

    Raises:
        WorkbenchError: there is no checkpoint yet, or it is damaged or does not suit the target.
    """
    step = run.saved_step
    folder = _copied(run, heads, step)
    try:
        switched = takes(str(folder), True)
    except WorkbenchError as problem:
        if promoted_at(run) == str(folder):  # it drafted until now
            (run.folder / PROMOTED_AT).unlink()
        shutil.rmtree(folder, ignore_errors=True)
        remedy = f"{problem.remedy} Or train on, and promote the next checkpoint."
        raise type(problem)(problem.message, remedy) from None
    for other in runs:
        same = all(other.asked[what] == run.asked[what] for what in ("head", "target"))
        if same and (before := promoted_at(other)) != str(folder):
            _end(other, before, heads, takes)
    found = {"folder": str(folder), "step": step, "switched": switched}
    write_whole(run.folder / PROMOTED_AT, (json.dumps(found) + "\n").encode())
    return found


def take_back(run: LabRun, heads: Path, takes: Takes) -> dict[str, Any]:
    """A run's head drafts no longer; returns what `promote` does, of nothing."""
    _end(run, promoted_at(run), heads, takes)
    return {"folder": "", "step": 0, "switched": 0}


def promoted_at(run: LabRun) -> str:
    """The folder of a run's head that drafts; empty where none does, or its note cannot be read."""
    try:
        folder = json.loads((run.folder / PROMOTED_AT).read_text(encoding="utf-8"))["folder"]
        return folder if isinstance(folder, str) else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def again(runs: Sequence[LabRun], takes: Takes) -> list[str]:
    """Let the heads draft whose runs say that they are promoted; a run whose head no longer can says so no more.

    Returns:
        The folders of those that do.
    """
    found: list[str] = []
    for run in runs:
        if folder := promoted_at(run):
            try:
                if not _is_whole(Path(folder)):
                    raise WorkbenchError(f"{folder} is gone or damaged.", "Promote the run's head again.")
                takes(folder, True)
                found.append(folder)
            except WorkbenchError:
                (run.folder / PROMOTED_AT).unlink()
    return found


def _end(run: LabRun, folder: str, heads: Path, takes: Takes) -> None:
    """What was promoted of a run drafts no longer, and its copy goes; another folder that a note names stays."""
    (run.folder / PROMOTED_AT).unlink(missing_ok=True)
    if folder:
        takes(folder, False)
        if Path(folder).resolve().parent == heads.resolve():
            shutil.rmtree(folder, ignore_errors=True)


def _copied(run: LabRun, heads: Path, step: int) -> Path:
    """A copy of the head: training saves the next one into the same folder."""
    head = run.head
    if head is None:
        raise WorkbenchError("There is no checkpoint of this run yet.", "Wait for the first: training soon saves one.")
    heads.mkdir(parents=True, exist_ok=True)
    for left in (2, 1, 0):
        with (
            contextlib.suppress(OSError),  # also what training replaces while it is copied
            tempfile.TemporaryDirectory(prefix=".", dir=heads, ignore_cleanup_errors=True) as beside,
        ):
            copy = Path(beside) / head.name
            shutil.copytree(head, copy)
            if _is_whole(copy):
                # Nets are known by the names of their folders: other weights have another name.
                folder = heads / f"{head.name}-{run.id[-8:]}-step-{step}-{(copy / NAME).read_text()[:6]}"
                if not _is_whole(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                    copy.replace(folder)
                return folder
        time.sleep(0.2 if left else 0.0)  # it was being saved at that moment, or it is damaged
    raise WorkbenchError(
        f"The head of step {step} is damaged: its weights do not match their checksum.",
        "Train a new one: this run has done its steps."
        if run.state == DONE
        else "Resume the run, or train on: the next checkpoint replaces it.",
    )


def _is_whole(head: Path) -> bool:
    """Whether weights are those that were saved."""
    try:
        wanted, _, name = (head / NAME).read_text(encoding="utf-8").strip().partition("  ")
        return not what_is_wrong(head / name, wanted)
    except (OSError, ValueError):
        return False
