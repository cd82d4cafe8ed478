"""Drafters for a chat model: readings of its answers, the draft vocabulary, and trained heads that draft."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import model_helpers
import numpy as np
import pytest
import torch

from workbench.core.errors import ParameterError
from workbench.engine import Engine, Models, Request
from workbench.kernels.reduced_vocabulary import draft_vocabulary_size
from workbench.methods import registry
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.eagle import train as eagle
from workbench.methods.eagle_3 import train as eagle_3
from workbench.methods.medusa.train import make_inputs_and_labels
from workbench.models.bundle import bundled
from workbench.models.fingerprint import WEIGHTS, fingerprint, fingerprints_differ
from workbench.models.int8_checkpoint import read_weights
from workbench.models.loading import HeadInfo, load_models
from workbench.models.model_index import MODEL_INDEX, SMOLLM2
from workbench.models.shared_embeddings import ENTER, LEAVE, ROWS
from workbench.models.tokenizer_source import tokenizer_source_for
from workbench.trace import metrics
from workbench.trace.curves import SPEEDUP, TAU, TESTED
from workbench.trace.events import Round, Trace
from workbench.trace.nodes import Nodes
from workbench.trace.tokens import PLAIN, EmittedToken
from workbench.training import recipes
from workbench.training.answers import ANSWERS, rate_of, read_answers
from workbench.training.cards import TrainedModel, storage_section
from workbench.training.family import fusing, pipeline, validation_drafts
from workbench.training.family.cards import card
from workbench.training.family.drafter import ChatDrafterOptions, Teacher, load_teacher
from workbench.training.family.evaluate import SUITE, evaluation_settings, folders_of, with_chain_drafts
from workbench.training.family.options import chat_head_kinds, options_class
from workbench.training.family.readings import TEXT_ANSWER, Readings, ReadingsOptions, batches, make_readings
from workbench.training.family.validation_drafts import OnPolicyEvaluator
from workbench.training.family.vocabulary import select_draft_vocabulary
from workbench.training.heads.artefact import load_net
from workbench.training.heads.features import Dialogue, batch_of
from workbench.training.heads.trainer import agreement

from .training_setups import make_training_setup, quiet

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")


def test_readings_are_the_targets_features_of_each_answer_once(options: ReadingsOptions, answers: Path) -> None:
    readings, lines = Readings(options.out), {line["n"]: line for line in read_answers(answers / "answers.jsonl")}
    numbers = readings.rows[:, 0].tolist()
    assert len(set(numbers)) == len(numbers) == len(lines)
    assert readings.split_indices(held_out=True)
    assert sorted(readings.split_indices(held_out=True) + readings.split_indices(held_out=False)) == list(
        range(len(numbers))
    )
    models = load_models("text-target", None, "cpu", "float32")
    for row in (0, len(numbers) // 2, len(numbers) - 1):
        line, one = lines[numbers[row]], readings.dialogue(row)
        assert one.ids.tolist() == line["prompt"] + line["answer"]
        assert one.n_prompt == len(line["prompt"])
        with torch.inference_mode():
            made = models.target.model(one.ids[None], output_hidden_states=True)
        torch.testing.assert_close(one.features.float(), made.hidden_states[-1][0], rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(
            readings.hidden_states("tap-3", row).float(), made.hidden_states[3][0], rtol=1e-2, atol=1e-2
        )
    greedy = next(row for row in range(len(numbers)) if readings.rows[row, 4] == 1)
    one, teacher = (
        readings.dialogue(greedy),
        load_teacher(ChatDrafterOptions(target="text-target", readings=options.out)),
    )
    said = teacher.logits(one.features[one.n_prompt - 1 : -1]).argmax(-1)
    assert (said == one.ids[one.n_prompt :]).float().mean() > 0.9, "the target's tokens follow from the features"


def test_a_batch_depends_on_its_step_alone(options: ReadingsOptions) -> None:
    readings = Readings(options.out)
    rows = readings.split_indices(held_out=False)
    once, again = batches(readings, rows, 4, seed=3), batches(readings, rows, 4, seed=3)
    n = -(-len(rows) // 4)
    first = [once(step) for step in range(2 * n)]
    assert [again(step) for step in (n + 1, 0, n)] == [first[n + 1], first[0], first[n]]
    for turn in (first[:n], first[n:]):
        assert sorted(row for batch in turn for row in batch) == rows, "each row once"
    assert first[:n] != first[n:], "the second epoch has another order"


def written_with(kind: str, folder: Path, config: dict[str, Any]) -> Trace:
    """Generate with text-target and a head; check that the text equals that of plain decoding."""
    models = load_models("text-target", None, "cpu", "float64")
    models.heads[kind] = HeadInfo("heads", folder, config)
    prompt = models.tokenizer("Once upon a time")["input_ids"]
    plain, drafted = (
        Engine(models).generate(Request(prompt, registry.get(name), max_new_tokens=24))
        for name in ("autoregressive", kind)
    )
    assert drafted.token_ids == plain.token_ids
    return drafted


def readings_of(out: Path) -> list[list[int]]:
    """Return all rows, as saved on disk."""
    return Readings(out).rows.tolist()


def test_answers_of_the_data_set_are_read_in_addition_to_the_targets_own(
    options: ReadingsOptions, answers: Path, tmp_path: Path
) -> None:
    """They are training text only: they are neither target tokens nor counted for the draft vocabulary."""
    given, out = tmp_path / "given", tmp_path / "readings"
    shutil.copytree(options.out, out)
    given.mkdir()
    first = (answers / ANSWERS).read_text().partition("\n")[0]
    line = {"n": 9_001, "group": "maths", "temperature": None, "prompt": [5, 6, 7], "answer": [11, 12, 13, 14]}
    (given / ANSWERS).write_text(json.dumps(json.loads(first) | {"given": True}) + "\n" + json.dumps(line) + "\n")
    make_readings(replace(options, answers=given, out=out), quiet)
    readings = Readings(out)
    taken = readings.rows[0, 0].item()  # a prompt that also has an answer of the target
    (given / ANSWERS).write_text((given / ANSWERS).read_text().replace("9001", str(taken)))
    make_readings(replace(options, answers=given, out=out), quiet)
    make_readings(replace(options, answers=given, out=out), quiet)
    assert [n for n, *_, kind in readings_of(out) if kind == TEXT_ANSWER] == [9_001, taken]
    assert readings.rows[:, 4].tolist() == [*Readings(options.out).rows[:, 4].tolist(), TEXT_ANSWER]
    assert readings.text(len(readings.rows) - 1)[0].tolist() == [5, 6, 7, 11, 12, 13, 14]
    held, before = readings.split_indices(held_out=True), Readings(options.out)
    kept, facts = select_draft_vocabulary(readings, held, 300, [0])
    alone = select_draft_vocabulary(before, held, 300, [0])
    assert (kept, facts["answer_tokens"]) == (alone[0], alone[1]["answer_tokens"])
    assert facts["given_tokens"] == 4
    assert "given_tokens" not in alone[1]


def test_readings_with_other_settings_are_not_resumed(options: ReadingsOptions, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"taps=\[1, 3\]"):
        make_readings(replace(options, taps=(2,)), quiet)
    with pytest.raises(ParameterError, match=r"\(readings\) of text-target"):
        load_teacher(ChatDrafterOptions(target="smollm2", readings=options.out))
    with pytest.raises(ParameterError, match="answers that text-target generated"):
        make_readings(replace(options, target="text-drafter"), quiet)
    with pytest.raises(ParameterError, match="few readings"):
        load_teacher(ChatDrafterOptions(target="text-target", readings=tmp_path))
    other = Path(shutil.copytree(options.out, tmp_path / "other"))
    facts = json.loads((other / "readings.json").read_text())
    (other / "readings.json").write_text(
        json.dumps({**facts, WEIGHTS: f"{int(facts[WEIGHTS], 16) ^ (1 << 99) - 1:064x}"})
    )
    with pytest.raises(ParameterError, match="other weights"):
        load_teacher(ChatDrafterOptions(target="text-target", readings=other))
    with pytest.raises(ParameterError, match=WEIGHTS):
        make_readings(replace(options, out=other), quiet)


def test_a_resumed_run_of_heads_continues_with_the_readings(
    options: ReadingsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(eagle, "batches", lambda *how: lambda step: asked.append(step) or batches(*how)(step))
    chosen = {"target": "text-target", "readings": options.out, "vocabulary": 300, "ffn": 16, "heads": 4, "rows": 4,
              "places": 64, "threads": 1, "held": 2, "half": False, "out": tmp_path,
              "checkpoint": tmp_path / "run.pt"}  # fmt: skip
    recipes.run("chat-heads", chosen | {"steps": 2}, quiet)
    recipes.run("chat-heads", chosen | {"steps": 4}, quiet)
    assert asked == [0, 1, 2, 3]


def test_a_draft_model_is_trained_and_drafts(
    options: ReadingsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert draft_vocabulary_size(models.drafter.model) == 700
    prompt = models.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write a story about Tom."}], add_generation_prompt=True, return_dict=False
    )
    plain, drafted = (
        Engine(models).generate(Request(prompt, registry.get(name), max_new_tokens=32))
        for name in ("autoregressive", "draft-model")
    )
    assert drafted.token_ids == plain.token_ids
    assert tokenizer_source_for(str(out)) is None
    assert not hasattr(models.drafter.model.config, ROWS), "the embedding of a target that may be absent is not shared"
    on = chosen | {"checkpoint": tmp_path / "on.pt", "begin": out, "out": tmp_path / "on", "steps": 1}
    assert recipes.run("chat-drafter", on, quiet)["losses"]["agreement"] > 0.6 * figures["losses"]["agreement"]
    monkeypatch.setitem(MODEL_INDEX, "text-target", SMOLLM2)  # the tokenizer of such a target is not saved
    more = recipes.run("chat-drafter", chosen | {"steps": 44}, quiet)
    assert tokenizer_source_for(str(out))
    weights = read_weights(out / "model.safetensors")
    assert weights[ENTER].shape == weights[LEAVE].shape == (64, 288)
    assert not [name for name in weights if "embed" in name or "head" in name], "nor are rows"
    again = load_models("text-target", str(out), "cpu", "float64", strict=True)
    assert again.drafter is not None
    assert Engine(again).generate(Request(prompt, registry.get("draft-model"), max_new_tokens=32)).token_ids == (
        plain.token_ids
    )
    assert more["curve"][:-1] == figures["curve"], "a resumed run continues its curve"
    assert np.isfinite(more["losses"]["loss"])
    fresh = chosen | {"checkpoint": tmp_path / "further.pt", "begin": out, "vocabulary": 650, "hidden": 32,
                      "resume": False}  # fmt: skip
    before = read_weights(out / "model.safetensors")
    for name, average in (("moved", 0.0), ("mean", 0.5)):
        further = recipes.run(
            "chat-drafter",
            fresh | {"steps": 3, "out": tmp_path / name, "average": average},
            quiet,
        )
        assert further["kept"] == 700, "the draft vocabulary is kept"
        assert further["begun"]["steps"] == more["steps"]
    assert further["losses"]["agreement"] > 0.6 * more["losses"]["agreement"], "and most of the agreement"
    moved, mean = (read_weights(tmp_path / name / "model.safetensors") for name in ("moved", "mean"))
    still = [name for name in before if torch.equal(before[name], moved[name])]
    assert not still, "all weights are trained"
    for name in before:
        average = (before[name].float() + moved[name].float()) / 2
        assert (mean[name].float() - average).norm() < 0.02 * average.norm(), "apart from rounding to int8"
    with pytest.raises(ParameterError, match="both the model to start from and the output folder"):
        recipes.run("chat-drafter", fresh | {"out": out}, quiet)
    for folder in (tmp_path / "none", Path("text-drafter"), Path("assets/models/text-drafter")):
        with pytest.raises(ParameterError, match="not a drafter that the recipe chat-drafter trained for text-target"):
            recipes.run("chat-drafter", fresh | {"begin": folder, "out": tmp_path / "third"}, quiet)


def one_branch_of(models: Models, chain: dict[str, Any], prompt: list[int]) -> Trace:
    """Generate with a drafter measured as a chain."""
    models = with_chain_drafts(models)
    method = registry.get(chain["method"]).with_params(**chain["params"])
    return Engine(models).generate(Request(prompt, method, max_new_tokens=24))


def has_draft_vocabulary(kind: str) -> bool:
    """Return whether heads of a kind can have a smaller vocabulary than the target."""
    return options_class(kind)(method=kind, vocabulary=7).draft_vocabulary_size(9) == 7


METHOD_OF = {"eagle": "eagle-2"}
"""Method that drafts with a head, if its name differs from the head's."""


