"""Promote a head from the Lab tab, so that the app drafts with a copy of it, as with the option `--head`.

A file in the training run's folder records the promotion.
"""

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
from workbench.models.checksums import SUMS_FILE, checksum_problem
from workbench.service.lab.runs import DONE, PROMOTED_AT, LabRun
from workbench.trace.files import write_atomically

PreferHeads = Callable[[str, bool], int]
"""Type of `Backend.prefer_heads`: function (folder, on).

It makes the backend draft with the heads in a folder, or stops that, and returns the number of running generations that
change their heads.
"""


def promote(run: LabRun, runs: Sequence[LabRun], heads: Path, prefer_heads: PreferHeads) -> dict[str, Any]:
    """Make the app draft with the last checkpoint of the head of a training run.

    Args:
        run: training run of the head.
        runs: all training runs; the app stops drafting with an earlier head of the same kind and target.
        heads: folder for copies of promoted heads.
        prefer_heads: function that makes the backend draft with the head.

    Returns:
        {"folder", "step", "switched"}: folder of the copy, step of the checkpoint, and number of running generations
        that now draft with this head.

    Raises:
        WorkbenchError: there is no checkpoint yet, or the checkpoint is damaged or does not fit the target.
    """
    step = run.saved_step
    folder = _copy_head(run, heads, step)
    try:
        switched = prefer_heads(str(folder), True)
    except WorkbenchError as problem:
        if promoted_folder(run) == str(folder):  # this checkpoint is already promoted
            (run.folder / PROMOTED_AT).unlink()
        shutil.rmtree(folder, ignore_errors=True)
        remedy = f"{problem.remedy} Or continue training, and promote the next checkpoint."
        raise type(problem)(problem.message, remedy) from None
    for other in runs:
        is_same_kind = all(other.record[field] == run.record[field] for field in ("head", "target"))
        if is_same_kind and (previous_folder := promoted_folder(other)) != str(folder):
            _end(other, previous_folder, heads, prefer_heads)
    record = {"folder": str(folder), "step": step, "switched": switched}
    write_atomically(run.folder / PROMOTED_AT, (json.dumps(record) + "\n").encode())
    return record


def demote(run: LabRun, heads: Path, prefer_heads: PreferHeads) -> dict[str, Any]:
    """Stop drafting with the head of a training run. Return a dict with the keys of `promote` and empty values."""
    _end(run, promoted_folder(run), heads, prefer_heads)
    return {"folder": "", "step": 0, "switched": 0}


def promoted_folder(run: LabRun) -> str:
    """Return the folder of the head of a training run with which the app drafts; "" if none or unknown."""
    try:
        folder = json.loads((run.folder / PROMOTED_AT).read_text(encoding="utf-8"))["folder"]
        return folder if isinstance(folder, str) else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def restore_promotions(runs: Sequence[LabRun], prefer_heads: PreferHeads) -> list[str]:
    """After a restart of the app, draft again with the heads of training runs that it used before.

    If a head can no longer be used, the record of its promotion is deleted.

    Returns:
        Folders of the promoted heads.
    """
    folders: list[str] = []
    for run in runs:
        if folder := promoted_folder(run):
            try:
                if not _matches_checksum(Path(folder)):
                    raise WorkbenchError(
                        f"The promoted head in {folder} is missing or damaged.",
                        "Promote the head of the training run again.",
                    )
                prefer_heads(folder, True)
                folders.append(folder)
            except WorkbenchError:
                (run.folder / PROMOTED_AT).unlink()
    return folders


def _end(run: LabRun, folder: str, heads: Path, prefer_heads: PreferHeads) -> None:
    """Stop drafting in the app with a training run's head, and delete the app's copy of it.

    A folder outside `heads` is never deleted.
    """
    (run.folder / PROMOTED_AT).unlink(missing_ok=True)
    if folder:
        prefer_heads(folder, False)
        if Path(folder).resolve().parent == heads.resolve():
            shutil.rmtree(folder, ignore_errors=True)


def _copy_head(run: LabRun, heads: Path, step: int) -> Path:
    """Copy the head of a training run into `heads`.

    A copy is needed because training overwrites the original with its next checkpoint.
    """
    head = run.head
    if head is None:
        raise WorkbenchError(
            "The training run has no checkpoint yet.", "Wait until training has saved the first checkpoint."
        )
    heads.mkdir(parents=True, exist_ok=True)
    for n_retries in (2, 1, 0):
        with (
            contextlib.suppress(OSError),  # training may replace files while they are copied
            tempfile.TemporaryDirectory(prefix=".", dir=heads, ignore_cleanup_errors=True) as temporary,
        ):
            copy = Path(temporary) / head.name
            shutil.copytree(head, copy)
            if _matches_checksum(copy):
                # Heads are identified by their folder's name, so other weights need another name.
                folder = heads / f"{head.name}-{run.id[-8:]}-step-{step}-{(copy / SUMS_FILE).read_text()[:6]}"
                if not _matches_checksum(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                    copy.replace(folder)
                return folder
        time.sleep(0.2 if n_retries else 0.0)  # training may be saving the head now
    raise WorkbenchError(
        f"The head saved at step {step} is damaged: its weights do not match their checksum.",
        "Train a new head; this training run is finished and cannot be resumed."
        if run.state == DONE
        else "Resume the training run, or let it continue: the next checkpoint replaces the damaged head.",
    )


def _matches_checksum(head: Path) -> bool:
    """Return whether the weight file of a head matches its stored checksum."""
    try:
        checksum, _, name = (head / SUMS_FILE).read_text(encoding="utf-8").strip().partition("  ")
        return not checksum_problem(head / name, checksum)
    except (OSError, ValueError):
        return False
