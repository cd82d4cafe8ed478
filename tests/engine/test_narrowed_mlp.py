"""MLPs with a subset of their columns: outputs of such passes per family, and the scores of columns."""

from __future__ import annotations

from typing import Any

import model_helpers
import pytest
import torch

from workbench.kernels import compilation
from workbench.kernels.layers import decoder_layers, name_of
from workbench.kernels.segment import Segment
from workbench.models.narrowed_mlp import activity, feed_forward_of, narrow_mlps
from workbench.models.runner import Runner

KINDS = {"llama": "down_proj", "gpt2": "c_proj", "phi3": "down_proj", "gpt_neox": "dense_4h_to_h"}
"""A lean decoder; transposed weights with biases; gate and up in one; biases. Names of the MLPs' output projections."""
TEXT = model_helpers.random_prompt(12)


def outs(model: Any, name: str) -> list[Any]:
    """Return the output projection of each layer's MLP."""
    return [getattr(layer.mlp, name) for layer in decoder_layers(model)[1]]


def forward(runner: Runner, shared_copy: Any = None) -> torch.Tensor:
    slot = runner.open()
    try:
        return runner.forward(
            [Segment(slot, torch.tensor(TEXT, device=runner.device))], shared_copy=shared_copy
        ).logits[0]
    finally:
        runner.close(slot)


@pytest.mark.parametrize("kind", KINDS)
def test_narrowed_pass_equals_the_model_with_other_columns_zeroed(kind: str, device: str) -> None:
    runner = Runner(model_helpers.family(kind, device=device))
    products = outs(runner.model, KINDS[kind])
    made = feed_forward_of(decoder_layers(runner.model)[1][0].get_submodule("mlp"), runner.hidden_size)
    assert made is not None
    columns = {
        0: torch.arange(0, made.width, 3, device=device),
        2: torch.arange(5, 5 + -(-made.width // 3), device=device),
    }
    whole, found = forward(runner), forward(runner, narrow_mlps(runner, columns))
    hooks = []
    for layer, kept in columns.items():
        mask = torch.zeros(made.width, dtype=torch.float64, device=device).index_fill_(0, kept, 1.0)
        hooks.append(products[layer].register_forward_pre_hook(lambda m, args, mask=mask: (args[0] * mask,)))
    with torch.inference_mode():
        wanted = runner.model(torch.tensor([TEXT], device=device), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert float((whole - found).abs().max()) > 1e-3
    torch.testing.assert_close(forward(runner), whole, rtol=0, atol=0)  # the model itself is unchanged
    every = {i: torch.arange(made.width, device=device) for i in range(runner.n_layers)}
    torch.testing.assert_close(forward(runner, narrow_mlps(runner, every)), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_activity_of_a_column_is_the_norm_of_its_output(kind: str, device: str) -> None:
    """It is the mean length, over tokens, of the vector that the column adds to the residual stream."""
    runner = Runner(model_helpers.family(kind, device=device))
    slot, taken = runner.open(), dict[int, torch.Tensor]()
    runner.prefill(slot, TEXT)
    before = [stack.clone() for stack in runner.cache._stacks]
    found = activity(runner, slot, 4, TEXT[4:])
    assert all(torch.equal(a, b) for a, b in zip(before, runner.cache._stacks, strict=True)), "no entries remain"
    products = outs(runner.model, KINDS[kind])
    hooks = [p.register_forward_pre_hook(lambda m, a, i=i: taken.__setitem__(i, a[0])) for i, p in enumerate(products)]
    with torch.inference_mode():
        runner.model(torch.tensor([TEXT], device=device), use_cache=False)
    for hook in hooks:
        hook.remove()
    assert set(found) == set(range(runner.n_layers))
    for i, product in enumerate(products):
        weight = product.weight.t() if kind == "gpt2" else product.weight  # [D, I]
        adds = taken[i][0, 4:, None, :] * weight  # [n, D, I]
        torch.testing.assert_close(found[i].double(), adds.norm(dim=1).mean(0), rtol=1e-5, atol=1e-9)


def test_mixture_of_experts_is_not_narrowed() -> None:
    runner = Runner(model_helpers.family("gpt_oss"))
    slot = runner.open()
    runner.prefill(slot, TEXT)
    assert activity(runner, slot, 4, TEXT[4:]) == {}
    layer = decoder_layers(runner.model)[1][0]
    name = name_of(layer, 1)
    assert name is not None
    assert feed_forward_of(layer.get_submodule(name), runner.hidden_size) is None
    torch.testing.assert_close(forward(runner, narrow_mlps(runner, {})), forward(runner), rtol=0, atol=0)


@pytest.mark.skipif(not compilation.may_compile(), reason="passes are compiled on Linux on x86-64")
def test_compiled_pass_is_narrowed_too() -> None:
    """As accurate as the lean layers if all MLPs have the same size; otherwise the lean layers are used."""
    model, same = (
        model_helpers.family("llama", hidden_size=128, intermediate_size=96).to(torch.bfloat16) for _ in range(2)
    )
    runner, wide = Runner(model), Runner(same.float())
    columns = {i: torch.arange(16, 80) for i in range(runner.n_layers)}
    shared_copy = narrow_mlps(runner, columns)
    assert shared_copy.lean is not None
    assert shared_copy.lean.fused is not None
    exact, compiled = forward(wide, narrow_mlps(wide, columns)), forward(runner, shared_copy)
    shared_copy.lean.fused = None
    off, lean_off = (float((found.float() - exact).abs().max()) for found in (compiled, forward(runner, shared_copy)))
    assert off < 1.5 * lean_off
    assert lean_off < 0.1 * float(exact.abs().max())
    some = narrow_mlps(runner, {0: columns[0]}).lean
    assert some is not None
    assert some.fused is None
