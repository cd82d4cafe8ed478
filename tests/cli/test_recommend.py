"""`workbench recommend` and `workbench datastore` as commands; other tests cover the measuring itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import model_helpers
import pytest

from workbench.bench import board, workload_board
from workbench.bench import recommend as measuring
from workbench.bench.prompts import BenchPrompt
from workbench.bench.recommend import PromptIds
from workbench.bench.workloads import KINDS
from workbench.cli import recommend as asking
from workbench.cli import workloads
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.trace.store import RunStore

from .conftest import Command

SHORT = ["--method", "suffix", "--minutes", "0.05", "--max-new-tokens", "4"]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    found = model_helpers.make_small_models(noise=None)
    found.target_name = "text-target"
    monkeypatch.setattr(asking, "load", lambda *_: found)
    return found


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "name": "mine"}\n{"prompt": "b"}\n')
    return str(path)


@pytest.mark.usefixtures("models")
def test_recommend_measures_the_users_prompts(workbench: Command, prompts: str) -> None:
    found = workbench("recommend", "--prompts", prompts, *SHORT, "--json")
    assert found.status == 0, found.err
    assert found.json["prompts"] == ["mine", "prompt-2"]
    assert [choice["method"] for choice in found.json["ranking"]] == ["suffix"]
    assert found.json["command"].startswith("workbench generate --target text-target")
    markdown = workbench("recommend", "--prompts", prompts, *SHORT).out
    assert "| suffix policy=planned |" in markdown
    assert "workbench generate --target text-target" in markdown


@pytest.mark.usefixtures("models")
def test_ctrl_c_gives_a_recommendation_from_the_runs_so_far(
    workbench: Command, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measuring.recommend

    def interrupted(*args: Any, progress: Any, **options: Any) -> Any:
        def stop(spent: float, done: int, what: str) -> None:
            if done == 7:  # four runs of warm-up, three that count
                raise KeyboardInterrupt

        return whole(*args, progress=stop, **options)

    monkeypatch.setattr(measuring, "recommend", interrupted)
    found = workbench("recommend", "--prompts", prompts, *SHORT, "--minutes", "1", "--json")
    assert found.status == 130
    assert found.json["complete"] is False
    assert found.json["ranking"] or found.json["refused"], "runs of four tokens vary so much that one may be refused"


def test_the_prompts_of_the_last_saved_runs_of_the_target_are_measured(
    models: Models, workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    assert "no saved run" in workbench("recommend", "--last", "3", *SHORT).err
    store, plain = RunStore(), registry.get("autoregressive")
    for ids in ([1, 2], [3, 4], [3, 4], [5, 1]):
        store.save(Engine(models).generate(Request(ids, plain, max_new_tokens=2)))
    seen: list[list[PromptIds]] = []
    whole = measuring.recommend
    monkeypatch.setattr(
        measuring, "recommend", lambda m, asked, *a, **o: seen.append(asked) or whole(m, asked, *a, **o)
    )
    assert workbench("recommend", "--last", "2", *SHORT).status == 0
    assert [one.ids for one in seen[0]] == [[5, 1], [3, 4]], "newest first, each once"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["recommend", "--last", "2", "--prompts", "x"], "--prompts or --last, not both"),
        (["recommend", "--method", "sufix"], "Did you mean 'suffix'"),
        (["recommend", "--minutes", "0"], "--minutes"),
        (["recommend", "--report"], "results are saved on a board only with --kinds"),
        (["recommend", "--kinds", "--last", "2"], "the workloads have their own prompts"),
        (["recommend", "--kinds", "--method", "sufix"], "Did you mean 'suffix'"),
        (["datastore", "show", "nowhere"], "is not a datastore"),
        (["datastore", "build", "nowhere.txt", "--out", "x"], "nowhere.txt cannot be used"),
    ],
)
def test_errors_are_one_line(words: list[str], says: str, workbench: Command, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found = workbench(*words)
    assert found.status in (1, 2)
    assert says in found.err


def test_a_datastore_is_built_and_shown_and_a_damaged_one_refused(workbench: Command, tmp_path: Path) -> None:
    text, out = tmp_path / "notes.txt", tmp_path / "store"
    text.write_text("The kite was red, and the sky was blue.\n" * 30)
    made = workbench("datastore", "build", str(text), "--out", str(out), "--json")
    assert made.status == 0, made.err
    shown = workbench("datastore", "show", str(out), "--at", "3", "--json").json
    assert shown["tokens"] == made.json["tokens"]
    assert shown["of"] == "notes.txt"
    assert "sky was blue" in shown["sample"]
    tokens = bytearray((out / "tokens.npy").read_bytes())
    tokens[-9] ^= 1
    (out / "tokens.npy").write_bytes(tokens)
    assert "truncated or damaged" in workbench("datastore", "show", str(out)).err
    card = json.loads((out / "card.json").read_text())
    assert card["target"] == "text-target"


def test_workloads_are_saved_and_measurement_resumes(
    models: Models, workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    monkeypatch.setattr(workloads, "load", lambda *_: models)
    small = {kind: [BenchPrompt(f"{kind}-1", "ab", kind)] for kind in KINDS}
    monkeypatch.setattr("workbench.bench.datasets.load_suite", lambda *_: [p for each in small.values() for p in each])
    asked = ["recommend", "--kinds", "--report", "--method", "suffix", "--max-new-tokens", "4"]
    result = workbench(*asked)
    assert result.status == 0, result.err
    assert "| `suffix` |" in result.out
    assert set(board.read("work")) == {f"{kind} on text-target" for kind in KINDS}
    assert (tmp_path / "work.md").read_text() == workload_board.markdown(workload_board.targets())
    saved = board.read("work")
    again = workbench(*asked, "--json")
    assert "Workloads already on the board" in again.err
    assert board.read("work") == saved
    assert again.json[0]["target"] == "text-target"
    assert workbench(*asked, "--fresh").status == 0
    assert board.read("work") != saved
