"""Training of heads: training positions, loss weights, and the answers that figures are measured on.

With an error here, texts stay the same and every loss falls, but drafts are worse than possible, or figures too good.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor, nn

from workbench.core.errors import ParameterError
from workbench.methods import registry
from workbench.methods.eagle import train as eagle
from workbench.models.bundle import bundled
from workbench.models.int8_checkpoint import read_weights
from workbench.models.machine import machine_facts
from workbench.trace.events import Round
from workbench.trace.nodes import Nodes
from workbench.trace.tokens import PLAIN, EmittedToken
from workbench.training import recipes
from workbench.training.answers import is_held_out, read_answers
from workbench.training.family import evaluate, pipeline, unrolled
from workbench.training.family.drafter import stack_dialogues
from workbench.training.family.evaluate import read_held_out_prompts
from workbench.training.family.head_training import TrainingSetup, answer_continues
from workbench.training.family.options import get_training_module
from workbench.training.family.readings import Readings, ReadingsOptions
from workbench.training.family.vocabulary import count_tokens, coverage, select_draft_vocabulary
from workbench.training.heads.features import Dialogue
from workbench.training.loop import RunOptions, RunResult
from workbench.training.trainer import Curve

from .training_setups import make_head_options, make_training_setup, quiet

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")
Losses = Callable[[list[int], torch.Generator], tuple[int, dict[str, Tensor], Tensor]]
SIZES = {"heads": 4, "ffn": 32, "blocks": 3, "cond": 16, "places": 64, "half": False, "block": 4, "exit_layer": 3}


def sized_options(kind: str, setup: TrainingSetup, **more: Any) -> Any:
    """Return the options of a kind of head for a training setup, with small sizes and the kind's own loss."""
    values = {name: value for name, value in vars(setup.options).items() if name not in ("method", "loss")}
    options = make_head_options(kind, **(values | SIZES | {"taps": (1, 3)} | more))
    return replace(options, loss=options.loss or "ce_soft:1")


