"""A run of the lab as its folder tells it: what was asked for, how far it is, what it measured, and why it ended."""

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
from workbench.trace.curves import EVALUATING, HELD, LOSS, SPEEDUP, TAU, TESTED, TRAINING, Points, read_curves
from workbench.trace.files import write_whole

RUNNING, DONE, STOPPED, FAILED, KILLED, DAMAGED = "running", "done", "stopped", "failed", "killed", "damaged"
GOES_ON = (STOPPED, KILLED, FAILED)
"""States from which a run can go on."""
STAGES = ("its own answers", "what it thinks of them", "training", "drafting for held-out prompts")
"""As `workbench train KIND` tells them: "eagle-3 for …: 1 of 4, …"."""
_STAGE = re.compile(r"^\S+(?: for .*)?: ([1-4]) of 4, ", re.MULTILINE)
_WRITTEN = re.compile(r"^answers: ([\d,]+) tokens · ([\d,]+)/s", re.MULTILINE)
LOG_BYTES = 200_000
_UNREADABLE: dict[str, Any] = {"head": "?", "target": "?", "options": {}, "created": "", "damaged": True}
PROMOTED_AT = "promoted.json"


@dataclass(frozen=True)
class LabRun:
    """A run.

    Attributes:
        folder: of the run; its name is the run's id.
    """

    folder: Path

    @property
    def id(self) -> str:
        """Of the run."""
        return self.folder.name

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for: head, target, options; created, stopped, the process. `damaged`: it cannot be read."""
        try:
            said = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
            texts = all(isinstance(said[name], str) for name in ("head", "target", "created"))
            return said if texts and isinstance(said["options"], dict) else _UNREADABLE
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return _UNREADABLE

    def note(self, **more: Any) -> None:
        """Change what is kept beside the run's files; what cannot be read stays as it is.

        Raises:
            WorkbenchError: it cannot be read.
        """
        with FileLock(self.folder / "note.lock"):  # two changes at once both stay
            asked = self.asked
            if "damaged" in asked:
                raise WorkbenchError(f"{self.folder / 'run.json'} cannot be read.", "Try again, or delete the run.")
            write_whole(self.folder / "run.json", (json.dumps(asked | more, indent=1) + "\n").encode())

    @property
    def process(self) -> psutil.Process | None:
        """The process that trains it: the noted one, or the one that holds the run's lock; None if none is found."""
        found = processes.find(self.asked)
        return processes.holder(self.lock) if found is None and processes.is_locked(self.lock) else found

    @property
    def lock(self) -> Path:
        """File whose lock the training process holds."""
        return self.folder / "training.lock"

    @property
    def is_training(self) -> bool:
        """Whether a process trains it, also one whose number could not be noted."""
        return processes.is_locked(self.lock) or processes.find(self.asked) is not None

    @property
    def log(self) -> str:
        """The end of what the training said."""
        try:
            with (self.folder / "log.txt").open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - LOG_BYTES))
                return file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    @property
    def figures(self) -> dict[str, Any] | None:
        """What the training told at its end; None where it has not ended well."""
        try:
            said = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
            return said["result"] if isinstance(said, dict) and "result" in said else None
        except (OSError, ValueError, RecursionError):
            return None

    @property
    def error(self) -> tuple[str, str]:
        """What went wrong, and what to do; "" where the training did not say."""
        try:
            said = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))["error"]
            return str(said["message"]), str(said["remedy"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "", ""

    @property
    def state(self) -> str:
        """One of: running, done, stopped (as asked), failed (and said why), killed (from outside), damaged."""
        if "damaged" in self.asked:
            return DAMAGED
        if self.is_training:
            return RUNNING
        if self.figures is not None:
            return DONE
        if self.asked.get("stopped"):
            return STOPPED
        return FAILED if self.error[0] else KILLED

    @property
    def head(self) -> Path | None:
        """Folder of the head as it was last saved; None before the first checkpoint."""
        ending = f"-{self.asked['head']}"
        heads = (config.parent for config in self.folder.glob("*/config.json"))
        return next((head for head in heads if head.name.endswith(ending)), None)

    @property
    def saved_step(self) -> int:
        """Step of the head as it was last saved: losses come at each step, figures on held-out text at checkpoints."""
        return max((points[-1][0] for tag, points in self.curves().items() if tag.startswith(HELD)), default=0)

    def summary(self, curves: dict[str, Points] | None = None) -> dict[str, Any]:
        """A line about the run, as plain data; `trouble` says what went wrong and what to do."""
        asked, state = self.asked, self.state
        curves = self.curves() if curves is None else curves
        last = max((points[-1][0] for points in curves.values()), default=0)
        return {
            "id": self.id, "head": asked["head"], "target": asked["target"], "options": asked["options"],
            "created": asked["created"], "state": state, "step": last, "stopping": self._is_stopping(state),
            "tau": _last(curves.get(TAU)), "speedup": _last(curves.get(SPEEDUP)),
            "rounds": _last(curves.get(f"{TESTED}/position 1")),
            "drafts": self.head is not None, "promoted": (self.folder / PROMOTED_AT).exists(),
            "trouble": self._trouble(state, last),
        }  # fmt: skip

    def curves(self) -> dict[str, Points]:
        """All curves by tag, without what is no number; empty where there are none."""
        try:
            found = read_curves(self.folder)
        except (ImportError, OSError):
            return {}
        finite = {tag: [point for point in points if math.isfinite(point[1])] for tag, points in found.items()}
        return {tag: points for tag, points in finite.items() if points}

    def whole(self) -> dict[str, Any]:
        """The run with its curves, how far it is, its memory and the end of its log."""
        curves = self.curves()
        return self.summary(curves) | {
            "curves": curves, "progress": self.progress(curves), "memory": self.memory(),
            "folder": str(self.folder), "log": self.log.splitlines()[-12:],
        }  # fmt: skip

    def memory(self) -> int:
        """Bytes that its process holds; 0 where none runs."""
        process = self.process
        try:
            return 0 if process is None else process.memory_info().rss
        except psutil.Error:
            return 0

    def progress(self, curves: dict[str, Points]) -> dict[str, Any]:
        """Stage (1 to 4, 0: it is starting), what is done in it (0 to 1, None: unknown), seconds left of it, in words.

        `evaluating` is the time that drafting on policy took, which is none of the training's.
        """
        log, options = self.log, self.asked["options"]
        found = _STAGE.findall(log)
        stage = int(found[-1]) if found else 0
        done: float | None = None
        left: float | None = None
        tokens, steps, minutes = (_number(options.get(name)) for name in ("answer_tokens", "steps", "minutes"))
        if stage == 1 and tokens and (written := _WRITTEN.findall(log)):
            n, rate = (int(part.replace(",", "")) for part in written[-1])
            done = min(1.0, n / tokens)
            left = max(0.0, (tokens - n) / rate) if rate else None
        if stage == 3 and (steps or minutes):
            step, spent = next(iter(curves.get(TRAINING, [])[-1:]), (0, 0.0))
            share = step / steps if steps else spent / (60 * minutes)
            left = max(0.0, spent / share - spent) if share else None
            done = min(1.0, share)
        return {
            "stage": stage, "of": len(STAGES), "name": STAGES[stage - 1] if stage else "starting", "done": done,
            "left_s": left, "evaluating_s": _last(curves.get(EVALUATING)) or 0.0,
        }  # fmt: skip

    def _is_stopping(self, state: str) -> bool:
        """Whether it was asked to stop and has not ended yet."""
        return state == RUNNING and bool(self.asked.get("stopped"))

    def _trouble(self, state: str, step: int) -> dict[str, str] | None:
        if state == DAMAGED:
            return {
                "message": f"What was asked of this run cannot be read: {self.folder / 'run.json'}.",
                "remedy": "Delete the run, or put that file right.",
            }
        if state == FAILED:
            message, remedy = self.error
            return {"message": message, "remedy": remedy}
        if state == KILLED:
            return {
                "message": f"The training's process was ended from outside, behind step {step}: by hand, by a restart, "
                "or by the system for want of memory.",
                "remedy": "Resume: it goes on from its last checkpoint."
                if self._has_checkpoint
                else "Resume: there is no checkpoint yet, so that the training begins again; its answers are kept.",
            }
        return None

    @property
    def _has_checkpoint(self) -> bool:
        return any(self.folder.glob("heads*.pt"))

    def has_losses(self) -> bool:
        """Whether a step was trained."""
        return any(tag.startswith(LOSS) for tag in self.curves())


def _number(value: Any) -> float:
    """A positive number; 0 for anything else."""
    return value if isinstance(value, (int, float)) and value > 0 else 0


def _last(points: Points | None) -> float | None:
    return points[-1][1] if points else None
