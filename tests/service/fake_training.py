"""Stands in for `workbench train KIND --set … --json` in tests of the lab: short steps, checkpoints, curves.

With the loss "ce_hard:1" it fails with a message, with "reverse_kl:1" it ignores requests to stop.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path

from workbench.core.errors import WorkbenchError
from workbench.trace.curves import CurveWriter
from workbench.trace.files import write_atomically
from workbench.training.stopping import stop_on_sigterm

EVERY = 3
"""Steps between checkpoints."""


def train(kind: str, said: dict[str, str]) -> int:
    run, steps = Path(said["run"]), int(said["steps"])
    if said.get("loss", "").startswith("ce_hard"):
        raise WorkbenchError("There is no chat format.", "Take another target.")
    checkpoint = run / f"heads-{kind}.pt"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"{kind} for {said['target']}: 3 of 4, training", file=sys.stderr, flush=True)
    writer = CurveWriter(run, step + 1 if step else 0)
    with stop_on_sigterm() as stop:
        while step < steps:
            step += 1
            writer.add(step, {"loss/x": 1 / step, "seconds/training": step / 10})
            if step % EVERY == 0 or step == steps or stop.is_set():
                write_atomically(checkpoint, str(step).encode())
                if head := said.get("copy_of"):
                    shutil.copytree(head, run / f"target-{kind}", dirs_exist_ok=True)
                writer.add(step, {"on-policy/tau": 1 + step / 10})
            if stop.is_set():
                return step
            time.sleep(0.05)
    return step


def main() -> int:
    kind, said = sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
    if said.get("loss", "").startswith("reverse_kl"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    try:
        step = train(kind, said)
    except WorkbenchError as error:
        print(json.dumps({"error": {"message": error.message, "remedy": error.remedy}}))
        return 1
    if step < int(said["steps"]):
        return 1
    print(json.dumps({"recipe": kind, "result": {"steps": step}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
