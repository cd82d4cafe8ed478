"""`workbench compare` and `workbench sweep` as commands; tests/bench tests the measurements."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import serving

from workbench.bench.compare import Comparison, Plan, prepare
from workbench.bench.steps import StepDecoder
from workbench.bench.sweep import FAILED, Result, Sweep, Update
from workbench.cli import compare, main, sweep
from workbench.core.errors import PromptError
from workbench.views import scenes

SHORT = ["--max-new-tokens", "6", "--repeats", "1"]


def connect_options() -> list[str]:
    """Return options that connect to the app that the tests share, whose models are loaded."""
    return ["--connect", serving.app().url]


@pytest.mark.slow
def test_a_comparison_is_a_table_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [serving.STORY, "--lane", "draft-model:depth=2", "--lane", "eagle-vlm", *SHORT, *connect_options()]
    assert main(["compare", *asked, "--out", str(tmp_path / "made.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[:5:1]][2:] == [
        "| Autoregressive",
        "| Draft model (depth 2)",
        "| EagleVLM",
    ]
    assert "identical, 1 of 1" in lines[3]
    assert "cannot run" in lines[4]
    back = Comparison.from_wire(json.loads((tmp_path / "made.json").read_text()))
    assert back.complete
    assert back.figures["Draft model (depth 2)"]["speedup"]["n"] == 1
    assert main(["compare", *asked, "--out", str(tmp_path / "made.parquet"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"]
    assert pl.read_parquet(tmp_path / "made.parquet")["setting"].to_list() == ["autoregressive", "draft-model:depth=2"]


def test_chat_messages_are_distinguished_from_text_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def stand_in(prompts: Any, *_: Any, **__: Any) -> None:
        asked.extend((p.name, p.prompt, p.chat) for p in prompts)
        raise PromptError("That is enough.")

    bench = contextlib.nullcontext(SimpleNamespace(compare=stand_in))
    monkeypatch.setattr("workbench.cli.compare.open_workbench", lambda *_: bench)
    assert main(["compare", "Once", "--chat", "What is 2 + 3?", "--chat", "Sort: b, a", "--connect", "http://x"]) != 0
    assert asked == [
        ("prompt 1", "What is 2 + 3?", True),
        ("prompt 2", "Sort: b, a", True),
        ("prompt 3", "Once", False),
    ]


@pytest.mark.slow
def test_ctrl_c_writes_the_measurements_of_a_remote_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = StepDecoder.step

    def enough(self: StepDecoder, message: dict[str, Any]) -> Any:
        if message["done"] >= 4:
            raise KeyboardInterrupt
        return step(self, message)

    monkeypatch.setattr(StepDecoder, "step", enough)
    asked = [serving.STORY, "--lane", "draft-model", "--max-new-tokens", "6", "--repeats", "9", *connect_options()]
    assert main(["compare", *asked, "--out", str(tmp_path / "made.json")]) == 130
    assert "Stopped before the end." in capsys.readouterr().out
    back = Comparison.from_wire(json.loads((tmp_path / "made.json").read_text()))
    assert [len(lane.samples) for lane in back.lanes] == [1, 0]


def test_a_stop_before_the_first_measurement_prints_no_empty_tables() -> None:
    comparison = prepare(["Once"], ["draft-model"], Plan())
    assert compare.to_markdown(comparison) == "Stopped before the end. Nothing was measured.\n"
    grid = Sweep.of({"depth": [1, 2]}, prompts=["Once"])
    update = Update(grid, grid.cells(), {cell.id: Result(cell.id) for cell in grid.cells()})
    assert sweep.to_markdown(update) == f"Stopped before the end. 0 of 2 cells.\n\n{grid.command()}\n"
    for cell in grid.cells():
        update.results[cell.id] = Result(cell.id, FAILED, error="Out of memory.")
    assert sweep.to_markdown(update) == f"failed: Out of memory.\n\n2 of 2 cells.\n\n{grid.command()}\n"


@pytest.mark.slow
def test_questions_about_an_image_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "scene.png"
    picture.write_bytes(base64.b64decode(scenes.gallery()[0]["url"].partition(",")[2]))
    asked = ["--image", str(picture), "--question", "What is it?", "--question", "How many shapes are there?"]
    lanes = ["--lane", "vlm-draft", "--lane", "vlm-text-only", "--target", "vision-target"]
    assert main(["compare", *asked, *lanes, *SHORT, *connect_options(), "--out", str(tmp_path / "made.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "identical, 2 of 2" in lines[3]
    assert "images 1" in "".join(lines[-2:])
    made = json.loads((tmp_path / "made.json").read_text())
    assert [p["text"] for p in made["prompts"]] == ["What is it?", "How many shapes are there?"]
    assert made["settings"]["images"][0].startswith("data:image/png;base64,")
    assert len(made["lanes"][1]["differences"]) == 2
    assert Comparison.from_wire(made).plan.images == tuple(made["settings"]["images"])


@pytest.mark.slow
def test_a_sweep_is_a_grid_and_resumes_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--axis", "depth=1,2", "--axis", "temperature=0", "--prompt", serving.STORY, *SHORT, *connect_options()]
    assert main(["sweep", *asked, "--out", str(tmp_path), "--export", str(tmp_path / "cells.csv")]) == 0
    out = capsys.readouterr().out
    assert "| speed-up: depth ↓ temperature → | 0.0 |" in out
    assert "2 of 2 cells." in out
    assert pl.read_csv(tmp_path / "cells.csv")["depth"].to_list() == [1, 2]
    assert main(["sweep", "--out", str(tmp_path), *connect_options()]) == 0
    assert "2 of 2 cells; 2 were reused from an earlier sweep" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["compare"], "No prompt was given"),
        (["compare", "x", "--lane", "draft-model:dept=1"], "Did you mean 'depth'"),
        (["compare", "x", "--out", "x.txt"], "must end in"),
        (["compare", "--question", "what?"], "a question needs an image"),
        (["sweep"], "No axis was given"),
        (["sweep", "--axis", "depth=0"], "outside its range"),
        (["sweep", "--axis", "depth"], "is not an axis"),
        (["sweep", "--out", "nowhere-at-all"], "contains no sweep"),
    ],
)
def test_errors_are_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) != 0
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
