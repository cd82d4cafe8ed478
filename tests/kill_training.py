"""Kill a training repeatedly: `python tests/kill_training.py FOLDER KILLS` prints the state after each kill.

One process imports torch, and each training is a fork of it, so that fifty starts take seconds. As in every recipe, a
step depends on its number, on the progress of the run, and on the weights.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workbench.trace.curves import NAMES, read_curves
from workbench.training.clock import RunClock
from workbench.training.loop import LoopOptions, run_loop

EVERY_S, STEP_S, STEPS = 0.02, 0.001, 4000
"""Minimum seconds between checkpoints, and per step, of a training to be killed; steps of the whole run."""


def train(folder: Path, pause: float = 0.0, every: float = 10.0) -> dict[str, Any]:
    """Train from the folder's checkpoint to the end; return steps, tokens and weights."""
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(8))
        layer.bias.zero_()
    optimizer = torch.optim.AdamW([{"params": list(layer.parameters()), "peak": 0.01}], lr=0.01)

    def step(number: int) -> tuple[int, dict[str, float]]:
        time.sleep(pause)
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
        loss = (layer(batch) - batch.roll(1, 1)).square().mean()
        loss.backward()
        return 4, {"off": float(loss.detach())}

    loop = LoopOptions("endless", RunClock(None, STEPS), folder / "run.pt", True, every, 10**9, curves=folder)
    result = run_loop(loop, layer, [optimizer], step, lambda _: None)
    return {"steps": result.steps, "tokens": result.tokens, "weights": layer.weight.flatten().tolist()}


def checkpoint_step(folder: Path) -> int:
    """Return the step of the checkpoint, which must be readable; 0 if there is none."""
    path = folder / "run.pt"
    return torch.load(path, weights_only=True)["steps"] if path.exists() else 0


def train_and_kill(folder: Path, seconds: float) -> dict[str, int]:
    """Start a training and kill it some time after its first step; return its first, last and checkpointed step."""
    files = len(list(folder.glob(NAMES)))
    if (child := os.fork()) == 0:
        train(folder, STEP_S, EVERY_S)
        os._exit(0)
    while len(list(folder.glob(NAMES))) == files or not (steps := newest_steps(folder)):
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended by itself"
        time.sleep(0.002)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it ended by itself"
    return {"from": steps[0] - 1, "reached": newest_steps(folder)[-1], "kept": checkpoint_step(folder)}


def newest_steps(folder: Path) -> list[int]:
    """Return the steps in the newest file of curves."""
    path = max(folder.glob(NAMES), key=lambda path: int(path.suffix[1:]))
    with tempfile.TemporaryDirectory() as alone:
        shutil.copy(path, alone)
        return [step for step, _ in read_curves(Path(alone)).get("loss/off", [])]


if __name__ == "__main__":
    torch.set_num_threads(1)
    where, chance = Path(sys.argv[1]), random.Random(7)
    read_curves(Path(__file__).parent)  # imports the reader of curves before the forks
    found = [train_and_kill(where, chance.uniform(0, 0.06)) for _ in range(int(sys.argv[2]))]
    ended = train(where)
    steps = [step for step, _ in read_curves(where)["loss/off"]]
    print(json.dumps({"kills": found, "ended": ended, "straight": train(where / "straight"), "steps": steps}))
