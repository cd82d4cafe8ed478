"""int8: the rounded weights are the model, passes read them as bytes, and unsupported cases are refused by name."""

from __future__ import annotations

import copy
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import ModelError
from workbench.engine import Engine, Models, Request, Runner
from workbench.kernels import compilation, devices
from workbench.kernels.compiled import instructions
from workbench.kernels.quantised import (
    GROUP,
    STEPS,
    dequantise_weight,
    int8_weight_of,
    quantise,
    quantise_weight,
    weight_dtype,
)
from workbench.methods import registry
from workbench.models.loading import load_model, load_models, resolve_drafter_dtype, resolve_dtype
from workbench.service.memory import position_bytes, weight_bytes

pytestmark = pytest.mark.skipif(not compilation.may_compile(), reason="passes are compiled on Linux on x86-64")
SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192}
CPU = torch.device("cpu")


def int8_model(kind: str = "llama", **overrides: Any) -> Any:
    model = model_helpers.family(kind, **SIZES | overrides).to(torch.bfloat16)
    quantise(model)
    return model


def exactly(model: Any, text: list[int]) -> torch.Tensor:
    """Return the logits of the weights as they are, in float32."""
    wide = model_helpers.family(type(model.config).model_type, **SIZES).float()
    wide.load_state_dict(model.state_dict())
    return wide(torch.tensor([text])).logits[0]


def test_weights_are_rounded_within_half_a_step_of_their_group() -> None:
    assert GROUP == instructions.GROUP
    weight = torch.randn(5, 3 * GROUP, generator=torch.Generator().manual_seed(0))
    weight[:, :GROUP] *= 100
    weight[4] = 0
    numbers, scale = quantise_weight(weight)
    assert int(numbers.abs().max()) == STEPS
    assert torch.equal(scale, weight.unflatten(1, (3, GROUP)).abs().amax(2) / STEPS)
    error = (dequantise_weight(numbers, scale) - weight).abs().unflatten(1, (3, GROUP)).amax(2)
    assert bool((error <= 0.501 * scale).all())
    assert not bool(dequantise_weight(numbers, scale)[4].any())


def test_rounded_weights_replace_the_models_and_are_stable() -> None:
    model, plain = int8_model(), model_helpers.family("llama", **SIZES).to(torch.bfloat16)
    for mine, was in (
        (m, p) for m, p in zip(model.modules(), plain.modules(), strict=True) if int8_weight_of(m) is not None
    ):
        assert torch.equal(mine.weight, dequantise_weight(*quantise_weight(was.weight)).bfloat16())
        assert not torch.equal(mine.weight, was.weight)
    before = copy.deepcopy(model.state_dict())
    quantise(model)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2"])
def test_int8_pass_equals_the_rounded_model(kind: str) -> None:
    plain = model_helpers.family(kind, **SIZES).to(torch.bfloat16)
    model = int8_model(kind)
    runner, text = Runner(model), model_helpers.random_prompt(13, seed=1)
    assert runner.weight_dtype == torch.int8
    assert runner.dtype == torch.bfloat16
    exact, unrounded = exactly(model, text), exactly(plain, text)
    mine = model_helpers.chunked_logits(runner, text, [13]).float()
    assert float((mine - exact).norm()) < 0.5 * float((unrounded - exact).norm()) + 0.01 * float(exact.norm())
    assert float((mine - exact).norm()) < 0.03 * float(exact.norm())


def test_a_tokens_result_does_not_depend_on_chunking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "has_tiles", lambda: False)  # these use wide passes where available
    runner, text = Runner(int8_model()), model_helpers.random_prompt(40, seed=7)
    alone = model_helpers.chunked_logits(runner, text, [1] * 40)
    for pieces in ([40], [7, 13, 20], [2, 3, 5, 6, 8, 16]):
        assert torch.equal(model_helpers.chunked_logits(runner, text, pieces), alone)


def test_drafted_text_equals_plain_decoding_and_the_trace_names_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "has_tiles", lambda: False)
    models: Models = model_helpers.make_models("llama", noise=None, **SIZES)
    target = int8_model()
    drafter = model_helpers.noisy_copy(target, 0.15)
    models.target, models.drafter = Runner(target), Runner(drafter)
    models.drafter_name, models.drafter_problem = "noisy", ""
    prompt, found = model_helpers.repeating_prompt(13, period=5), {}
    for name in ("autoregressive", "prompt-lookup", "draft-model", "draft-tree"):
        trace = Engine(models).generate(Request(prompt, registry.get(name), max_new_tokens=40))
        found[name] = trace.token_ids
        assert trace.header.dtype == "int8"
    assert all(tokens == found["autoregressive"] for tokens in found.values())


def test_changed_weights_are_rounded_again_for_the_next_sequence() -> None:
    model = int8_model()
    runner, text = Runner(model), model_helpers.random_prompt(6)
    before, linear = model_helpers.chunked_logits(runner, text, [6]), model.model.layers[1].mlp.up_proj
    with torch.no_grad():
        linear.weight.mul_(-3.0)
    after = model_helpers.chunked_logits(runner, text, [6])
    assert not torch.equal(before, after)
    assert runner._lean is not None
    assert runner._lean.fused is not None
    found = int8_weight_of(linear)
    assert found is not None
    assert float(found.scale.max()) == pytest.approx(float(linear.weight.float().abs().max()) / STEPS, rel=0.01)
    exact = exactly(model, text)
    assert float((after.float() - exact).norm()) < 0.03 * float(exact.norm())


def test_int8_without_compiled_passes_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"LlamaForCausalLM cannot be run in int8.*head sizes"):
        Runner(int8_model(head_dim=16))
    with pytest.raises(ModelError, match=r"LlamaForCausalLM cannot be run in int8.*multiples of 64"):
        int8_model(intermediate_size=96)
    with pytest.raises(ModelError, match=r"text-target cannot be run in int8.*Use bfloat16"):
        load_models("text-target", None, "cpu", "int8")
    for device in ("cuda", "cuda:1", "mps"):
        with pytest.raises(ModelError, match=f"not on {device}"):
            devices.check_dtype("int8", device)
    monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    with pytest.raises(ModelError, match="WORKBENCH_COMPILED=0 disables compiled kernels"):
        resolve_dtype("int8", CPU, "smollm2")
    monkeypatch.delenv("WORKBENCH_COMPILED")
    monkeypatch.setattr(devices, "_has_numba", lambda: False)
    with pytest.raises(ModelError, match="pip install numba"):
        devices.check_dtype("int8", "cpu")
    monkeypatch.undo()
    monkeypatch.setattr(devices.platform, "machine", lambda: "aarch64")
    with pytest.raises(ModelError, match="not for Linux on aarch64"):
        devices.check_dtype("int8", "auto")


def test_int8_model_is_loaded_by_dtype_name(tmp_path: Any) -> None:
    model_helpers.family("llama", **SIZES).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), CPU, resolve_dtype("int8", CPU))
    assert weight_dtype(model) == torch.int8
    assert model.dtype == torch.bfloat16
    assert resolve_drafter_dtype("auto", CPU, torch.int8) == torch.float32
    runner = Runner(model)
    n_weights = sum(p.numel() for p in model.parameters())
    assert weight_bytes(runner) == 5 * n_weights  # its bytes, the same in bfloat16, and a rearranged copy
    assert position_bytes(runner.config, torch.int8) == position_bytes(runner.config, torch.bfloat16)
