"""Start, stop and resume the training of heads, one at a time, in a separate process at low priority."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from workbench.core.errors import CapacityError, UnknownNameError, WorkbenchError, system_reason
from workbench.models.bundle import config_of
from workbench.models.local_models import path_of
from workbench.models.names import folder_of
from workbench.service.lab import processes, promotion
from workbench.service.lab.promotion import PreferHeads
from workbench.service.lab.runs import DAMAGED, RESUMABLE, LabRun
from workbench.service.lab.training_requests import TrainingRequest
from workbench.trace.files import write_atomically
from workbench.trace.ids import is_id, new_id

ENV = "WORKBENCH_LAB"
"""Environment variable with the Lab tab's folder: training runs, training data, and heads with which the app drafts."""
NICE = 10
GRACE_S, LEAVING_S = 60.0, 10.0
"""Seconds in which a stopped training must finish its step and save a checkpoint.

The first value applies if the user stops the training, the second one if the app ends.
"""
SPARE = 256 << 20
"""Free disk space in bytes that a training run must leave."""
ROOT = Path(__file__).resolve().parents[3]


def default_lab() -> Path:
    """Return the Lab tab's folder: `WORKBENCH_LAB`, or by default a folder next to that of the saved traces."""
    from workbench.trace.store import default_folder  # imports Polars

    variable = os.environ.get(ENV)
    return Path(variable) if variable else default_folder().parent / "lab"


