"""Read a training run of the Lab tab from its folder: request, progress, results, and reason of its end."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from workbench.core.errors import WorkbenchError
from workbench.service.lab import processes
from workbench.trace.curves import EVALUATING, LOSS, SPEEDUP, TAU, TEACHER_FORCED, TESTED, TRAINING, Points, read_curves
from workbench.trace.files import write_atomically

RUNNING, DONE, STOPPED, FAILED, KILLED, DAMAGED = "running", "done", "stopped", "failed", "killed", "damaged"
RESUMABLE = (STOPPED, KILLED, FAILED)
"""States in which a training run can be resumed."""
STAGES = ("generating answers", "computing the target's hidden states", "training", "evaluating on held-out prompts")
"""Names of the four stages of `workbench train KIND`, whose log has lines such as "eagle-3 for …: 1 of 4, …"."""
_STAGE = re.compile(r"^\S+(?: for .*)?: ([1-4]) of 4, ", re.MULTILINE)
_WRITTEN = re.compile(r"^answers: ([\d,]+) tokens · ([\d,]+)/s", re.MULTILINE)
LOG_BYTES = 200_000
_UNREADABLE: dict[str, Any] = {"head": "?", "target": "?", "options": {}, "created": "", "damaged": True}
PROMOTED_AT = "promoted.json"


@dataclass(frozen=True)
class LabRun:
    """Training run of a head, whose state and results are files in one folder.

    Attributes:
        folder: folder of the run; its name is the run's id.
    """

    folder: Path

    @property
    def id(self) -> str:
        """Return the id of the training run, which is its folder's name."""
        return self.folder.name

    @property
    def record(self) -> dict[str, Any]:
        """Return the content of the training run's file `run.json`.

        Keys: head, target, options, created, stopped, process and others.

        An unreadable file gives {"damaged": True}.
        """
        try:
            content = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
            texts = all(isinstance(content[name], str) for name in ("head", "target", "created"))
            return content if texts and isinstance(content["options"], dict) else _UNREADABLE
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return _UNREADABLE

    def note(self, **more: Any) -> None:
        """Update fields of the training run's file `run.json`.

        Raises:
            WorkbenchError: `run.json` cannot be read; it is not changed.
        """
        with FileLock(self.folder / "note.lock"):  # so that no concurrent change is lost
            request = self.record
            if "damaged" in request:
                raise WorkbenchError(
                    f"{self.folder / 'run.json'} cannot be read.", "Try again, or delete the training run."
                )
            write_atomically(self.folder / "run.json", (json.dumps(request | more, indent=1) + "\n").encode())

    @property
    def process(self) -> psutil.Process | None:
        """Return the process of a training run; None if it is not running.

        It is the process recorded in `run.json`, or the process that holds the run's lock.
        """
        recorded = processes.find(self.record)
        return processes.holder(self.lock) if recorded is None and processes.is_locked(self.lock) else recorded

    @property
    def lock(self) -> Path:
        """Return the path of the file that the training process locks."""
        return self.folder / "training.lock"

    @property
    def is_training(self) -> bool:
        """Return whether the process of this training run is running, even if its process id was not recorded."""
        return processes.is_locked(self.lock) or processes.find(self.record) is not None

    @property
    def log(self) -> str:
        """Return the end of the log of the training run."""
        try:
            with (self.folder / "log.txt").open("rb") as stream:
                stream.seek(0, 2)
                stream.seek(max(0, stream.tell() - LOG_BYTES))
                return stream.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    @property
    def figures(self) -> dict[str, Any] | None:
        """Return the measured results of the training as a dict; None if it has not finished successfully."""
        try:
            content = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
            return content["result"] if isinstance(content, dict) and "result" in content else None
        except (OSError, ValueError, RecursionError):
            return None

    @property
    def error(self) -> tuple[str, str]:
        """Return the error message of the training with its remedy; "" if there was no error."""
        try:
            error = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))["error"]
            return str(error["message"]), str(error["remedy"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "", ""

    @property
    def state(self) -> str:
        """Return the state of the training run.

        One of: running, done, stopped (by the user), failed (by an error), killed (by the system or another program),
        damaged.
        """
        if "damaged" in self.record:
            return DAMAGED
        if self.is_training:
            return RUNNING
        if self.figures is not None:
            return DONE
        if self.record.get("stopped"):
            return STOPPED
        return FAILED if self.error[0] else KILLED

    @property
    def head(self) -> Path | None:
        """Return the folder of the head that the training saved last; None before the first checkpoint."""
        ending = f"-{self.record['head']}"
        heads = (config.parent for config in self.folder.glob("*/config.json"))
        return next((folder for folder in heads if folder.name.endswith(ending)), None)

    @property
    def saved_step(self) -> int:
        """Return the training step of the last saved head, which is the last step evaluated on held-out data."""
        return max(
            (points[-1][0] for tag, points in self.curves().items() if tag.startswith(TEACHER_FORCED)), default=0
        )

    def summary(self, curves: dict[str, Points] | None = None) -> dict[str, Any]:
        """Return a summary of the training run as a dict. Key `trouble`: error and remedy of a failed run."""
        request, state = self.record, self.state
        curves = self.curves() if curves is None else curves
        last_step = max((points[-1][0] for points in curves.values()), default=0)
        return {
            "id": self.id, "head": request["head"], "target": request["target"], "options": request["options"],
            "created": request["created"], "state": state, "step": last_step, "stopping": self._is_stopping(state),
            "tau": _last(curves.get(TAU)), "speedup": _last(curves.get(SPEEDUP)),
            "rounds": _last(curves.get(f"{TESTED}/position 1")),
            "drafts": self.head is not None, "promoted": (self.folder / PROMOTED_AT).exists(),
            "trouble": self._trouble(state, last_step),
        }  # fmt: skip

    def curves(self) -> dict[str, Points]:
        """Return all training curves by TensorBoard tag, without non-finite values; empty if there are none."""
        try:
            curves_read = read_curves(self.folder)
        except (ImportError, OSError):
            return {}
        finite = {tag: [point for point in points if math.isfinite(point[1])] for tag, points in curves_read.items()}
        return {tag: points for tag, points in finite.items() if points}

    def details(self) -> dict[str, Any]:
        """Return the summary of the training run, with its curves, progress, memory, and the end of its log."""
        curves = self.curves()
        return self.summary(curves) | {
            "curves": curves, "progress": self.progress(curves), "memory": self.memory(),
            "folder": str(self.folder), "log": self.log.splitlines()[-12:],
        }  # fmt: skip

    def memory(self) -> int:
        """Return the memory of the training process in bytes; 0 if none is running."""
        process = self.process
        try:
            return 0 if process is None else process.memory_info().rss
        except psutil.Error:
            return 0

    def progress(self, curves: dict[str, Points]) -> dict[str, Any]:
        """Return the progress of the training.

        Returns:
            stage (1 to 4; 0: starting), of (number of stages), name of the stage; done (finished fraction of the stage,
            0 to 1; None: unknown); left_s (remaining seconds of the stage, or None); evaluating_s (seconds of on-policy
            evaluation, which do not count as training time).
        """
        log, options = self.log, self.record["options"]
        stages = _STAGE.findall(log)
        stage = int(stages[-1]) if stages else 0
        finished: float | None = None
        left_s: float | None = None
        tokens, steps, minutes = (_number(options.get(name)) for name in ("answer_tokens", "steps", "minutes"))
        if stage == 1 and tokens and (answers := _WRITTEN.findall(log)):
            n, rate = (int(part.replace(",", "")) for part in answers[-1])
            finished = min(1.0, n / tokens)
            left_s = max(0.0, (tokens - n) / rate) if rate else None
        if stage == 3 and (steps or minutes):
            step, spent_s = next(iter(curves.get(TRAINING, [])[-1:]), (0, 0.0))
            share = step / steps if steps else spent_s / (60 * minutes)
            left_s = max(0.0, spent_s / share - spent_s) if share else None
            finished = min(1.0, share)
        return {
            "stage": stage, "of": len(STAGES), "name": STAGES[stage - 1] if stage else "starting", "done": finished,
            "left_s": left_s, "evaluating_s": _last(curves.get(EVALUATING)) or 0.0,
        }  # fmt: skip

    def _is_stopping(self, state: str) -> bool:
        """Return whether the user has stopped the training run while its process has not ended yet."""
        return state == RUNNING and bool(self.record.get("stopped"))

    def _trouble(self, state: str, step: int) -> dict[str, str] | None:
        if state == DAMAGED:
            return {
                "message": f"The settings of this training run cannot be read from {self.folder / 'run.json'}.",
                "remedy": "Delete the training run, or repair this file.",
            }
        if state == FAILED:
            message, remedy = self.error
            return {"message": message, "remedy": remedy}
        if state == KILLED:
            return {
                "message": f"The training process was killed after step {step}: by a user, by a restart, or by the "
                "system for lack of memory.",
                "remedy": "Resume the training run: it continues from its last checkpoint."
                if self._has_checkpoint
                else "Resume the training run: it has no checkpoint yet, so training starts again with the "
                "answers generated so far.",
            }
        return None

    @property
    def _has_checkpoint(self) -> bool:
        return any(self.folder.glob("heads*.pt"))

    def has_losses(self) -> bool:
        """Return whether at least one step of the training run was done."""
        return any(tag.startswith(LOSS) for tag in self.curves())


def _number(value: Any) -> float:
    """Return `value` if it is a positive number, otherwise 0."""
    return value if isinstance(value, (int, float)) and value > 0 else 0


def _last(points: Points | None) -> float | None:
    return points[-1][1] if points else None
