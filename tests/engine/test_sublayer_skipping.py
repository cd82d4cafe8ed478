"""Passes that skip attention or MLP sublayers, and passes outside the rounds: their results, and an unchanged cache."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.kernels.layers import HALVES, MAX_CACHED_SUBSETS, decoder_layers
from workbench.kernels.segment import Segment
from workbench.models.runner import Runner
from workbench.models.side_passes import exit_logits, recompute_logits

KINDS = ["llama", "gpt2", "gemma3_text"]
"""A lean decoder; positions added to embeddings; scaled embeddings, sliding windows, norms after the sublayers."""
TEXT = model_helpers.random_prompt(12)


def logits_without_sublayers(model: Any, without: Collection[int], ids: list[int]) -> Tensor:
    """Return the model's own logits of a text with the outputs of some sublayers set to zero."""

    def zeros(module: Any, args: Any, made: Any) -> Any:
        return (torch.zeros_like(made[0]), *made[1:]) if isinstance(made, tuple) else torch.zeros_like(made)

    hooks = []
    for i, layer in enumerate(decoder_layers(model)[1]):
        for half, names in enumerate(HALVES):
            if 2 * i + half in without:
                module = next(child for name, child in layer.named_children() if name in names)
                hooks.append(module.register_forward_hook(zeros))
    try:
        with torch.inference_mode():
            return model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("without", [{2}, {3}, {2, 3}, {0, 3, 5}, set(range(6))], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_skipped_sublayer_adds_nothing(kind: str, without: set[int], device: str) -> None:
    """The sublayers are skipped from the first token on, so that the other layers read changed states, too."""
    runner = Runner(model_helpers.family(kind, device=device))
    slot, ids = runner.open(), torch.tensor(TEXT, device=device)
    found = runner.forward([Segment(slot, ids)], skipped_halves=without).logits[0]
    torch.testing.assert_close(found, logits_without_sublayers(runner.model, without, TEXT), rtol=0, atol=1e-12)
    slot.scratch = 0
    whole = runner.forward([Segment(slot, ids)]).logits[0]  # the model itself is unchanged
    torch.testing.assert_close(whole, logits_without_sublayers(runner.model, (), TEXT), rtol=0, atol=1e-12)
    assert float((whole - found).abs().max()) > 1e-3


def test_number_of_cached_sublayer_sets_is_limited() -> None:
    runner = Runner(model_helpers.family("gpt2"))
    slot, ids = runner.open(), torch.tensor([1])
    for i in range(MAX_CACHED_SUBSETS + 3):
        slot.scratch = 0
        runner.forward(
            [Segment(slot, ids)], skipped_halves={h for h in range(6) if (i >> h) & 1}, layers=[0, 1, 2][: 3 - i % 2]
        )
    assert len(runner._views._kept) <= MAX_CACHED_SUBSETS


@pytest.mark.parametrize("kind", KINDS)
def test_passes_outside_the_rounds_leave_no_entries(kind: str, device: str) -> None:
    runner = Runner(model_helpers.family(kind, device=device))
    first, slot = runner.open(), runner.open()
    runner.prefill(first, TEXT[:5])
    runner.prefill(slot, TEXT)
    slot.scratch = 2
    before = [stack.clone() for stack in runner.cache._stacks]
    again = recompute_logits(runner, slot, 4, TEXT[4:9], ())
    torch.testing.assert_close(again, logits_without_sublayers(runner.model, (), TEXT)[4:9], rtol=0, atol=1e-12)
    thin = recompute_logits(runner, slot, 4, TEXT[4:9], {2, 5})
    assert float((again - thin).abs().max()) > 1e-3
    with torch.inference_mode():
        read = runner.model(input_ids=torch.tensor([TEXT], device=device), use_cache=False, output_hidden_states=True)
    streams = read.hidden_states[2][0].repeat(9, 1)  # more tokens than one LM head call takes
    logits = exit_logits(runner, slot, streams)
    wanted = logits_without_sublayers(runner.model, {4, 5}, TEXT).repeat(9, 1)
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-12)
    assert all(torch.equal(was, now) for was, now in zip(before, runner.cache._stacks, strict=True))
    assert (slot.length, slot.scratch, first.length) == (12, 2, 5)