@pytest.mark.parametrize(
    "method",
    model_helpers.mark_on_demand_unless(
        ("eagle", "block-diffusion"),  # test_head_training.py tests the losses of most other kinds
        [kind for kind in chat_head_kinds() if has_draft_vocabulary(kind)],
    ),
)
def test_heads_are_trained_and_draft_from_their_vocabulary(
    method: str, options: ReadingsOptions, answers: Path, tmp_path: Path
) -> None:
    out = tmp_path / "models" / f"text-target-{method}"
    chosen = {"method": method, "target": "text-target", "readings": options.out, "out": out.parent, "vocabulary": 700,
              "checkpoint": tmp_path / "run.pt", "ffn": 64, "heads": 4, "blocks": 2, "exit_layer": 1, "steps": 45,
              "rows": 8, "places": 256, "threads": 1, "held": 4, "half": False, "block": 4}  # fmt: skip
    if method == "block-diffusion":
        chosen["taps"] = (1, 3)  # the captured layers of the readings
    figures = recipes.run("chat-heads", chosen, quiet)
    assert figures["kept"] == 700
    assert figures["curve"][-1] == (figures["tokens"], round(next(iter(figures["held"].values())), 4))
    begun = recipes.run(
        "chat-heads", chosen | {"steps": 1, "out": tmp_path / "begun", "checkpoint": tmp_path / "begun.pt"}, quiet
    )
    assert (tmp_path / f"run-{method}.pt").exists(), "each method has its own checkpoint"
    for part, loss in figures["losses"].items():
        assert loss < 0.95 * begun["losses"][part], part
    if method == "falcon":
        assert read_weights(out / "model.safetensors")["recall.weight"].any(), "the LSTM's output weights are trained"
    if method == "fspad":
        assert read_weights(out / "model.safetensors")["voice.weight"].any(), "the output projection is trained, too"
    models = load_models("text-target", None, "cpu", "float64")
    config = json.loads((out / "config.json").read_text())
    assert not fingerprints_differ(config[WEIGHTS], fingerprint(models.target.model))
    models.heads[method] = HeadInfo("heads", out, config)
    prompt = models.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write a story about Tom."}], add_generation_prompt=True, return_dict=False
    )
    plain, drafted = (
        Engine(models).generate(Request(prompt, registry.get(one), max_new_tokens=24))
        for one in ("autoregressive", METHOD_OF.get(method, method))
    )
    assert drafted.token_ids == plain.token_ids
    said = {token for r in drafted.rounds for token in r.nodes.tokens}
    assert said
    assert said <= set(config["draft_vocabulary"])
    other = {"eagle": "kangaroo", "kangaroo": "medusa"}.get(method, "eagle")
    stranger = Path(shutil.copytree(out, out.parent / f"text-target-{other}"))
    flipped = f"{int(config[WEIGHTS], 16) ^ (1 << 99) - 1:064x}"
    (stranger / "config.json").write_text(json.dumps(config | {WEIGHTS: flipped}))
    lines: list[str] = []
    measured = recipes.run("chat-evaluate", {"target": "text-target", "answers": answers, "models": out.parent,
                           "each": 1, "max_new_tokens": 12, "dtype": "float32", "threads": 1},
                           lines.append)  # fmt: skip
    assert set(measured) == {method}
    assert any(f"{stranger.name} is left out" in line and "other weights" in line for line in lines)
    chain = measured[method]["chain"]
    widest = {len(r.nodes.depth) - len(set(r.nodes.depth)) for r in one_branch_of(models, chain, prompt).rounds}
    assert widest == {0}, "a chain has one node per level"
    depth, tried, kept = chain["by_depth"][0]
    assert (depth, chain["tau"] >= 1) == (1, True)
    assert 0 <= kept <= tried
    text = (out / "README.md").read_text()
    assert f"written by `workbench train answers`, {rate_of(answers):,.0f} tokens per second, to prompts" in text
    assert f"| 1 | {tried:,} | {kept / tried:.1%} |" in text
    assert f"τ = {chain['tau']:.2f}" in text


