"""Starts, stops and resumes the training of heads, one at a time, in a process of its own at low priority."""

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

from workbench.core.errors import CapacityError, UnknownNameError, WorkbenchError
from workbench.engine.bundle import config_of
from workbench.engine.names import folder_of
from workbench.engine.placed import path_of
from workbench.service.lab import processes, promotion
from workbench.service.lab.promotion import Takes
from workbench.service.lab.runs import DAMAGED, GOES_ON, LabRun
from workbench.service.lab.wishes import Wish
from workbench.trace.files import write_whole
from workbench.trace.ids import is_id, new_id

ENV = "WORKBENCH_LAB"
"""Folder of the lab's runs, answers and promoted heads."""
NICE = 10
GRACE_S, LEAVING_S = 60.0, 10.0
"""Seconds that a training which is asked to end has for its step and its checkpoint; and when the app ends."""
SPARE = 256 << 20
"""Bytes that stay free on the disk."""
ROOT = Path(__file__).resolve().parents[3]


def default_lab() -> Path:
    """Where the lab keeps its runs: `WORKBENCH_LAB`, or beside the kept runs."""
    from workbench.trace.store import default_folder  # brings Polars

    given = os.environ.get(ENV)
    return Path(given) if given else default_folder().parent / "lab"


class Lab:
    """The runs of a folder, and what trains one of them.

    Args:
        folder: made with the first run.
        command: how the training is begun; by default this Python's `workbench train`.
    """

    def __init__(self, folder: Path | None = None, command: Sequence[str] = ()) -> None:
        self.folder = folder or default_lab()
        self._command = [*command] or [sys.executable, "-m", "workbench", "train"]
        self._begun: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    # -- what there is -------------------------------------------------------------------------------------------

    def runs(self) -> list[LabRun]:
        """All runs, newest first, whichever process began them."""
        self._reap()
        return [LabRun(path.parent) for path in sorted(self.folder.glob("runs/*/run.json"), reverse=True)]

    def run(self, run_id: Any) -> LabRun:
        """One of them.

        Raises:
            UnknownNameError: there is none of this id. What is no id never becomes a path.
        """
        found = self.folder / "runs" / run_id if isinstance(run_id, str) and is_id(run_id) else None
        if found is None or not (found / "run.json").is_file():
            raise UnknownNameError("There is no such run in the lab any more.", "Choose another, or train a new one.")
        self._reap()
        return LabRun(found)

    def training(self) -> LabRun | None:
        """The run that is being trained."""
        return next((run for run in self.runs() if run.is_training), None)

    def rate(self, target: str) -> float | None:
        """Tokens a second at which a target wrote its answers here last; None where it wrote none yet."""
        found = self.folder.glob(f"answers/*/{Path(_place_of(target)).name}/answers/rate.json")
        for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
                said = json.loads(path.read_text(encoding="utf-8"))
                return said["tokens"] / said["seconds"]
        return None

    # -- steering ------------------------------------------------------------------------------------------------

    def start(self, wish: Wish) -> LabRun:
        """Begin a run.

        Raises:
            CapacityError: another one is being trained, or the disk is too full.
        """
        with self._alone():
            self._check_disk(wish)
            run = LabRun(self.folder / "runs" / new_id())
            run.folder.mkdir(parents=True)
            created = datetime.now(timezone.utc).isoformat(timespec="seconds")
            asked = {"head": wish.head, "target": wish.target, "options": wish.settings(), "created": created}
            write_whole(run.folder / "run.json", (json.dumps(asked | {"data": wish.data}, indent=1) + "\n").encode())
            self._begin(run)
        return run

    def resume(self, run_id: Any) -> LabRun:
        """Let a run go on from its last checkpoint.

        Raises:
            UnknownNameError: there is none.
            CapacityError: one is being trained.
            WorkbenchError: it has ended.
        """
        run = self.run(run_id)
        if run.state == DAMAGED:
            raise WorkbenchError("What this run was asked for cannot be read any more.", "Delete it, and train anew.")
        with self._alone():
            if run.state not in GOES_ON:
                raise WorkbenchError("This run has done all its steps.", "Train a new one, with a larger budget.")
            run.note(stopped=False)
            self._begin(run)
        return run

    def stop(self, run_id: Any) -> LabRun:
        """Ask a run to end: it keeps a checkpoint of the step that it is in. One that does not end is killed."""
        run = self.run(run_id)
        process = run.process
        if process is not None:
            run.note(stopped=True)
            with contextlib.suppress(psutil.Error):
                process.terminate()
            threading.Thread(target=_end, args=(process,), daemon=True).start()
        return run

    def forget(self, run_id: Any, takes: Takes = lambda *_: 0) -> None:
        """Delete a run, its curves and its head, which drafts no longer if it was promoted.

        Args:
            run_id: of the run.
            takes: lets the backend draft with a head, or no longer.

        Raises:
            CapacityError: it is being trained.
        """
        with self._locked():
            run = self.run(run_id)
            if run.is_training:
                raise CapacityError("This run is being trained.", "Stop it first.")
            if run.folder.is_symlink():
                run.folder.unlink()
                return
            promotion.take_back(run, self.folder / "heads", takes)
            shutil.rmtree(run.folder)

    def promote(self, run_id: Any, takes: Takes, on: bool = True) -> dict[str, Any]:
        """Let a run's head, as it was last saved, draft; see `workbench.service.lab.promotion`.

        Args:
            run_id: of the run.
            takes: lets the backend draft with it.
            on: False: it drafts no longer.

        Raises:
            WorkbenchError: there is no checkpoint yet, or it is damaged or does not suit the target.
        """
        with self._locked():  # a promotion and a take-back at once would leave a note of a head that is gone
            run, heads = self.run(run_id), self.folder / "heads"
            return promotion.promote(run, self.runs(), heads, takes) if on else promotion.take_back(run, heads, takes)

    def promote_again(self, takes: Takes) -> list[str]:
        """Let the heads draft that were promoted when the app ended; returns their folders."""
        if not self.folder.is_dir():
            return []
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(WorkbenchError):  # a folder that cannot be written is read all the same
                stack.enter_context(self._locked())
            return promotion.again(self.runs(), takes)

    def close(self) -> None:
        """End what this process has begun; it can be resumed."""
        for run_id, process in list(self._begun.items()):
            if process.poll() is None:
                LabRun(self.folder / "runs" / run_id).note(stopped=True)
                process.terminate()
        for process in self._begun.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVING_S)
            process.kill()

    # -- how -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one thread of one app change the lab's runs and heads at a time.

        Raises:
            WorkbenchError: the folder cannot be written.
        """
        with self._lock, contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(self.folder / "lock"))
            except OSError as error:
                raise WorkbenchError(
                    f"The lab's folder {self.folder} cannot be written: {error.strerror}.",
                    f"Name another: {ENV}=FOLDER.",
                ) from None
            yield

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock while no run is trained.

        Raises:
            CapacityError: a run is being trained.
            WorkbenchError: the folder cannot be written.
        """
        with self._locked():
            if (busy := self.training()) is not None:
                raise CapacityError(
                    f"A run is being trained: {busy.asked['head']} for {busy.asked['target']}.",
                    "Wait for its end, or stop it; it can go on later.",
                )
            yield

    def _begin(self, run: LabRun) -> None:
        asked = run.asked
        work = self.folder / "answers" / asked["data"]
        said = {**asked["options"], "target": _place_of(asked["target"]), "work": work, "run": run.folder}
        options = [word for name, value in said.items() for word in ("--set", f"{name}={value}")]
        for name in ("result.json", "log.txt"):
            (run.folder / name).unlink(missing_ok=True)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (
            processes.lock_for_child(run.lock) as descriptors,
            (run.folder / "result.json").open("wb") as out,
            (run.folder / "log.txt").open("wb") as log,
        ):
            process = subprocess.Popen(
                [*self._command, asked["head"], *options, "--json"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True, pass_fds=descriptors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
        self._begun[run.id] = process
        try:
            run.note(**_identity(process.pid))
        except OSError as error:
            process.kill()  # nobody could stop it later
            process.wait()
            raise WorkbenchError(
                f"The training was ended at once: {run.folder / 'run.json'} cannot be written ({error.strerror}).",
                f"Make room, or name another folder: {ENV}=FOLDER.",
            ) from None
        with contextlib.suppress(psutil.Error):
            child = psutil.Process(process.pid)
            child.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if sys.platform == "win32" else max(NICE, child.nice()))
        with contextlib.suppress(OSError):  # Linux may share a processor between sessions first, priorities within each
            Path(f"/proc/{process.pid}/autogroup").write_text(str(NICE))

    def _check_disk(self, wish: Wish) -> None:
        """Refuse what would not fit: streams of four layers for each token of the answers and their prompts."""
        width = config_of(folder_of(wish.target) or Path()).get("hidden_size", 1024)
        need = wish.budget.answer_tokens * 3 * 4 * width * 2 + SPARE
        free = shutil.disk_usage(self.folder).free
        if free < need:
            raise CapacityError(
                f"The run needs about {need >> 20:,} MB of disk in {self.folder}; {free >> 20:,} MB are free.",
                f"Give fewer answer_tokens, delete runs, or name another folder: {ENV}=FOLDER.",
            )

    def _reap(self) -> None:
        """Take note of processes of ours that have ended, which would stay as zombies."""
        for process in self._begun.values():
            process.poll()


def _identity(pid: int) -> dict[str, Any]:
    """What a child is known by; a child that has ended already is a number that nothing has."""
    try:
        return processes.identity(pid)
    except psutil.Error:
        return {"pid": pid, "born": time.time()}


def _place_of(target: str) -> str:
    """What `--set target=` takes for a target that is listed by its name; for a folder of one's own, its path."""
    place = path_of(target)
    return target if place == Path(target).expanduser() else str(place)


def _end(process: psutil.Process) -> None:
    """Kill what has not ended by itself."""
    with contextlib.suppress(psutil.Error):
        try:
            process.wait(GRACE_S)
        except psutil.TimeoutExpired:
            process.kill()