class Lab:
    """Training runs in a folder, and the process that trains one of them.

    Args:
        folder: folder of the Lab tab's training runs, created with the first run; None: `default_lab()`.
        command: command line that starts a training; by default `workbench train` with the current Python interpreter.
    """

    def __init__(self, folder: Path | None = None, command: Sequence[str] = ()) -> None:
        self.folder = folder or default_lab()
        self._command = [*command] or [sys.executable, "-m", "workbench", "train"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    # -- runs ----------------------------------------------------------------------------------------------------

    def runs(self) -> list[LabRun]:
        """Return all training runs of the Lab tab, newest first, including those that other processes started."""
        self._poll_processes()
        return [LabRun(path.parent) for path in sorted(self.folder.glob("runs/*/run.json"), reverse=True)]

    def run(self, run_id: Any) -> LabRun:
        """Return the training run with the given id.

        Raises:
            UnknownNameError: there is no run with this id. An invalid id is never used as a path.
        """
        folder = self.folder / "runs" / run_id if isinstance(run_id, str) and is_id(run_id) else None
        if folder is None or not (folder / "run.json").is_file():
            raise UnknownNameError(
                "The lab has no training run of this name any more.",
                "Choose another training run, or train a new head.",
            )
        self._poll_processes()
        return LabRun(folder)

    def training(self) -> LabRun | None:
        """Return the training run that is in progress, or None."""
        return next((run for run in self.runs() if run.is_training), None)

    def rate(self, target: str) -> float | None:
        """Return the speed at which a target last generated training data for the Lab tab.

        The speed is in tokens per second; None if it is unknown.
        """
        paths = self.folder.glob(f"answers/*/{Path(_target_option(target)).name}/answers/rate.json")
        for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
                rate = json.loads(path.read_text(encoding="utf-8"))
                return rate["tokens"] / rate["seconds"]
        return None

    # -- steering ------------------------------------------------------------------------------------------------

    def start(self, training_request: TrainingRequest) -> LabRun:
        """Start a training run in a new process.

        Raises:
            CapacityError: another training run is in progress, or the disk is too full.
        """
        with self._locked_without_training():
            self._check_disk(training_request)
            run = LabRun(self.folder / "runs" / new_id())
            run.folder.mkdir(parents=True)
            created = datetime.now(timezone.utc).isoformat(timespec="seconds")
            request = {
                "head": training_request.head,
                "target": training_request.target,
                "options": training_request.settings(),
                "created": created,
            }
            write_atomically(
                run.folder / "run.json",
                (json.dumps(request | {"data": training_request.data}, indent=1) + "\n").encode(),
            )
            self._begin(run)
        return run

    def resume(self, run_id: Any) -> LabRun:
        """Resume a training run from its last checkpoint.

        Raises:
            UnknownNameError: there is no such run.
            CapacityError: a training run is in progress.
            WorkbenchError: the training run is finished or damaged.
        """
        run = self.run(run_id)
        if run.state == DAMAGED:
            raise WorkbenchError(
                "The settings of this training run cannot be read.", "Delete this run, and start a new one."
            )
        with self._locked_without_training():
            if run.state not in RESUMABLE:
                raise WorkbenchError(
                    "This training run is finished, so it cannot be resumed.",
                    "Start a new training run, with more minutes or steps.",
                )
            run.note(stopped=False)
            self._begin(run)
        return run

    def stop(self, run_id: Any) -> LabRun:
        """Stop a training run after its current step and a checkpoint.

        If this takes more than `GRACE_S` seconds, its process is killed.
        """
        run = self.run(run_id)
        process = run.process
        if process is not None:
            run.note(stopped=True)
            with contextlib.suppress(psutil.Error):
                process.terminate()
            threading.Thread(target=_end, args=(process,), daemon=True).start()
        return run

    def delete(self, run_id: Any, prefer_heads: PreferHeads = lambda *_: 0) -> None:
        """Delete a training run with its curves and its head; if the app drafts with this head, stop that.

        Args:
            run_id: id of the training run.
            prefer_heads: function that makes the backend draft with a head, or stop drafting with it.

        Raises:
            CapacityError: the training run is in progress.
        """
        with self._locked():
            run = self.run(run_id)
            if run.is_training:
                raise CapacityError("This training run is still in progress.", "Stop the training run first.")
            if run.folder.is_symlink():
                run.folder.unlink()
                return
            promotion.demote(run, self.folder / "heads", prefer_heads)
            shutil.rmtree(run.folder)

    def promote(self, run_id: Any, prefer_heads: PreferHeads, on: bool = True) -> dict[str, Any]:
        """Make the app draft with the last saved head of a training run; with `on` False, stop that.

        Args:
            run_id: id of the training run.
            prefer_heads: function that makes the backend draft with a head, or stop drafting with it.
            on: whether to draft with the head; False: stop drafting with it.

        Returns:
            {"folder", "step", "switched"}, as from `workbench.service.lab.promotion.promote`.

        Raises:
            WorkbenchError: there is no checkpoint yet, or the checkpoint is damaged or does not fit the target.
        """
        with self._locked():  # otherwise a concurrent `delete` could leave the record of a deleted head
            run, heads = self.run(run_id), self.folder / "heads"
            return (
                promotion.promote(run, self.runs(), heads, prefer_heads)
                if on
                else promotion.demote(run, heads, prefer_heads)
            )

    def restore_promotions(self, prefer_heads: PreferHeads) -> list[str]:
        """Draft again with the heads that the app used when it last ended, and return their folders."""
        if not self.folder.is_dir():
            return []
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(WorkbenchError):  # a lab in a read-only folder still lists its runs
                stack.enter_context(self._locked())
            return promotion.restore_promotions(self.runs(), prefer_heads)

    def close(self) -> None:
        """Stop the training runs that this process started. They can be resumed."""
        for run_id, process in list(self._processes.items()):
            if process.poll() is None:
                LabRun(self.folder / "runs" / run_id).note(stopped=True)
                process.terminate()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVING_S)
            process.kill()

    # -- implementation ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Context manager that holds the lock of the Lab tab's folder.

        So only one thread of one app changes its training runs and heads at a time.

        Raises:
            WorkbenchError: the folder cannot be written.
        """
        with self._lock, contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(self.folder / "lock"))
            except OSError as error:
                raise WorkbenchError(
                    f"The lab's folder {self.folder} cannot be written: {system_reason(error)}.",
                    f"Choose another folder: {ENV}=FOLDER.",
                ) from None
            yield

    @contextlib.contextmanager
    def _locked_without_training(self) -> Iterator[None]:
        """Context manager that locks the Lab tab's folder, and raises an error if a training run is in progress.

        Raises:
            CapacityError: a training run is in progress.
            WorkbenchError: the folder cannot be written.
        """
        with self._locked():
            if (current := self.training()) is not None:
                raise CapacityError(
                    f"Another training run is in progress: {current.record['head']} for {current.record['target']}.",
                    "Wait until that run ends, or stop it; a stopped run can be resumed later.",
                )
            yield

    def _begin(self, run: LabRun) -> None:
        request = run.record
        work = self.folder / "answers" / request["data"]
        settings = {**request["options"], "target": _target_option(request["target"]), "work": work, "run": run.folder}
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        for name in ("result.json", "log.txt"):
            (run.folder / name).unlink(missing_ok=True)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (
            processes.lock_for_child(run.lock) as descriptors,
            (run.folder / "result.json").open("wb") as out,
            (run.folder / "log.txt").open("wb") as log,
        ):
            process = subprocess.Popen(
                [*self._command, request["head"], *options, "--json"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True, pass_fds=descriptors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
        self._processes[run.id] = process
        try:
            run.note(**_identity(process.pid))
        except OSError as error:
            process.kill()  # without its id it could not be stopped later
            process.wait()
            raise WorkbenchError(
                f"The training was stopped, because {run.folder}/run.json cannot be written: {system_reason(error)}.",
                f"Free disk space, or choose another folder: {ENV}=FOLDER.",
            ) from None
        with contextlib.suppress(psutil.Error):
            child = psutil.Process(process.pid)
            child.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if sys.platform == "win32" else max(NICE, child.nice()))
        with contextlib.suppress(
            OSError
        ):  # Linux may divide CPU time among sessions first, and apply priorities only within a session
            Path(f"/proc/{process.pid}/autogroup").write_text(str(NICE))

    def _check_disk(self, training_request: TrainingRequest) -> None:
        """Refuse a training run whose training data exceed the free disk space.

        The training data are the hidden states of four layers per token.
        """
        width = config_of(folder_of(training_request.target) or Path()).get("hidden_size", 1024)
        n_bytes = training_request.budget.answer_tokens * 3 * 4 * width * 2 + SPARE
        free = shutil.disk_usage(self.folder).free
        if free < n_bytes:
            raise CapacityError(
                f"The training run needs about {n_bytes >> 20:,} MB of disk space in {self.folder}, where "
                f"{free >> 20:,} MB are free.",
                f"Set answer_tokens to a smaller number, delete training runs, or choose another folder: {ENV}=FOLDER.",
            )

    def _poll_processes(self) -> None:
        """Poll the training processes, so that those that have ended do not stay as zombies."""
        for process in self._processes.values():
            process.poll()


def _identity(pid: int) -> dict[str, Any]:
    """Return the identity (id, start time) of a child process; if it has ended, one that matches no process."""
    try:
        return processes.identity(pid)
    except psutil.Error:
        return {"pid": pid, "born": time.time()}


def _target_option(target: str) -> str:
    """Return the value of the option `--set target=` for a target: its name, or the path of a local folder."""
    path = path_of(target)
    return target if path == Path(target).expanduser() else str(path)


def _end(process: psutil.Process) -> None:
    """Wait for a process to end, and kill it after `GRACE_S` seconds."""
    with contextlib.suppress(psutil.Error):
        try:
            process.wait(GRACE_S)
        except psutil.TimeoutExpired:
            process.kill()
