"""Lean decoders compute the same as their models. In float64 all other tests run on them, too."""

from __future__ import annotations

import logging
from collections.abc import Callable

import model_helpers
import pytest
import torch
from transformers import PreTrainedModel

from workbench.engine import Runner
from workbench.kernels import lean
from workbench.kernels.lean import FEW, LeanDecoder, attend
from workbench.kernels.packed import Matrix, PackedLinear, pack
from workbench.kernels.segment import Segment
from workbench.kernels.self_test import describe_difference, make_lean_decoder

KINDS = ("llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_ragged_trees_subsets_and_taps_equal_the_models_own_forward(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    model = model_helpers.family(name).to(dtype)
    runners = [Runner(model), Runner(model)]
    assert runners[0]._lean is not None
    runners[1]._lean = None
    outputs = []
    for runner in runners:
        slots = [runner.open(), runner.open()]
        runner.prefill(slots[0], model_helpers.random_prompt(13, seed=1), chunk=6)
        runner.prefill(slots[1], model_helpers.random_prompt(4, seed=2))
        batch = [
            model_helpers.tree_segment(slots[0], 3, model_helpers.random_prompt(4, seed=3), [-1, -1, 0, 2], "cpu"),
            model_helpers.tree_segment(slots[1], 5, model_helpers.random_prompt(2, seed=4), [-1, 0], "cpu"),
        ]
        whole = runner.forward(batch, capture_layers={1})
        for slot in slots:
            runner.rewind(slot, slot.length)
        first = runner.forward([Segment(slots[1], torch.tensor([7, 8]))], layers=(0, 2), last_only=True)
        outputs.append(
            [
                whole.logits[0],
                whole.logits[1, :3],
                whole.layer_states[1][0],
                whole.hidden[0],
                first.logits,
                first.hidden,
            ]
        )
    for mine, own in zip(*outputs, strict=True):
        assert mine.shape == own.shape
        assert float((mine - own).abs().max()) <= tolerance * max(1.0, float(own.abs().max()))


def test_model_with_other_arithmetic_keeps_its_own_forward(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lean, "KINDS", ("GraniteModel",))  # Llama's parts, with multipliers between them
    model = model_helpers.family("granite")
    assert make_lean_decoder(model, 64) is not None
    model.model.embedding_multiplier = 3.0
    with caplog.at_level(logging.WARNING):
        assert make_lean_decoder(model, 64) is None
    assert "runs with transformers' forward pass" in caplog.text
    assert make_lean_decoder(model_helpers.family("llama"), 64) is None  # not among KINDS now


def attention_sink_model(kind: str) -> PreTrainedModel:
    """Return a model whose first layer makes one direction huge, like the attention sinks of trained models."""
    model = model_helpers.family(kind)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[3].mul_(3000.0)
        for layer in model.model.layers[1:]:
            layer.mlp.down_proj.weight.mul_(4.0)
            layer.self_attn.v_proj.weight.mul_(4.0)
    return model.to(torch.bfloat16)


def corrupt_decoder(decoder: LeanDecoder, kind: str) -> None:
    last = decoder.layers[-1]
    if kind == "scale":
        last.scale *= 1.5
    elif kind == "order":
        decoder.layers[1], decoder.layers[2] = decoder.layers[2], decoder.layers[1]
    elif kind == "gate and up":
        last.gate_up = Matrix.from_linears(
            *(last_mlp(decoder).get_submodule(f"{name}_proj") for name in ("up", "gate"))
        )
    elif kind == "norms of heads":
        last.head_norms = None
    elif kind == "rope":
        decoder._rope = decoder._rope.roll(1, 0)
    elif kind == "norms":
        last.input_norm, last.post_attention_norm = last.post_attention_norm, last.input_norm
    elif kind == "one weight":
        weight = last_mlp(decoder).get_submodule("down_proj").get_parameter("weight").detach().clone()
        weight[:, 5] = 0
        last.down = Matrix(weight)
    elif kind == "embeddings":
        decoder.table = torch.nn.Parameter(decoder.table * 1.02)
    elif kind == "head":
        decoder.head = Matrix(decoder._model.get_submodule("lm_head").get_parameter("weight").detach() * 1.1)


def last_mlp(decoder: LeanDecoder) -> torch.nn.Module:
    return decoder._model.model.layers[-1].mlp


@pytest.mark.parametrize("kind", ["scale", "order", "gate and up", "norms of heads", "rope", "norms", "one weight",
                                  "embeddings", "head"])  # fmt: skip
@pytest.mark.parametrize("make", [attention_sink_model, lambda kind: model_helpers.family(kind).to(torch.bfloat16)])
def test_self_test_detects_wrong_parts_in_bfloat16(kind: str, make: Callable[[str], PreTrainedModel]) -> None:
    model = make("qwen3")
    with torch.no_grad():
        for layer in model.model.layers:  # with weights of one, a missing norm would go unnoticed
            for name, weight in layer.named_parameters():
                if "norm" in name:
                    weight.mul_(torch.linspace(0.5, 1.5, weight.shape[0]) + 0.1 * ("post" in name))
    decoder = LeanDecoder(model, 64)
    assert describe_difference(decoder, model) == ""
    corrupt_decoder(decoder, kind)
    assert describe_difference(decoder, model) != ""


def test_next_sequence_uses_changed_weights() -> None:
    model = model_helpers.family("llama")
    runner, text = Runner(model), model_helpers.random_prompt(6)
    before = runner.forward([Segment(runner.open(), torch.tensor(text))]).logits
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.5)
    after = runner.forward([Segment(runner.open(), torch.tensor(text))]).logits
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after[0, -1], model_helpers.next_logits_function(model)(text))


def test_next_sequence_uses_a_changed_lm_head() -> None:
    model = model_helpers.family("llama").double()
    runner, prompt = Runner(model), model_helpers.random_prompt(5, seed=6)
    before = model_helpers.hf_greedy(model, prompt, 4)
    head = model.get_output_embeddings().get_parameter("weight")
    head.data = head.data.flip(0)  # in other storage, as after loading other weights
    after = model_helpers.hf_greedy(model, prompt, 4)
    assert before != after
    slot = runner.open()
    out = runner.forward([Segment(slot, torch.tensor(prompt))])
    assert int(out.logits[0, -1].argmax()) == after[0]


def test_self_test_leaves_no_copies() -> None:
    model = pack(model_helpers.family("llama").to(torch.bfloat16))
    runner = Runner(model)
    assert runner._lean is not None
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert packed
    assert not any("_matrix" in vars(module) for module in packed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "heads", "groups"), [(1, 6, 6), (1, 6, 2), (3, 6, 2), (3, 4, 1), (2, 5, 5)])
@pytest.mark.parametrize("n", [1, 2, FEW - 1, FEW])
def test_regrouped_queries_give_the_same_attention(
    n: int, rows: int, heads: int, groups: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(n)
    keys, values = torch.randn(2, rows, groups, 40, 16, generator=generator).to(dtype)[:, :, :, :33]
    both = torch.randn(rows, n, heads + groups, 16, generator=generator).to(dtype).transpose(1, 2)
    mask = torch.randn(rows, 1, n, 33, generator=generator).to(dtype)
    found = attend(both[:, :heads], keys, values, mask, 0.25)
    scores = both[:, :heads].double() @ keys.double().repeat_interleave(heads // groups, 1).mT * 0.25 + mask.double()
    wanted = scores.softmax(-1) @ values.double().repeat_interleave(heads // groups, 1)
    near = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, atol=near, rtol=near)