def training_parts(
    kind: str, options: ReadingsOptions, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Any:
    """Return (setup, net, losses, figures) of a kind, untrained, as `TrainingSetup.run` gets them."""
    setup = make_training_setup(options, folder)
    course = replace(setup, options=sized_options(kind, setup, **more))
    given: list[Any] = []

    def recording_run(self: TrainingSetup, net: nn.Module, losses: Losses, measure: Any, *_: Any, **__: Any) -> Any:
        given.extend((net, losses, measure))
        return RunResult(), Curve(None)

    monkeypatch.setattr(TrainingSetup, "run", recording_run)
    get_training_module(kind).train(course)
    return course, *given


def loss_weights(kind: str, n: int) -> list[float]:
    """Return the weight of each step's or head's loss, from the papers and the recipes' documentation."""
    weights = {
        "medusa": [1.0] * n, "hydra": [1.0] * n, "hydra-plus-plus": [1.0] * n, "chimera": [1.0] * n,
        "clover": [0.7**k for k in range(n)], "eagle-3": [0.8**k for k in range(n)], "mtp": [1 / n] * n,
        "pard": [max(0.7**k, 0.2) for k in range(n)], "block-diffusion": [math.exp(-k / 4) for k in range(n)],
        "falcon": [1 / SIZES["block"]] * n, "ppd": [0.8**k / n for k in range(n)], "hidden-transfer": [1 / n] * n,
        "s2d": [1 / n] * n,
    }[kind]  # fmt: skip
    normed = kind in ("pard", "block-diffusion")
    return [weight / sum(weights) for weight in weights] if normed else weights


@pytest.mark.parametrize(
    "kind",
    model_helpers.mark_on_demand_unless(
        ("medusa", "clover", "eagle-3", "mtp", "pard", "block-diffusion", "falcon"),  # one for each form of loss
        ["medusa", "hydra", "clover", "chimera", "eagle-3", "mtp", "pard", "block-diffusion", "falcon", "ppd",
         "hidden-transfer", "s2d"],
    ),
)  # fmt: skip
def test_total_loss_weighs_each_loss_as_the_paper_does(
    kind: str, options: ReadingsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course, _, losses, measure = training_parts(kind, options, tmp_path, monkeypatch)
    rows = course.readings.split_indices(held_out=False)
    _, named, total = losses(rows[:6], torch.Generator().manual_seed(0))
    found = torch.stack([loss.detach().float() for loss in named.values()])
    wanted = {"eagle-3": 3, "mtp": 3, "pard": 6, "block-diffusion": 3}.get(kind)
    assert wanted in (None, len(found)), "the requested number of draft steps"
    assert len(found) > 1
    assert float(total.detach()) == pytest.approx(
        float((found * torch.tensor(loss_weights(kind, len(found)))).sum()), rel=1e-5
    )
    assert all(0 <= value <= 1 for name, value in measure().items() if name.startswith(("agreement", "accuracy")))


@pytest.mark.parametrize("kind", ["mtp", "pard", "hydra", "medusa", "kangaroo"])
def test_predictions_are_compared_as_target_token_ids(
    kind: str, options: ReadingsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draft vocabularies have their own indices. Always predicting the most frequent token scores its share."""
    course = training_parts(kind, options, tmp_path, monkeypatch)[0]
    said = torch.cat([course.target_tokens(row) for row in course.held_out])
    ids = [torch.from_numpy(course.readings.text(row)[0]) for row in course.held_out]
    most = said[said >= 50].mode().values  # a token whose index in the draft vocabulary differs from its id
    if kind == "medusa":  # its labels are the written tokens, two positions on
        written = torch.cat(
            [row[course.readings.text(n)[1] + 1 :] for row, n in zip(ids, course.held_out, strict=True)]
        )
        most = written[written >= 50].mode().values
    kept = torch.sort(torch.cat([most[None], (most + torch.arange(1, 40) * 7) % 4096])).values
    course = replace(course, draft_vocabulary=kept)
    given: list[Any] = []

    def recording_run(self: TrainingSetup, net: nn.Module, losses: Losses, measure: Any, *_: Any, **__: Any) -> Any:
        given.append(measure)
        return RunResult(), Curve(None)

    monkeypatch.setattr(TrainingSetup, "run", recording_run)
    get_training_module(kind).train(course)
    table = course.teacher.lm_head[kept]
    pick = int((kept == most).nonzero())
    assert pick != most

    def linear(x: Tensor, weight: Tensor, *bias: Any) -> Tensor:
        y = usual(x, weight, *bias)
        return torch.where(torch.arange(len(kept)) == pick, 1e6, y) if weight.shape == table.shape else y

    usual = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    first = next(iter(given[0]().values()))
    asked = written if kind == "medusa" else said[said >= 0]
    share = float((asked == most).float().mean())
    assert share > 0.02
    assert abs(share - float((asked == pick).float().mean())) > 0.02, "confusing index and id would give another share"
    assert first == pytest.approx(share, abs=0.01)


def test_no_head_is_trained_on_held_out_answers(
    options: ReadingsOptions, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings, learnt, held = Readings(options.out), set[int](), list[int]()

    def numbers(rows: list[int]) -> set[int]:
        return {int(readings.rows[row, 0]) for row in rows}

    course = make_training_setup(options, tmp_path, heads=4, ffn=32, steps=8, minutes=None, rows=8)

    def losses(rows: list[int], _: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        learnt.update(numbers(rows))
        return 1, {}, next(net.parameters()).sum()

    net = registry.heads()["mtp"].build(288, vars(course.options))
    course.run(net, losses, lambda: {"agreement 1": 0.5})
    assert learnt
    assert not any(map(is_held_out, learnt))
    asked: list[list[int]] = []
    usual = eagle.batches
    monkeypatch.setattr(eagle, "batches", lambda read, rows, *more: asked.append(rows) or usual(read, rows, *more))
    chosen = {"target": "text-target", "readings": options.out, "checkpoint": tmp_path / "run.pt", "steps": 1,
              "rows": 4, "places": 64, "ffn": 32, "heads": 4, "threads": 1, "half": False, "vocabulary": 400,
              "out": tmp_path}  # fmt: skip
    usual_train = eagle.train

    def train(course: TrainingSetup) -> Any:
        held.extend(course.held_out)
        return usual_train(course)

    monkeypatch.setattr(eagle, "train", train)
    recipes.run("chat-heads", chosen | {"method": "eagle"}, quiet)
    assert not any(map(is_held_out, numbers(asked[0])))
    assert held
    assert all(map(is_held_out, numbers(held)))
    prompts = [ids for _, ids in read_held_out_prompts(answers / "answers.jsonl", 99)]
    kept = [line["prompt"] for line in read_answers(answers / "answers.jsonl") if is_held_out(line["n"])]
    assert sorted(prompts) == sorted(kept) != [], "drafts are measured on the held-out prompts only"


def test_a_position_of_a_block_is_compared_with_the_state_that_predicts_its_token(
    options: ReadingsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    module = get_training_module("block-diffusion")

    def recording_run(course: TrainingSetup, net: nn.Module, drafts: Any, *_: Any, **__: Any) -> Any:
        found.append(drafts)
        return RunResult(), Curve(None)

    monkeypatch.setattr(module, "train_drafts", recording_run)
    course = make_training_setup(options, tmp_path)
    course = replace(course, options=sized_options("block-diffusion", course))
    module.train(course)
    rows = course.readings.split_indices(held_out=False)[:4]
    ids, features, _, answer = unrolled.load_batch(course.readings, rows)
    said = unrolled.pad_and_stack([course.target_tokens(row) for row in rows])
    batch = unrolled.Batch(rows, ids, course.teacher.embedding[ids], features, answer, said)
    anchors, is_there = module.sample_anchors(answer, None)
    known = module.sample_visible(anchors.shape, SIZES["block"], None)
    for place, (_, at) in enumerate(found[0](batch, None), 1):
        use = is_there & answer_continues(answer, place - 1).gather(1, anchors) & ~known[..., place]
        row, column = use.nonzero().unbind(1)
        assert torch.equal(at, row * ids.shape[1] + anchors[row, column] + place - 1), (
            "the state at the position before predicts the token"
        )


def test_the_first_token_of_an_answer_is_trained_on_too() -> None:
    text = Dialogue(torch.arange(10), 4, torch.zeros(10, 2))
    answer = stack_dialogues([text])[-1]
    assert answer[0].nonzero().flatten().tolist() == list(range(3, 9)), "the state at the last prompt token predicts it"


def test_a_restarted_run_has_a_new_curve_and_a_repeated_run_no_point_twice(tmp_path: Path) -> None:
    options = RunOptions(checkpoint=tmp_path / "run.pt", resume=True)
    curve = Curve.of(options)
    for tokens, value in ((1, 0.1), (2, 0.2), (2, 0.25)):
        curve.add(tokens, value)
    assert Curve.of(options).points == [(1, 0.1), (2, 0.25)]
    assert Curve.of(replace(options, resume=False)).points == []
    assert json.loads((tmp_path / "run.curve.json").read_text()) == [[1, 0.1], [2, 0.25]]


def test_noise_on_features_has_mean_zero_and_bounded_size() -> None:
    features = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    found = get_training_module("falcon").noise(features, 0.5, torch.Generator().manual_seed(1))
    assert abs(float(found.mean())) < 0.02
    assert -0.5 * float(features.std()) <= float(found.min()) < -0.4
    assert 0.4 < float(found.max()) <= 0.5 * float(features.std())


def test_positions_whose_token_is_outside_the_draft_vocabulary_are_not_trained_on(
    options: ReadingsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss compares distributions over the draft vocabulary, which lacks the target's token there."""
    course, _, losses, _ = training_parts("mtp", options, tmp_path, monkeypatch)
    asked: list[Tensor] = []
    usual = unrolled.WeightedLoss.__call__

    def recording_run(self: Any, places: Any) -> Any:
        asked.append(places.truth)
        return usual(self, places)

    monkeypatch.setattr(unrolled.WeightedLoss, "__call__", recording_run)
    losses(course.readings.split_indices(held_out=False)[:6], torch.Generator().manual_seed(0))
    said = torch.cat([course.teacher.greedy_tokens(truth) for truth in asked])
    assert len(said)
    assert bool(torch.isin(said, course.draft_vocabulary).all())


def test_weights_are_averaged_with_the_requested_share_of_the_first_run(
    options: ReadingsOptions, tmp_path: Path
) -> None:
    chosen = {"method": "eagle", "target": "text-target", "readings": options.out, "rows": 4, "places": 64, "ffn": 32,
              "heads": 4, "threads": 1, "half": False, "vocabulary": 400, "steps": 2}  # fmt: skip
    first = tmp_path / "a" / "text-target-eagle"
    recipes.run("chat-heads", chosen | {"out": tmp_path / "a", "checkpoint": tmp_path / "a.pt"}, quiet)
    ends = {}
    for share in (0.0, 0.25):
        out = tmp_path / f"{share}"
        more = {"out": out, "checkpoint": tmp_path / f"{share}.pt", "begin": first, "average": share}
        recipes.run("chat-heads", chosen | more, quiet)
        ends[share] = read_weights(out / "text-target-eagle" / "model.safetensors")["down.weight"].float()
    begun = read_weights(first / "model.safetensors")["down.weight"].float()
    assert not torch.allclose(begun, ends[0.0], atol=1e-4)
    torch.testing.assert_close(ends[0.25], 0.25 * begun + 0.75 * ends[0.0], atol=2e-3, rtol=1e-2)


def test_one_command_passes_its_options_to_all_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    class Enough(Exception):
        pass

    def trains(options: Any, report: Any) -> Any:
        asked["head"] = options
        raise Enough

    monkeypatch.setattr(pipeline, "write_answers", lambda options, _: asked.update(answers=options))
    monkeypatch.setattr(pipeline, "make_readings", lambda options, _: asked.update(readings=options))
    monkeypatch.setattr(pipeline, "train_chat_heads", trains)
    more = {"loss": "reverse_kl:1", "seed": 7, "max_new_tokens": 900, "longest_prompt": 300, "answer_tokens": 5_000_000,
            "data": tmp_path, "work": tmp_path, "out": tmp_path / "out", "ttt": 5, "head_learns": True}  # fmt: skip
    with pytest.raises(Enough):
        recipes.run("eagle-3", more, quiet)
    assert (asked["head"].loss, asked["head"].seed, asked["answers"].seed) == ("reverse_kl:1", 7, 7)
    assert (asked["head"].ttt, asked["head"].head_learns, asked["head"].method) == (5, True, "eagle-3")
    assert asked["readings"].longest >= 300 + 900, "the longest answers are read"
    assert asked["readings"].tokens > 5_000_000 * 2
    with pytest.raises(Enough):
        recipes.run("s2d", {"data": tmp_path, "work": tmp_path, "out": tmp_path / "out", "cond": 64}, quiet)
    assert (asked["head"].cond, asked["head"].places) == (64, 2048), "recipe settings are only defaults"
    assert asked["head"].loss == "ce_soft:1", "the kind's own"


def test_coverage_of_the_draft_vocabulary_is_counted_on_held_out_answers(options: ReadingsOptions) -> None:
    readings = Readings(options.out)
    held = readings.split_indices(held_out=True)
    kept, facts = select_draft_vocabulary(readings, held, 60, [])
    wanted = coverage(count_tokens(readings, held), kept)
    assert facts["covered"] == round(wanted, 4)
    assert abs(wanted - coverage(count_tokens(readings, readings.split_indices(held_out=False)), kept)) > 1e-3


def test_each_kind_of_prompt_has_its_own_tau(monkeypatch: pytest.MonkeyPatch) -> None:
    class EngineOfPromptLengths:
        def __init__(self, _: Any) -> None:
            pass

        def generate(self, request: Any) -> Any:
            n = request.prompt[0]
            said = [EmittedToken(token, "", 0, 0, PLAIN, None, 0, 0.5) for token in range(n)]
            return SimpleNamespace(rounds=[Round(0, "medusa", {}, Nodes(), [], 3, PLAIN, said)])

    monkeypatch.setattr(evaluate, "Engine", EngineOfPromptLengths)
    models: Any = None
    found = evaluate.measure_drafter(models, "medusa", {}, [("chat", [2]), ("code", [4]), ("code", [6])], 9)
    assert (found["groups"], found["tau"]) == ({"chat": 2.0, "code": 5.0}, 4.0)


def test_the_throughput_of_a_step_is_relative_to_a_matrix_product_on_this_machine(
    options: ReadingsOptions, tmp_path: Path
) -> None:
    """Medusa: two products per head; the first has gradients of its weight, the second of its input."""
    lines: list[str] = []
    n, blocks, kept, width = 16, 2, 400, 288
    asked = {"method": "medusa", "readings": options.out, "out": tmp_path, "rows": 8, "places": n, "blocks": blocks,
             "vocabulary": kept, "threads": 1, "half": False, "timed": 2}  # fmt: skip
    found = recipes.run("throughput", asked, lines.append)
    assert found["gflop_a_step"] == pytest.approx(n * blocks * 4 * (width**2 + width * kept) / 1e9, rel=0.02)
    assert found["share"] == found["gflops"] / found["peak_gflops"]
    assert 0 < found["share"] < 1
    assert found["tokens_a_second"] > 0
    assert 0.2 < sum(found["shares"].values()) <= 1.01
    assert any("tokens/s" in line and machine_facts()["instructions"] in line for line in lines)
    assert not list(tmp_path.iterdir()), "nothing is written"
    with pytest.raises(ParameterError, match="also trains heads of vision targets"):
        recipes.run("throughput", asked | {"method": "eagle"}, quiet)
