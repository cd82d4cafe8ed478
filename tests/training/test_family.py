"""Drafters for a chat model: what is read of its answers, which tokens are kept, and that what is trained drafts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.core.errors import ParameterError
from workbench.engine import Engine, Request
from workbench.engine.fingerprint import WEIGHTS, differ, fingerprint
from workbench.engine.models import HeadInfo, bundled, load_models
from workbench.engine.trimmed import n_kept
from workbench.methods import registry
from workbench.training import recipes
from workbench.training.answers import AnswersOptions, read, write_answers
from workbench.training.family import heads
from workbench.training.family.drafter import ChatDrafterOptions, load_teacher
from workbench.training.family.heads import ahead
from workbench.training.family.readings import Readings, ReadOptions, batches, make_readings

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")


def quiet(line: str) -> None:
    """Nobody listens."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few answers of the bundled target."""
    out = tmp_path_factory.mktemp("answers")
    options = AnswersOptions("text-target", out / "none", out, 700, max_new_tokens=24, per_task=12, rows=8,
                             dtype="float32", threads=1)  # fmt: skip
    write_answers(options, quiet)
    return out


@pytest.fixture(scope="module")
def options(answers: Path, tmp_path_factory: pytest.TempPathFactory) -> ReadOptions:
    """Readings of these, with one layer tapped, made in two goes."""
    out = tmp_path_factory.mktemp("readings")
    options = ReadOptions("text-target", answers, out, taps=(3,), dtype="float32", threads=1)
    make_readings(replace(options, tokens=300), quiet)
    for name in ("ids", "features", "rows"):  # killed while it wrote the next one
        with (out / f"{name}.bin").open("ab") as file:
            file.write(b"\x01" * 7)
    make_readings(options, quiet)
    return options