def test_pseudo_states_of_a_layer_that_the_target_lacks_are_refused(options: ReadingsOptions, tmp_path: Path) -> None:
    chosen = {"method": "hidden-transfer", "target": "text-target", "readings": options.out, "out": tmp_path,
              "checkpoint": None, "steps": 1, "threads": 1, "held": 4}  # fmt: skip
    for layer in (0, 13):
        with pytest.raises(ParameterError, match=f"transfer_layer={layer}, but the target has 12 layers"):
            recipes.run("chat-heads", chosen | {"transfer_layer": layer}, quiet)


@pytest.mark.parametrize(
    ("method", "trained"),
    [("ppd", {"embeds": (3, 1, 288)}), ("hidden-transfer", {f"steps.{k}.weight": (288, 288) for k in range(3)})],
)
def test_in_pass_drafters_are_trained_through_the_target(
    method: str, trained: dict[str, tuple[int, ...]], options: ReadingsOptions, tmp_path: Path
) -> None:
    """The trained prompt or transfer weights predict the target's tokens better than at the start."""
    chosen = {"method": method, "target": "text-target", "readings": options.out, "out": tmp_path, "rows": 4,
              "checkpoint": tmp_path / "run.pt", "threads": 1, "held": 4, "half": False, "resume": False}  # fmt: skip
    begun = recipes.run("chat-heads", chosen | {"steps": 1}, quiet)
    figures = recipes.run("chat-heads", chosen | {"steps": 8}, quiet)
    assert figures["losses"]["token 1"] < begun["losses"]["token 1"]
    folder = tmp_path / f"text-target-{method}"
    net, config = load_net(folder)
    assert {name: tuple(weight.shape) for name, weight in net.named_parameters()} == trained
    assert "draft_vocabulary" not in config, "the target itself drafts, with its whole vocabulary"
    drafted = written_with(method, folder, config)
    assert metrics.count_drafted(drafted.rounds) > 0


