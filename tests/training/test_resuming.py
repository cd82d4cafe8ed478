"""`workbench train` resumes an interrupted run, unless `resume=false`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from workbench.core.errors import ParameterError
from workbench.training import recipes
from workbench.training.clock import RunClock
from workbench.training.heads.recipe import VisionHeadOptions
from workbench.training.loop import LoopOptions, run_loop
from workbench.training.resuming import CHANGEABLE_OPTIONS, resolve_resume


@dataclass
class Options:
    """Options of a recipe that takes no time."""

    checkpoint: Path | None = None
    resume: bool = False
    steps: int = 2
    rate: float = 0.1


@pytest.fixture
def report_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the lines that a recipe named "tiny" reports."""
    lines: list[str] = []

    def train(options: Options, report: Any) -> dict[str, Any]:
        layer = nn.Linear(1, 1)
        optimizer = torch.optim.SGD([{"params": layer.parameters(), "peak": options.rate}], lr=options.rate)

        def step(_: int) -> tuple[int, dict[str, float]]:
            layer(torch.ones(1, 1)).sum().backward()
            return 1, {"loss": 0.0}

        loop = LoopOptions("tiny", RunClock(None, options.steps), options.checkpoint, options.resume)
        return dataclasses.asdict(run_loop(loop, layer, [optimizer], step, report))

    tiny = recipes.Recipe("tiny", "", Options, train)
    monkeypatch.setitem(recipes.RECIPES, "tiny", tiny)
    return lines


def run(lines: list[str], checkpoint: Path, **options: Any) -> int:
    return recipes.run("tiny", {"checkpoint": checkpoint, **options}, lines.append)["steps"]


def test_training_resumes_from_its_checkpoint_unless_resume_is_false(report_lines: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "tiny.pt"
    assert run(report_lines, checkpoint, steps=2) == 2
    assert run(report_lines, checkpoint, steps=5) == 5
    assert any("resumed at step 2" in line for line in report_lines)
    before = checkpoint.read_bytes()
    assert run(report_lines, checkpoint, steps=1, resume="false") == 1
    assert (tmp_path / "tiny.pt.old-1").read_bytes() == before, "the old checkpoint is kept"
    assert run(report_lines, checkpoint, steps=1, resume=False) == 1
    assert (tmp_path / "tiny.pt.old-2").exists()


def test_a_checkpoint_with_other_settings_is_refused_and_kept(report_lines: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "tiny.pt"
    run(report_lines, checkpoint, rate=0.2)
    before = checkpoint.read_bytes()
    with pytest.raises(ParameterError, match=r"rate=0\.2") as refused:
        run(report_lines, checkpoint, rate=0.3)
    assert "resume=false" in refused.value.remedy
    assert checkpoint.read_bytes() == before
    assert run(report_lines, checkpoint, rate=0.2, steps=3) == 3, "the refusal does not change the checkpoint"
    assert run(report_lines, checkpoint, rate=0.3, resume=False) == 2
    assert run(report_lines, checkpoint, rate=0.3, steps=4) == 4
    (tmp_path / "tiny.pt.settings.json").write_text("{")
    assert run(report_lines, checkpoint, rate=0.3, steps=5) == 5, "a damaged settings file is ignored"


def test_settings_are_never_saved_next_to_a_checkpoint_with_other_settings(tmp_path: Path) -> None:
    """A run that starts over and is killed before its first step must not be taken for the earlier one."""
    checkpoint = tmp_path / "tiny.pt"
    resolve_resume(Options(checkpoint, rate=0.1), {}, print)
    checkpoint.write_bytes(b"of rate 0.1")
    resolve_resume(Options(checkpoint, rate=0.2, resume=False), {"resume": False}, print)
    assert not checkpoint.exists()
    assert (tmp_path / "tiny.pt.old-1").read_bytes() == b"of rate 0.1"


def test_heads_resume_from_the_checkpoint_of_each_method_with_its_settings(tmp_path: Path) -> None:
    base = tmp_path / "heads.pt"
    resolve_resume(VisionHeadOptions(checkpoint=base, heads=4), {}, print)
    (tmp_path / "heads-msd.pt").write_bytes(b"msd, 4 heads")
    assert resolve_resume(VisionHeadOptions(checkpoint=base, method="msd", heads=4), {}, print).resume
    assert not resolve_resume(VisionHeadOptions(checkpoint=base, method="flash", heads=8), {}, print).resume
    with pytest.raises(ParameterError, match=r"heads-msd.*heads=4"):
        resolve_resume(VisionHeadOptions(checkpoint=base, method="all", heads=8), {}, print)


@pytest.mark.processes
@pytest.mark.parametrize("n", [8, pytest.param(50, marks=pytest.mark.on_demand)])
def test_kills_lose_at_most_the_steps_since_the_last_checkpoint(tmp_path: Path, n: int) -> None:
    """`kill -9` at random points of training and writing; the final result equals that without kills."""
    script = Path(__file__).parents[1] / "kill_training.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run"), str(n)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kills = found["kills"]
    assert len(kills) == n
    for before, kill in itertools.pairwise(kills):
        assert kill["from"] == before["kept"], "the run resumes at its checkpoint"
    assert all(kill["from"] <= kill["kept"] <= kill["reached"] for kill in kills)
    lost = [kill["reached"] - kill["kept"] for kill in kills]
    assert max(lost) > 0, "no kill fell between checkpoints: the test shows nothing"
    assert statistics.median(lost) <= 25, "checkpoints are 20 ms apart, and steps at least 1 ms: a slow disk aside"
    assert max(kill["kept"] - kill["from"] for kill in kills) > 0, "no checkpoint was written between kills"
    steps = found["steps"]
    assert steps == list(range(1, steps[-1] + 1)), "no step is missing from the curves, and none occurs twice"
    assert found["ended"] == found["straight"]


def test_the_seed_is_part_of_a_checkpoints_settings() -> None:
    """Only the duration and the device of training may differ."""
    assert {
        *("resume", "minutes", "steps", "own_minutes", "threads", "device"),
        *("checkpoint", "checkpoint_seconds", "curves", "run"),
    } == CHANGEABLE_OPTIONS