def test_readings_are_the_targets_features_of_each_answer_once(options: ReadOptions, answers: Path) -> None:
    readings, lines = Readings(options.out), {line["n"]: line for line in read(answers / "answers.jsonl")}
    numbers = readings.rows[:, 0].tolist()
    assert len(set(numbers)) == len(numbers) == len(lines)
    assert readings.part(held=True)
    assert sorted(readings.part(held=True) + readings.part(held=False)) == list(range(len(numbers)))
    models = load_models("text-target", None, "cpu", "float32")
    for row in (0, len(numbers) // 2, len(numbers) - 1):
        line, one = lines[numbers[row]], readings.dialogue(row)
        assert one.ids.tolist() == line["prompt"] + line["answer"]
        assert one.n_prompt == len(line["prompt"])
        with torch.inference_mode():
            made = models.target.model(one.ids[None], output_hidden_states=True)
        torch.testing.assert_close(one.features.float(), made.hidden_states[-1][0], rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(
            readings.stream("tap-3", row).float(), made.hidden_states[3][0], rtol=1e-2, atol=1e-2
        )
    greedy = next(row for row in range(len(numbers)) if readings.rows[row, 4])
    one, teacher = readings.dialogue(greedy), load_teacher(ChatDrafterOptions("text-target", options.out))
    said = teacher.logits(one.features[one.n_prompt - 1 : -1]).argmax(-1)
    assert (said == one.ids[one.n_prompt :]).float().mean() > 0.9, "what the target says follows from them"


def test_a_batch_depends_on_its_step_alone(options: ReadOptions) -> None:
    readings = Readings(options.out)
    rows = readings.part(held=False)
    once, again = batches(readings, rows, 4, seed=3), batches(readings, rows, 4, seed=3)
    n = -(-len(rows) // 4)
    first = [once(step) for step in range(2 * n)]
    assert [again(step) for step in (n + 1, 0, n)] == [first[n + 1], first[0], first[n]]
    for turn in (first[:n], first[n:]):
        assert sorted(row for batch in turn for row in batch) == rows, "each row once"
    assert first[:n] != first[n:], "in a new order"


def test_readings_of_another_kind_are_not_gone_on_with(options: ReadOptions, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"taps=\[3\]"):
        make_readings(replace(options, taps=(2,)), quiet)
    with pytest.raises(ParameterError, match="readings of text-target"):
        load_teacher(ChatDrafterOptions("smollm2", options.out))
    with pytest.raises(ParameterError, match="answers of text-target"):
        make_readings(replace(options, target="text-drafter"), quiet)
    with pytest.raises(ParameterError, match="few readings"):
        load_teacher(ChatDrafterOptions("text-target", tmp_path))
    other = Path(shutil.copytree(options.out, tmp_path / "other"))
    facts = json.loads((other / "readings.json").read_text())
    (other / "readings.json").write_text(
        json.dumps({**facts, WEIGHTS: f"{int(facts[WEIGHTS], 16) ^ (1 << 99) - 1:064x}"})
    )
    with pytest.raises(ParameterError, match="other weights"):
        load_teacher(ChatDrafterOptions("text-target", other))
    with pytest.raises(ParameterError, match=WEIGHTS):
        make_readings(replace(options, out=other), quiet)


def test_a_resumed_run_of_heads_reads_on(options: ReadOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(heads, "batches", lambda *how: lambda step: asked.append(step) or batches(*how)(step))
    chosen = {"target": "text-target", "readings": options.out, "vocabulary": 300, "ffn": 16, "heads": 4, "rows": 4,
              "places": 64, "threads": 1, "held": 2, "half": False, "out": tmp_path,
              "checkpoint": tmp_path / "run.pt"}  # fmt: skip
    recipes.run("chat-heads", chosen | {"steps": 2}, quiet)
    recipes.run("chat-heads", chosen | {"steps": 4}, quiet)
    assert asked == [0, 1, 2, 3]


def test_a_draft_model_is_trained_and_drafts(options: ReadOptions, tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    chosen = {"target": "text-target", "readings": options.out, "out": out, "checkpoint": tmp_path / "run.pt",
              "vocabulary": 700, "hidden": 64, "layers": 1, "inner": 96, "steps": 40, "rows": 8, "positions": 256,
              "threads": 1, "held": 4}  # fmt: skip
    figures = recipes.run("chat-drafter", chosen, quiet)
    assert json.loads((out / "training.json").read_text()) == json.loads(json.dumps(figures))
    assert figures["kept"] == 700
    assert 0.5 < figures["covered"] <= 1
    assert figures["curve"][-1] == (figures["tokens"], round(figures["held"]["agreement"], 4))
    assert figures["losses"]["agreement"] > 0.15, "it learns"
    models = load_models("text-target", str(out), "cpu", "float64", strict=True)
    assert models.drafter is not None
    assert n_kept(models.drafter.model) == 700
    prompt = models.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write a story about Tom."}], add_generation_prompt=True, return_dict=False
    )
    plain, drafted = (
        Engine(models).generate(Request(prompt, registry.get(name), max_new_tokens=32))
        for name in ("autoregressive", "draft-model")
    )
    assert drafted.token_ids == plain.token_ids
    more = recipes.run("chat-drafter", chosen | {"steps": 44}, quiet)
    assert more["curve"][:-1] == figures["curve"], "a resumed run goes on with its curve"
    assert np.isfinite(more["losses"]["loss"])


@pytest.mark.parametrize("method", ["eagle-vlm", "medusa"])
def test_heads_are_trained_and_draft_from_what_they_keep(method: str, options: ReadOptions, tmp_path: Path) -> None:
    out = tmp_path / "models" / f"text-target-{method}"
    chosen = {"method": method, "target": "text-target", "readings": options.out, "out": out.parent, "vocabulary": 700,
              "checkpoint": tmp_path / "run.pt", "ffn": 64, "heads": 4, "blocks": 2, "steps": 60, "rows": 8,
              "places": 256, "threads": 1, "held": 4, "half": False}  # fmt: skip
    figures = recipes.run("chat-heads", chosen, quiet)
    assert figures["kept"] == 700
    assert figures["curve"] == [(figures["tokens"], round(next(iter(figures["held"].values())), 4))]
    begun = recipes.run(
        "chat-heads", chosen | {"steps": 1, "out": tmp_path / "begun", "checkpoint": tmp_path / "begun.pt"}, quiet
    )
    assert (tmp_path / f"run-{method}.pt").exists(), "another method goes on from its own"
    for name, loss in figures["losses"].items():
        assert loss < 0.95 * begun["losses"][name], name
    models = load_models("text-target", None, "cpu", "float64")
    config = json.loads((out / "config.json").read_text())
    assert not differ(config[WEIGHTS], fingerprint(models.target.model))
    models.heads[method] = HeadInfo("heads", out, config)
    prompt = models.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write a story about Tom."}], add_generation_prompt=True, return_dict=False
    )
    plain, drafted = (
        Engine(models).generate(Request(prompt, registry.get(name), max_new_tokens=24))
        for name in ("autoregressive", method)
    )
    assert drafted.token_ids == plain.token_ids
    said = {token for r in drafted.rounds for token in r.nodes.tokens}
    assert said
    assert said <= set(config["draft_vocabulary"])


def test_medusa_is_asked_for_the_tokens_behind_the_targets_own() -> None:
    ids, features = torch.arange(20).view(2, 10), torch.arange(20.0).view(2, 10, 1)
    answer = torch.zeros(2, 10, dtype=torch.bool)
    answer[0, 3:8] = True  # decide the tokens 4 … 8
    answer[1, 8:9] = True  # one token: nothing to guess behind it
    read, wanted = ahead(ids, features, answer, 3)
    assert read.flatten().tolist() == [3, 4, 5, 6]
    assert wanted.tolist() == [[5, 6, 7, 8], [6, 7, 8, -1], [7, 8, -1, -1]]
