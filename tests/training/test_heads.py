"""Training of feature drafters, end to end: the target counts, the drafters learn to count, all drafts are accepted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.engine import Engine, Models, Request, Runner
from workbench.methods import registry
from workbench.models.chat_markers import ASSISTANT
from workbench.models.loading import HeadInfo
from workbench.trace.metrics import summary
from workbench.training.distill import distillation_loss, draft_model_losses
from workbench.training.heads.artefact import load_net, save_net
from workbench.training.heads.features import Dialogue, Features, batch_of, read_dialogues
from workbench.training.heads.losses import LOSSES, LossInputs, WeightedLoss
from workbench.training.heads.recipe import curriculum
from workbench.training.heads.trainer import (
    HeadOptions,
    build_net,
    predict_answers,
    replace_with_predictions,
    train_net,
)  # fmt: skip
from workbench.training.scenes.packing import Packer
from workbench.training.tokenizer import token_id

from .training_setups import make_head_options

V = 16
"""Tokens of the counting language: each is the one before plus the text's stride (1, 5 or 7), modulo V."""


def counting_sequence(start: int, stride: int, n: int) -> list[int]:
    return [(start + stride * i) % V for i in range(n)]


@pytest.fixture(scope="module")
def target() -> Any:
    """Return a Llama trained to count."""
    model = model_helpers.family("llama", vocab_size=V, num_hidden_layers=2, tie_word_embeddings=True).float()
    model.requires_grad_(True)
    rng = random.Random(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for _ in range(200):
        ids = torch.tensor([counting_sequence(rng.randrange(V), rng.choice((1, 5, 7)), 40) for _ in range(12)])
        logits = model(ids).logits[:, 1:-1]
        F.cross_entropy(logits.flatten(0, 1), ids[:, 2:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def dialogues(target: Any) -> Features:
    """Return features of prompts of 2 to 7 numbers with the target's continuations."""
    rng = random.Random(1)
    found = []
    for _ in range(64):
        ids = torch.tensor(counting_sequence(rng.randrange(V), rng.choice((1, 5, 7)), 40))
        with torch.inference_mode():
            features = target.base_model(ids[None])[0][0].clone()
        found.append(Dialogue(ids, rng.randrange(2, 8), features))
    return Features(found)


@pytest.mark.slow
@pytest.mark.parametrize("method", model_helpers.mark_on_demand_unless(("flash",), ["eagle-vlm", "flash"]))
def test_a_trained_drafter_counts_with_the_target(
    method: str, target: Any, dialogues: Features, tmp_path: Path
) -> None:
    """With any off-by-one position in training or drafting, only the first token would be accepted."""
    source = dialogues.batches(12, 0, with_images=False)
    options = make_head_options(method, ffn=32, heads=2, ahead=3, steps=150, loss="ce_soft:1", half=False)
    net, result = train_net(options, target, lambda *_: next(source), lambda line: None, [dialogues.dialogues[:16]])
    assert all(share > 0.97 for share in result.held.values()), result.held
    models = Models(Runner(target), model_helpers.letter_tokenizer(V), "counts")
    models.heads = {method: HeadInfo("counts", tmp_path, save_net(net, tmp_path, "counts"))}
    prompt = counting_sequence(3, 7, 4)
    trace = Engine(models).generate(Request(prompt, registry.get(method).with_params(depth=5), max_new_tokens=30))
    assert trace.token_ids == counting_sequence(prompt[-1], 7, 31)[1:]
    assert summary(trace)["tau"] > 4, [r.nodes.text for r in trace.rounds]


def test_predicted_features_replace_those_that_drafting_would_replace(target: Any, dialogues: Features) -> None:
    """The feature at position s is predicted from the state before it; earlier features are the target's."""
    net = build_net(HeadOptions(method="eagle", ffn=32, heads=2), target).eval()
    batch = batch_of(dialogues.dialogues[:2], target.get_input_embeddings())
    features, place = batch.inputs.features, 5
    only = torch.zeros(features.shape[:2], dtype=torch.bool)
    only[1, place] = True
    mixed = replace_with_predictions(net, batch, features, only)
    same = torch.ones_like(only)
    same[1, place] = False
    assert torch.equal(mixed[same], features[same])
    pairs = net.make_pairs(batch.inputs.embeds[1:, 1 : place + 1], features[1:, :place])
    with torch.no_grad():
        drafted = net.futures(net(pairs, torch.arange(place)))[0, -1, 0]
    torch.testing.assert_close(mixed[1, place], drafted)
    everywhere = replace_with_predictions(net, batch, features, torch.ones_like(only))
    assert torch.equal(everywhere[:, 0], features[:, 0]), "the first feature has no prediction"


# -- losses -----------------------------------------------------------------------------------------------------------


def places(n: int = 4, width: int = 3, vocabulary: int = 5, seed: int = 0) -> LossInputs:
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(n, size, generator=generator, dtype=torch.float64) for size in (width, width, vocabulary)]
    return LossInputs(*draw, torch.randn(n, vocabulary, generator=generator, dtype=torch.float64))


VALUES = sorted(LOSSES.keys() - {"tvd_plus_plus"})
"""Losses with a value to minimise; TVD++ is defined by its gradient only."""


@pytest.mark.parametrize("name", VALUES)
def test_losses_have_the_gradients_of_finite_differences(name: str) -> None:
    at = places()

    def value(guess: Tensor, logits: Tensor) -> Tensor:
        return LOSSES[name](LossInputs(guess, at.truth, logits, at.target_logits)).sum()

    inputs = (at.guess.clone().requires_grad_(), at.draft_logits.clone().requires_grad_())
    assert torch.autograd.gradcheck(value, inputs, eps=1e-6, atol=1e-7)


def test_losses_are_minimal_if_the_prediction_is_right() -> None:
    at = places()
    right = LossInputs(at.truth, at.truth, at.target_logits, at.target_logits)
    for name in VALUES:
        loss = LOSSES[name]
        assert loss(at).shape == (4,)
        if name != "ce_hard":  # minimal at a point mass, for any target distribution
            assert bool((loss(right) <= loss(at) + 1e-12).all()), name
    for name in ("smooth_l1", "mse", "reverse_kl", "jensen_shannon", "total_variation"):
        assert float(LOSSES[name](right).abs().max()) < 1e-12


def test_tvd_plus_plus_has_the_direction_of_tvd_and_another_scale() -> None:
    at = places()
    slopes = []
    for name in ("total_variation", "tvd_plus_plus"):
        logits = at.draft_logits.clone().requires_grad_()
        LOSSES[name](LossInputs(at.guess, at.truth, logits, at.target_logits)).sum().backward()
        slopes.append(logits.grad)
    q = at.draft_logits.softmax(-1)
    right = (at.target_logits.softmax(-1) >= q).double()
    mean = (q * right).sum() / 4
    sigma = ((q * (right - mean).square()).sum() / 4).sqrt()
    torch.testing.assert_close(slopes[1], slopes[0] / sigma)
    assert 0.1 < float(sigma) < 0.6, "the scale differs from TVD's"
    same = LossInputs(at.truth, at.truth, at.target_logits.clone().requires_grad_(), at.target_logits)
    LOSSES["tvd_plus_plus"](same).sum().backward()
    assert same.draft_logits.grad is not None
    assert not same.draft_logits.grad.any(), "equal distributions give no gradient"


def test_jensen_shannon_divergence_equals_the_formula_and_is_symmetric() -> None:
    p, q = torch.tensor([[0.5, 0.5, 0.0001]]).log(), torch.tensor([[0.9, 0.0999, 0.0001]]).log()
    mine, theirs = q.softmax(-1), p.softmax(-1)
    between = (mine + theirs) / 2
    wanted = ((mine * (mine / between).log()).sum() + (theirs * (theirs / between).log()).sum()) / 2
    said = LOSSES["jensen_shannon"](LossInputs(p, p, q, p))
    torch.testing.assert_close(said[0], wanted)
    torch.testing.assert_close(said, LOSSES["jensen_shannon"](LossInputs(p, p, p, q)))


def test_a_draft_model_can_be_trained_by_any_loss_on_distributions() -> None:
    at, labels = places(), torch.tensor([0, 4, 2, 2])
    kl = torch.nn.functional.kl_div(
        at.draft_logits.float().log_softmax(-1),
        at.target_logits.float().log_softmax(-1),
        log_target=True,
        reduction="batchmean",
    )
    text = torch.nn.functional.cross_entropy(at.draft_logits.float(), labels)
    torch.testing.assert_close(distillation_loss(at.draft_logits, at.target_logits, labels, 0.3), kl + 0.3 * text)
    apart = distillation_loss(at.draft_logits, at.target_logits, labels, 0.0, draft_model_losses("total_variation:2"))
    torch.testing.assert_close(apart, 2 * LOSSES["total_variation"](at).mean(), check_dtype=False)
    with pytest.raises(ParameterError, match="smooth_l1 compares hidden states, which a draft model does not predict"):
        draft_model_losses("ce_soft:1+smooth_l1:1")
    with pytest.raises(ParameterError, match="no loss 'mae'"):
        draft_model_losses("mae")


def test_a_sum_of_losses_is_parsed_from_text() -> None:
    total, named = WeightedLoss.parse("mse:2+ce_hard")(places())
    at = places()
    wanted = 2 * LOSSES["mse"](at).mean() + LOSSES["ce_hard"](at).mean()
    assert torch.allclose(total, wanted)
    assert set(named) == {"mse", "ce_hard"}
    with pytest.raises(ValueError, match="no loss 'mae'"):
        WeightedLoss.parse("mae:1")


# -- features ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vision() -> Any:
    """Return a small random LLaVA with the bundled layout."""
    return model_helpers.tiny_scene_target()


def test_each_turn_of_a_packed_row_is_a_separate_dialogue(vision: Any) -> None:
    """Processed together after one image or alone, turns have the same target features."""
    model, tokenizer = vision
    packer, reply = Packer(tokenizer), token_id(tokenizer, ASSISTANT)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    rows = [[("What?", "a red star"), ("How many?", "two")], [("Where?", "on the left")]]
    found = read_dialogues(model, packer.pack(rows, [False, False], [True, True]), images, reply)
    assert [tokenizer.decode(d.ids[d.n_prompt :]) for d in found] == [
        f"{answer}<|endoftext|>" for row in rows for _, answer in row
    ]
    for one, number in zip(found, (0, 0, 1), strict=True):
        inputs = {"input_ids": one.ids[None], "pixel_values": images[number : number + 1]}
        with torch.inference_mode():
            alone = model.base_model(**inputs, use_cache=False)[0][0]
        assert one.kind == (1, 64)
        assert float((alone - one.features).abs().max()) < 5e-3  # stored in float16
    blind = read_dialogues(model, packer.pack(rows[1:], [False], [False]), None, reply)[0]
    assert blind.vision is None
    assert blind.kind == (0, 0)


def test_features_are_saved_and_loaded_unchanged(vision: Any, tmp_path: Path) -> None:
    model, tokenizer = vision
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    reply = token_id(tokenizer, ASSISTANT)
    packed = Packer(tokenizer).pack([[("What?", "a star"), ("Why?", "it is")]], [False], [True])
    before = Features(read_dialogues(model, packed, images, reply))
    before.save(tmp_path / "features.safetensors")
    after = Features.load(tmp_path / "features.safetensors")
    for a, b in zip(before.dialogues, after.dialogues, strict=True):
        assert (a.n_prompt, a.start) == (b.n_prompt, b.start)
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.features, b.features)
        assert a.vision is not None
        assert b.vision is not None
        assert torch.equal(a.vision, b.vision)
    with pytest.raises(ValueError, match="without images"):
        next(after.batches(2, 0, with_images=False))


@pytest.mark.parametrize("method", model_helpers.image_head_kinds())
def test_all_weights_of_the_drafter_are_trained_and_none_of_the_target(
    method: str, vision: Any, tmp_path: Path
) -> None:
    """Steps on images and on text; saved weights load unchanged; padding has no effect."""
    model, tokenizer = vision
    packer, reply = Packer(tokenizer), token_id(tokenizer, ASSISTANT)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    rows = [[("What is it?", "a red star on the left")], [("Where?", "two")]]
    read = read_dialogues(model, packer.pack(rows, [False] * 2, [True] * 2), images, reply)
    words = read_dialogues(model, packer.pack(rows, [False] * 2, [False] * 2), None, reply)
    options = make_head_options(method, ffn=32, heads=2, ahead=3, half=False)
    net = build_net(options, model)
    if method == "flash":
        torch.nn.init.normal_(net.later.weight, std=0.1)
    embed = model.get_input_embeddings()
    generator = torch.Generator().manual_seed(0)
    for part in (read, words):
        batch = batch_of(part, embed)
        for step in range(6):  # the gate samples different operations
            at = predict_answers(
                net, batch, net.sample_options(len(batch.ids), lambda *n: torch.rand(n, generator=generator), step)
            )
            (at.guess.square().sum() + at.cost).backward()
    assert all(weight.grad is None for weight in model.parameters())
    idle = {name for name, weight in net.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert not idle
    alone, together = (predict_answers(net, batch_of(part, embed)) for part in (read[1:], read))
    first = alone.guess[alone.ahead == 0]  # of the shorter dialogue, which is padded to the longer one
    assert torch.allclose(together.guess[together.ahead == 0][-len(first) :], first, atol=1e-5)
    save_net(net, tmp_path, "tiny", torch.float32)
    again, config = load_net(tmp_path)
    assert config["workbench_head"] == method
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_the_curriculum_goes_from_text_to_images() -> None:
    chances = [curriculum(step / 40) for step in range(41)]
    assert chances[:21] == [0.0] * 21
    assert chances[-1] == 1.0
    assert chances == sorted(chances)
    assert chances[30] == pytest.approx(0.5)