def test_accelerator_adapters_learn_through_the_first_layers_and_draft(
    options: ReadingsOptions, tmp_path: Path
) -> None:
    """The adapters' stream gets closer to the target's last hidden state than the plain one; its loss falls."""
    chosen = {"method": "m2r2", "target": "text-target", "readings": options.out, "out": tmp_path, "exit_layer": 2,
              "rank": 8, "rows": 200, "threads": 1, "held": 4, "half": False, "resume": False,
              "checkpoint": tmp_path / "run.pt"}  # fmt: skip
    for layer in (0, 12):
        with pytest.raises(ParameterError, match=f"exit_layer={layer}, but the target has 12 layers"):
            recipes.run("chat-heads", chosen | {"exit_layer": layer, "steps": 1}, quiet)
    chosen["places"] = 10_000  # all positions, so that all steps are equal
    begun = recipes.run("chat-heads", chosen | {"steps": 1}, quiet)
    figures = recipes.run("chat-heads", chosen | {"steps": 12}, quiet)
    assert all(figures["losses"][name] < begun["losses"][name] for name in ("ce_soft", "cosine"))
    found = figures["held"]
    assert found["cosine"] > found["of the slow stream"] + 0.002
    for name in ("of the plain exit", "of the slow stream"):
        assert begun["held"][name] == found[name], "the target has not changed"
    folder = tmp_path / "text-target-m2r2"
    net, config = load_net(folder)
    assert net.sizes == {"width": 288, "exit_layer": 2, "rank": 8} == config["net"]
    assert sum(weight.numel() for weight in net.parameters()) == 8 * 2 * 8 * 288
    assert "draft_vocabulary" not in config, "the target's LM head drafts, with its whole vocabulary"
    drafted = written_with("m2r2", folder, config)
    assert metrics.count_drafted(drafted.rounds) > 0


