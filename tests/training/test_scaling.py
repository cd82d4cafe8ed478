"""A scaling study: runs are trained and measured once, a killed study resumes, and the board has the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answer_readings import write_readings

from workbench.bench.scalingboard import page
from workbench.core.errors import ParameterError
from workbench.models.bundle import bundled
from workbench.trace.scaling import fit, runs_from_report
from workbench.training.answers import read_answers
from workbench.training.family import scaling
from workbench.training.family.evaluate import read_held_out_prompts
from workbench.training.family.readings import Readings, batches
from workbench.training.family.scaling import ScalingOptions, run_scaling_study

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ScalingOptions:
    out = tmp_path_factory.mktemp("scaling")
    write_readings(out, 700, 24, given=False)
    return tiny(out)


def tiny(folder: Path) -> ScalingOptions:
    """Return options of a tiny study of the readings in a folder."""
    return ScalingOptions(
        readings=folder / "readings", answers=folder / "answers", out=folder / "study", ffn=(16, 32),
        tokens=(600, 3000), heads=4, form="chain", each=1, max_new_tokens=12, rows=4, places=64, half=False, threads=1,
    )  # fmt: skip


@pytest.mark.on_demand
def test_a_study_runs_once_resumes_after_a_kill_and_writes_a_board(
    options: ScalingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, train = list[tuple[int, int]](), scaling.train_chat_heads

    def counted(asked: Any, report: Any) -> Any:
        trained.append((asked.ffn, asked.steps))
        if len(trained) == 3:
            raise KeyboardInterrupt
        return train(asked, report)

    monkeypatch.setattr(scaling, "train_chat_heads", counted)
    with pytest.raises(KeyboardInterrupt):
        run_scaling_study(options, print)
    assert not (options.out / "scaling.json").exists()
    lines: list[str] = []
    found = run_scaling_study(options, lines.append)
    assert len(trained) == 5, "two runs, the killed one, its repetition, and the last one"
    assert trained[2] == trained[3]
    assert any("4 of 4" in line for line in lines)
    report = json.loads((options.out / "scaling.json").read_text())
    cells = report["cells"]
    assert [cell["ffn"] for cell in cells] == [16, 16, 32, 32]
    assert cells[0]["parameters"] < cells[2]["parameters"] == cells[3]["parameters"]
    assert cells[0]["tokens"] < cells[1]["tokens"]
    assert cells[0]["tokens"] == cells[2]["tokens"], "runs of one length use the same tokens"
    lengths = Readings(options.readings).rows[:, 3]
    readings = Readings(options.readings)
    rows_of_step = batches(readings, readings.split_indices(held_out=False), options.rows, options.seed)
    for cell in cells:
        read = [row for step in range(cell["steps"]) for row in rows_of_step(step)]
        assert cell["tokens"] == int(lengths[read].sum()), "the tokens used, not those requested"
    assert all(e >= r > 0 for cell in cells for e, r in zip(cell["emitted"], cell["rounds"], strict=True))
    assert len(cells[0]["rounds"]) == report["prompts"] > 1
    assert found["law"]["values"] == fit(runs_from_report(report)).values
    text = page(report)
    assert f"{cells[3]['parameters']:,}" in text
    assert f"{found['law']['values'][1]:.3f}" in text
    assert "--set form=chain" in text
    assert run_scaling_study(options, print)["law"] == found["law"]
    assert len(trained) == 5


CLUSTER = """
import sys
from dataclasses import replace
from pathlib import Path
from workbench.core.errors import ParameterError
from workbench.training.family.scaling import study
from test_scaling import tiny

there = replace(tiny(Path(sys.argv[1])), out=Path(sys.argv[2]), ray="local")
study(there, print)
try:
    study(replace(there, max_new_tokens=13), print)
except ParameterError as error:
    print(error)
"""


@pytest.mark.on_demand
@pytest.mark.processes
def test_a_study_on_a_cluster_equals_a_local_one(options: ScalingOptions, tmp_path: Path) -> None:
    """Run by run, with the same errors. In a separate process, because Ray may end one that loses its cluster."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'speculative-decoding-workbench[ray]'")
    run_scaling_study(options, print)
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join(map(str, (tests.parent, tests, Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, str(options.out.parent), str(tmp_path / "study")], timeout=280,
        env=os.environ | {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "4 of 4" in done.stdout
    assert "was made with max_new_tokens=12" in done.stdout
    said = ("ffn", "steps", "tokens", "parameters", "agreement", "emitted", "rounds")
    here, cluster = (
        [[cell[name] for name in said] for cell in json.loads((out / "scaling.json").read_text())["cells"]]
        for out in (options.out, tmp_path / "study")
    )
    assert here == cluster


@pytest.mark.on_demand
def test_a_study_of_other_settings_is_refused(options: ScalingOptions, tmp_path: Path) -> None:
    run_scaling_study(replace(options, ffn=(16, 32)), print)
    with pytest.raises(ParameterError, match="was made with max_new_tokens=12"):
        run_scaling_study(replace(options, max_new_tokens=13), print)
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    *prompts, _ = read_held_out_prompts(options.answers / "answers.jsonl", 9)
    kept = [
        line
        for line in read_answers(options.answers / "answers.jsonl")
        if line["prompt"] in [ids for _, ids in prompts]
    ]
    (fewer / "answers.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [{}, *kept]))
    with pytest.raises(ParameterError, match="was made with prompts="):
        run_scaling_study(replace(options, answers=fewer), print)


def test_settings_that_cannot_be_studied_are_refused(options: ScalingOptions, tmp_path: Path) -> None:
    for nothing in ("elephant", "medusa", "eagle-vlm"):
        with pytest.raises(ParameterError, match=f"no head '{nothing}' of variable size"):
            run_scaling_study(replace(options, method=nothing), print)
    for few in ({"ffn": (16,)}, {"tokens": (600, 600)}):
        with pytest.raises(ParameterError, match="needs several sizes"):
            run_scaling_study(replace(options, **few), print)
    with pytest.raises(ParameterError, match="the same number of steps"):
        run_scaling_study(replace(options, tokens=(600, 601)), print)
    for missing in ("answers", "readings"):
        with pytest.raises(ParameterError, match=f"has no {missing}"):
            run_scaling_study(replace(options, **{missing: tmp_path / "nowhere"}), print)
    (tmp_path / "answers.jsonl").touch()
    with pytest.raises(ParameterError, match="no held-out prompt"):
        run_scaling_study(replace(options, answers=tmp_path), print)
    with pytest.raises(ParameterError, match="not measured as 'shrub'"):
        run_scaling_study(replace(options, form="shrub", out=tmp_path / "other"), print)
