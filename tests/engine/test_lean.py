"""Lean decoders compute what the models they stand for compute. In float64 every other test runs on them, too."""

from __future__ import annotations

import logging

import pytest
import torch
import worlds

from workbench.engine import Runner, lean
from workbench.engine.lean import LeanDecoder
from workbench.engine.packed import PackedLinear, pack
from workbench.engine.runner import Segment

KINDS = ("llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_ragged_trees_subsets_and_taps_equal_the_models_own_forward(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    model = worlds.family(name).to(dtype)
    runners = [Runner(model), Runner(model)]
    assert runners[0]._lean is not None
    runners[1]._lean = None
    outputs = []
    for runner in runners:
        runner.tap_layers = {1}
        slots = [runner.open(), runner.open()]
        runner.prefill(slots[0], worlds.random_prompt(13, seed=1), chunk=6)
        runner.prefill(slots[1], worlds.random_prompt(4, seed=2))
        batch = [
            worlds.tree_segment(slots[0], 3, worlds.random_prompt(4, seed=3), [-1, -1, 0, 2], "cpu"),
            worlds.tree_segment(slots[1], 5, worlds.random_prompt(2, seed=4), [-1, 0], "cpu"),
        ]
        whole = runner.forward(batch)
        for slot in slots:
            runner.rewind(slot, slot.length)
        first = runner.forward([Segment(slots[1], torch.tensor([7, 8]))], layers=(0, 2), last_only=True)
        outputs.append(
            [whole.logits[0], whole.logits[1, :3], whole.taps[1][0], whole.hidden[0], first.logits, first.hidden]
        )
    for mine, own in zip(*outputs, strict=True):
        assert mine.shape == own.shape
        assert float((mine - own).abs().max()) <= tolerance * max(1.0, float(own.abs().max()))


def test_a_model_whose_arithmetic_differs_keeps_its_own_forward(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lean, "KINDS", ("GraniteModel",))  # Llama's parts, multipliers between
    model = worlds.family("granite")
    assert LeanDecoder.of(model, 64) is not None
    model.model.embedding_multiplier = 3.0
    with caplog.at_level(logging.WARNING):
        assert LeanDecoder.of(model, 64) is None
    assert "keeps its own forward" in caplog.text
    assert LeanDecoder.of(worlds.family("llama"), 64) is None  # not among KINDS now


def test_changed_weights_are_seen_by_the_next_row() -> None:
    model = worlds.family("llama")
    runner, text = Runner(model), worlds.random_prompt(6)
    before = runner.forward([Segment(runner.open(), torch.tensor(text))]).logits
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.5)
    after = runner.forward([Segment(runner.open(), torch.tensor(text))]).logits
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after[0, -1], worlds.ask_model(model)(text))


def test_a_changed_head_is_seen_by_the_next_row() -> None:
    model = worlds.family("llama").double()
    runner, prompt = Runner(model), worlds.random_prompt(5, seed=6)
    before = worlds.hf_greedy(model, prompt, 4)
    head = model.get_output_embeddings().get_parameter("weight")
    head.data = head.data.flip(0)  # other storage, as after loading other weights
    after = worlds.hf_greedy(model, prompt, 4)
    assert before != after
    slot = runner.open()
    out = runner.forward([Segment(slot, torch.tensor(prompt))])
    assert int(out.logits[0, -1].argmax()) == after[0]


def test_the_check_leaves_no_copies_behind() -> None:
    model = pack(worlds.family("llama").to(torch.bfloat16))
    runner = Runner(model)
    assert runner._lean is not None
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert packed
    assert not any("_matrix" in vars(module) for module in packed)