def test_target_tokens_are_computed_once_per_answer(
    options: ReadingsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course, asked = make_training_setup(options, tmp_path), list[int]()
    likeliest = Teacher.greedy_tokens
    monkeypatch.setattr(Teacher, "greedy_tokens", lambda self, x: asked.append(len(x)) or likeliest(self, x))
    row = course.readings.split_indices(held_out=False)[0]
    one, said = course.readings.dialogue(row), course.target_tokens(row)
    decides = slice(one.n_prompt - 1, len(one.ids) - 1)
    assert torch.equal(said[decides], course.teacher.logits(one.features[decides]).argmax(1))
    assert said[: one.n_prompt - 1].eq(-1).all()
    assert said[-1] == -1
    assert course.target_tokens(row) is said
    assert asked == [len(one.ids) - one.n_prompt], "once"
    prompt = make_training_setup(options, tmp_path, everywhere=True).target_tokens(row)
    assert prompt[:-1].ge(0).all(), "also at positions of the prompt, if these are used for training"


def test_scales_of_hidden_states_ignore_first_tokens_and_are_powers_of_two(
    options: ReadingsOptions, tmp_path: Path
) -> None:
    course = make_training_setup(options, tmp_path)
    found, rows = (
        fusing.measure_scales(course, (1, 3)),
        course.readings.split_indices(held_out=False)[: fusing.SCALE_TEXTS],
    )
    for at, tap in enumerate((1, 3)):
        stream = torch.cat([course.readings.hidden_states(f"tap-{tap}", row)[1:].double() for row in rows])
        share = found[at * 288 : (at + 1) * 288] / stream.square().mean(0).sqrt()
        assert share.log2().abs().max() < 0.51
    assert torch.equal(found, found.log2().round().exp2()), "scaling by powers of 2 causes no rounding"


@pytest.mark.parametrize("learns", [False, True])
def test_eagle_3_uses_the_targets_lm_head_or_trains_its_own(
    options: ReadingsOptions, tmp_path: Path, learns: bool
) -> None:
    course = make_training_setup(
        options, tmp_path, steps=4, heads=6, ffn=16, rows=10, half=False, head_learns=learns, loss="ce_soft:1"
    )
    eagle_3.train(course)
    folder = tmp_path / "text-target-eagle-3"
    net, config = load_net(folder)
    if learns:
        assert torch.equal(net.draft_token_ids, course.draft_vocabulary)
        assert not torch.allclose(
            net.lm_head.weight, course.teacher.lm_head[course.draft_vocabulary], rtol=2**-10, atol=1e-5
        )
    else:
        assert not any("lm_head" in name or "d2t" in name for name in net.state_dict())
    assert config.get("draft_vocabulary") == (None if learns else course.draft_vocabulary.tolist())
    drafted = written_with("eagle-3", folder, config)
    tokens = {token for r in drafted.rounds for token in r.nodes.tokens}
    assert tokens
    assert tokens <= set(course.draft_vocabulary.tolist())
    assert any("outside the draft vocabulary" in r.signals for r in drafted.rounds)


def test_prompts_are_trained_on_if_requested_and_never_measured_on(options: ReadingsOptions) -> None:
    plain, all_of_it = Readings(options.out), Readings(options.out, include_prompts=True)
    for row in plain.split_indices(held_out=False):
        mine, other = plain.dialogue(row), all_of_it.dialogue(row)
        assert torch.equal(mine.ids, other.ids)
        assert mine.n_prompt > 1
        assert other.n_prompt == 1
    held = plain.split_indices(held_out=True)
    assert held
    assert [all_of_it.dialogue(row).n_prompt for row in held] == [plain.dialogue(row).n_prompt for row in held]


def further_options(options: ReadingsOptions, tmp_path: Path) -> dict[str, Any]:
    """Return options of a small head; the run ends after its steps and saves no checkpoint."""
    return {"target": "text-target", "readings": options.out, "ffn": 32, "heads": 4, "rows": 8, "places": 256,
            "threads": 1, "held": 4, "half": False, "checkpoint": tmp_path / "run.pt", "resume": False}  # fmt: skip


@pytest.fixture(scope="module")
def finished(options: ReadingsOptions, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a trained EAGLE layer with a vocabulary of 650 tokens, and the result of its run."""
    out = tmp_path_factory.mktemp("first")
    asked = further_options(options, out) | {"vocabulary": 650, "steps": 60, "out": out}
    return out / "text-target-eagle", recipes.run("chat-heads", asked, quiet)


def test_a_finished_layer_is_trained_further_and_keeps_its_vocabulary(
    options: ReadingsOptions, finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    chosen, (folder, first) = further_options(options, tmp_path), finished
    further = recipes.run("chat-heads", chosen | {"begin": folder, "steps": 1, "out": tmp_path / "second"}, quiet)
    assert further["begun"]["steps"] == first["steps"], "its card describes the earlier training"
    assert further["kept"] == 650, "not the default of 8,192 tokens"
    written = tmp_path / "second" / folder.name
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, written)]
    assert configs[0]["draft_vocabulary"] == configs[1]["draft_vocabulary"]
    for name, average in (("moved", 0.0), ("mean", 0.5)):
        asked = {"begin": folder, "steps": 12, "average": average, "out": tmp_path / name}
        recipes.run("chat-heads", chosen | asked, quiet)
    folders = (folder, *(tmp_path / name / folder.name for name in ("moved", "mean")))
    one, two, mean = (read_weights(path / "model.safetensors") for path in folders)
    assert any((one[name].float() - two[name].float()).abs().max() > 1e-3 for name in one), "a step changed the weights"
    for name in one:
        torch.testing.assert_close(
            mean[name].float(), (one[name].float() + two[name].float()) / 2, atol=5e-3, rtol=2e-3
        )  # each of the three is rounded to int8
    fresh = recipes.run("chat-heads", chosen | {"vocabulary": 650, "steps": 1, "out": tmp_path / "third"}, quiet)
    assert further["losses"]["ce_soft"] < 0.95 * fresh["losses"]["ce_soft"]
    assert first["losses"]["ce_soft"] < 0.95 * fresh["losses"]["ce_soft"]
    with pytest.raises(ParameterError, match="both the model to start from and the output folder"):
        recipes.run("chat-heads", chosen | {"begin": folder, "out": folder.parent}, quiet)
    with pytest.raises(
        ParameterError, match=r"cannot start from a finished head; the training of eagle, eagle-3, pard"
    ):
        recipes.run("chat-heads", chosen | {"method": "medusa", "begin": folder, "out": tmp_path}, quiet)
    strange = Path(shutil.copytree(folder, tmp_path / "strange")) / "config.json"
    for what, why in (
        ({WEIGHTS: f"{int(configs[0][WEIGHTS], 16) ^ (1 << 99) - 1:064x}"}, "other weights"),
        ({"workbench_head": "mtp"}, "of kind mtp, not eagle"),
    ):
        strange.write_text(json.dumps(configs[0] | what))
        with pytest.raises(ParameterError, match=why):
            recipes.run("chat-heads", chosen | {"begin": strange.parent, "steps": 1, "out": tmp_path}, quiet)
    with pytest.raises(
        ParameterError,
        match="Only eagle heads, not pard heads, can be averaged with the head from which training starts",
    ):
        recipes.run("chat-heads", chosen | {"method": "pard", "average": 0.5, "out": tmp_path}, quiet)
    nowhere = {"target": "text-target", "work": tmp_path / "work", "out": tmp_path}
    for more, why in (
        ({"begin": tmp_path / "none"}, "no head from which training could start"),
        ({"begin": folder}, "cannot start from"),
    ):
        with pytest.raises(ParameterError, match=why):
            recipes.run("medusa" if why.startswith("cannot") else "eagle-3", nowhere | more, quiet)
    for name, options in (("medusa", nowhere), ("chat-heads", chosen | {"method": "medusa", "out": tmp_path})):
        with pytest.raises(
            ParameterError, match="medusa heads are always trained with the loss cross-entropy with the tokens"
        ):
            recipes.run(name, options | {"loss": "ce_soft:1"}, quiet)
    assert not (tmp_path / "work").exists(), "refused before any answer is written"
    with pytest.raises(ParameterError, match="no head from which training could start"):
        recipes.run("chat-heads", chosen | {"begin": tmp_path / "none", "out": tmp_path}, quiet)


@pytest.mark.parametrize(("method", "more"), [("pard", {}), ("eagle-3", {"taps": (1, 3)})])
def test_heads_of_other_kinds_start_from_an_eagle_layer(
    options: ReadingsOptions, finished: tuple[Path, dict[str, Any]], tmp_path: Path, method: str, more: dict[str, Any]
) -> None:
    asked = further_options(options, tmp_path) | {"method": method, "steps": 1, "out": tmp_path} | more
    if method == "eagle-3":
        asked |= {"ffn": 16, "heads": 3}  # ignored: the layer's sizes are used
    on, anew = (recipes.run("chat-heads", asked | x, quiet) for x in ({"begin": finished[0]}, {"vocabulary": 650}))
    assert on["kept"] == 650
    assert on["begun"]["steps"] == 60
    assert on["losses"]["step 1"] < 0.95 * anew["losses"]["step 1"], "it starts with the layer's predictions"


def test_eagle_3_started_from_an_eagle_layer_maps_fused_states_to_its_feature(
    options: ReadingsOptions, finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    layer, _ = load_net(finished[0])
    assert isinstance(layer, FeatureNet)
    course = replace(make_training_setup(options, tmp_path, heads=4, ffn=32), start_layer=layer)
    net = eagle_3.build_net(course.options, course, (1, 3))
    size = fusing.measure_scales(course, (1, 3))
    fusing.normalise_inputs(net.fuse, size)
    eagle_3.init_from_eagle(course, net, layer, size)
    text = course.readings.dialogue(course.readings.split_indices(held_out=True)[0])
    features, following = text.features[1:-1].float(), course.teacher.embedding[text.ids[2:]]
    pairs = layer.make_pairs(following, features)
    with torch.inference_mode():
        feature = layer.fuse.weight[:, 288:] @ layer.norm_feature(features).mT  # as if the fusion were exact
        read = net.attention_inputs(net.make_pairs(following, feature.mT)[None])[1]
        wanted, found = layer.qkv(layer.before(pairs)), net.qkv(read)[0]
        combined = net.combine_hidden_states(
            fusing.load_fusion_batch(course, [course.readings.split_indices(held_out=True)[0]], (1, 3))
        )[0, 1:-1]
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(wanted, found, dim=-1).mean() > 0.95
    assert 0.8 < float(found.norm() / wanted.norm()) < 1.25
    assert cosine(combined, feature.mT, dim=-1).mean() > 0.5, "the lower layers predict most of the feature"
    for name in ("out", "gate_up", "down", "after"):
        assert torch.equal(net.get_submodule(name).weight, layer.get_submodule(name).weight)


def test_eagle_3_cannot_start_from_a_layer_of_another_form(options: ReadingsOptions, tmp_path: Path) -> None:
    layer = FeatureNet(288, 4, 32, norms=("after",), fuse_bias=True)
    course = replace(make_training_setup(options, tmp_path), start_layer=layer)
    with pytest.raises(ParameterError, match=r"lacks: fuse_bias, norms"):
        eagle_3.train(course)


def test_the_initial_fusion_is_a_ridge_regression_without_first_tokens(
    options: ReadingsOptions, tmp_path: Path
) -> None:
    course = make_training_setup(options, tmp_path)
    size = fusing.measure_scales(course, (1, 3))
    found = fusing.fit_fusion(course, (1, 3), size, lambda features: features[:, :5])
    rows = course.readings.split_indices(held_out=False)
    x = torch.cat([fusing.load_fusion_input(course, row, (1, 3))[1:] for row in rows]).double() / size
    y = torch.cat([course.readings.dialogue(row).features[1:, :5] for row in rows]).double()
    ridge = torch.eye(len(size), dtype=x.dtype) * (fusing.RIDGE * len(x)) ** 0.5
    wanted = torch.linalg.lstsq(torch.cat([x, ridge]), torch.cat([y, y.new_zeros(len(size), 5)])).solution.mT
    assert found.shape == (5, 2 * 288)
    assert (found - wanted).norm() < 1e-2 * wanted.norm()


def test_each_kind_of_drafter_is_measured_with_its_declared_settings() -> None:
    """As a chain, so that each draft position is accepted or not, and as a tree if its method drafts trees."""
    kinds = ["drafter", *chat_head_kinds()]
    assert folders_of("some-target") == {kind: f"some-target-{kind}" for kind in kinds}, "as `chat-heads` names them"
    assert [(row.method, row.name) for row in evaluation_settings("drafter")] == [
        ("draft-model", "chain"),
        ("draft-tree", "tree"),
    ]
    for kind in kinds:
        settings = {row.name: registry.get(row.method).with_params(**row.params) for row in evaluation_settings(kind)}
        assert list(settings) in (["chain"], ["chain", "tree"]), kind
        assert all(kind in method.needs for method in settings.values()), kind
        assert ("tree" in settings) == any(method.tree_builder is not None for method in settings.values()), kind
    for method in registry.methods():
        for row in method.suites.get(SUITE, ()):
            assert set(method.with_params(**row.params).needs) & set(kinds), f"{method.name} has no such head"
    assert [(row.method, dict(row.params)) for row in evaluation_settings("msd")] == [("msd", {})], (
        "no settings means defaults"
    )


FAMILY = sorted(name for target in ("text-target", "smollm2") for name in folders_of(target).values()
                if name in bundled())  # fmt: skip


def test_the_bundled_families_are_complete() -> None:
    assert {"smollm2-drafter", "smollm2-eagle", "smollm2-medusa", "text-target-medusa"} <= set(FAMILY)


@pytest.mark.parametrize("name", FAMILY)
def test_the_cards_of_the_bundled_family_have_the_measured_figures(name: str) -> None:
    folder = bundled()[name]
    written = (folder / "README.md").read_text(encoding="utf-8")
    model = TrainedModel.load(folder)
    assert written == f"# {name}\n\n{card(model)}\n{storage_section(model)}"


def test_one_branch_of_medusas_heads_is_a_chain(tmp_path: Path) -> None:
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    method = registry.get("medusa").with_params(nodes=6, depth=3)
    request = Request(model_helpers.random_prompt(9), method, max_new_tokens=8, stop_at_eos=False)
    for asked, is_chain in ((models, False), (with_chain_drafts(models), True)):
        trees = [r.nodes.depth for r in Engine(asked).generate(request).rounds if len(r.nodes.depth) > 1]
        assert trees
        assert all(len(set(depth)) == len(depth) for depth in trees) == is_chain


def test_a_layers_agreement_is_measured_over_the_targets_whole_vocabulary() -> None:
    """A token of the reduced vocabulary is right only if it is the target's likeliest token of all."""
    net, n = FeatureNet(8, heads=2, ffn=8), 6
    text = Dialogue(torch.arange(n), 1, torch.randn(n, 8, generator=torch.Generator().manual_seed(0)))
    batch = batch_of([text], torch.nn.Embedding(n, 8))
    asked: list[int] = []

    def theirs(said: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        asked.extend(said.tolist())
        return torch.arange(len(truth)) == 0

    share = agreement(net, [batch], torch.nn.Linear(8, 1), is_target_token=theirs)
    assert agreement(net, [batch], torch.nn.Linear(8, 1)) == [1.0], "a vocabulary of one token always agrees"
    assert share == [pytest.approx(1 / len(asked))]


def test_medusa_heads_predict_the_tokens_after_the_targets_next_one() -> None:
    ids, features = torch.arange(20).view(2, 10), torch.arange(20.0).view(2, 10, 1)
    answer = torch.zeros(2, 10, dtype=torch.bool)
    answer[0, 3:8] = True  # decide the tokens 4 … 8
    answer[1, 8:9] = True  # one token: no later token to predict
    read, wanted = make_inputs_and_labels(ids, features, answer, 3)
    assert read.flatten().tolist() == [3, 4, 5, 6]
    assert wanted.tolist() == [[5, 6, 7, 8], [6, 7, 8, -1], [7, 8, -1, -1]]


def test_one_command_trains_a_head_that_drafts_and_resumes_after_a_kill(
    answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(answers, tmp_path / "work" / "text-target" / "answers")
    chosen = {"data": tmp_path / "none", "work": tmp_path / "work", "out": tmp_path / "models", "answer_tokens": 700,
              "dtype": "float32", "max_new_tokens": 24, "longest_prompt": 640, "per_task": 12, "steps": 30, "rows": 8,
              "places": 128, "ffn": 16, "threads": 1, "each": 1, "measured_tokens": 8, "half": False,
              "ttt": 2}  # fmt: skip
    for none in ({"steps": 0}, {"steps": None, "minutes": -1.0}):
        with pytest.raises(ParameterError, match="training length must be more than 0 minutes or steps"):
            recipes.run("eagle-3", chosen | none, quiet)
    wrong = RuntimeError("killed")
    monkeypatch.setattr(pipeline, "evaluate_drafters", lambda *_: (_ for _ in ()).throw(wrong))
    with pytest.raises(RuntimeError, match="killed"):
        recipes.run("eagle-3", chosen, quiet)
    monkeypatch.undo()
    written, lines = (tmp_path / "work" / "text-target" / "answers" / "answers.jsonl").read_bytes(), list[str]()
    figures = recipes.run("eagle-3", chosen, lines.append)
    assert any("resumed at step 30" in line for line in lines), "nothing is trained twice"
    assert any("all prompts come from the project's own generators" in line for line in lines), "there is no data"
    assert (tmp_path / "work" / "text-target" / "answers" / "answers.jsonl").read_bytes() == written
    assert figures["steps"] == 30
    folder = tmp_path / "models" / "text-target-eagle-3"
    config = json.loads((folder / "config.json").read_text())
    assert config["net"]["taps"] == [2, 6, 9]
    models = load_models("text-target", None, "cpu", "float64")
    models.heads["eagle-3"] = HeadInfo("heads", folder, config)
    plain, drafted = (
        Engine(models).generate(Request([5, 6, 7, 8], registry.get(one), max_new_tokens=16))
        for one in ("autoregressive", "eagle-3")
    )
    assert drafted.token_ids == plain.token_ids
    assert list(figures["losses"]) == ["step 1", "step 2"], "an option of this kind of head"
    card = (folder / "README.md").read_text()
    assert "### As a tree: `eagle-3`" in card
    assert "`workbench train eagle-3 --set answer_tokens=700 " in card
    assert "--set ttt=2`" in card
    assert "to prompts from the project's own generators, with" in card, "no public data sets were available"
    in_use = OnPolicyEvaluator("text-target", "eagle-3", folder, tmp_path / "work" / "text-target" / "answers", 2)()
    assert in_use[TAU] >= 1
    assert in_use[f"{TESTED}/position 1"] > 0
    assert in_use[SPEEDUP] > 0
    with pytest.raises(ParameterError, match="ffn=16"):
        recipes.run("eagle-3", chosen | {"ffn": 32}, quiet)
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(ParameterError, match="contains a finished head") as refused:
        recipes.run("eagle-3", chosen | {"work": tmp_path / "elsewhere"}, quiet)
    assert f"--head FOLDER/{folder.name}" in refused.value.remedy
    assert (folder / "model.safetensors").read_bytes() == before
    assert not (tmp_path / "elsewhere").exists(), "refused before any answer is written"
    shutil.copytree(folder, tmp_path / "bundled" / folder.name)
    with pytest.raises(ParameterError, match="contains a finished head"):  # refused for another folder, too
        recipes.run("eagle-3", chosen | {"out": tmp_path / "bundled", "resume": False}, quiet)
    work = tmp_path / "work" / "text-target"
    note = work / "heads-eagle-3.pt.settings.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"loss": ""}))
    assert recipes.run("eagle-3", chosen, quiet)["steps"] == 30, "an earlier version did not save the default loss"
    (work / "heads-eagle-3.pt").unlink()  # as if killed before the first checkpoint after starting over
    assert recipes.run("eagle-3", chosen | {"steps": 1, "resume": False}, quiet)["steps"] == 1


def test_the_cards_speed_up_is_the_methods_over_plain_decoding_by_prompt(
    answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speed-ups of 2 and of 4 (half the tokens in an eighth of the time); warm-ups do not count."""
    seconds = {"eagle-3": iter([9.0, 2.0, 0.5]), "autoregressive": iter([4.0, 4.0])}

    def answered(models: Models, ids: list[int], method: Any, tokens: int = 48) -> list[Round]:
        spent = next(seconds[method.name])
        said = [EmittedToken(token, "", 0, 0, PLAIN, None, 0, 0.5) for token in range(2 if spent == 0.5 else 4)]
        return [Round(0, method.name, {}, Nodes(), [], 3, PLAIN, said, seconds=spent)]

    monkeypatch.setattr(validation_drafts, "decode_greedily", answered)
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    in_use = OnPolicyEvaluator("text-target", "eagle-3", folder, answers, 2)()
    assert in_use[SPEEDUP] == pytest.approx((2.0 * 4.0) ** 0.5), "tokens per second, prompt by prompt"
    assert in_use[TAU] == 3.0, "over the rounds of both prompts"
