"""Drafters with a chosen acceptance rate: a random model, the target with noise added to its weights, an exact copy.

These drafters make a comparison of implementations independent of a drafter's quality. At rate 0 every draft is
rejected, at rate 1 every draft is accepted. The workbench and Hugging Face's `generate` draft with the same model,
number format and draft length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from workbench.kernels.packed import PackedLinear, pack

CALIBRATION_STEPS = 9


@torch.no_grad()
def bare_copy(model: Any, packed: bool | None = None) -> Any:
    """Return a copy of a model with the same weights, but without hooks and cache.

    Args:
        model: model to copy.
        packed: True: with the workbench's packed linear layers; False: with those of transformers; None: as in `model`.
    """
    shared_copy = type(model)(model.config).to(device=model.device, dtype=model.dtype)
    shared_copy.load_state_dict(model.state_dict())
    shared_copy.generation_config = type(model.generation_config).from_dict(model.generation_config.to_dict())
    shared_copy = shared_copy.eval().requires_grad_(False)
    if packed is None:
        packed = any(isinstance(module, PackedLinear) for module in model.modules())
    return pack(shared_copy) if packed else shared_copy


@torch.no_grad()
def random_drafter(model: Any, seed: int = 0) -> Any:
    """Return a copy of a small model with random weights: its drafts are accepted only by chance."""
    drafter = bare_copy(model)
    generator = torch.Generator().manual_seed(seed)
    for weight in drafter.parameters():
        if weight.dim() > 1:
            noise = torch.randn(weight.shape, generator=generator) * 0.05
            weight.copy_(noise.to(weight.dtype))
    return drafter


@torch.no_grad()
def noisy_copy(model: Any, amount: float, seed: int = 0) -> Any:
    """Return a copy of a model in which each weight matrix W is W + amount · std(W) · ε, with standard normal ε."""
    drafter = bare_copy(model)
    if amount == 0:
        return drafter
    generator = torch.Generator().manual_seed(seed)
    for weight in drafter.parameters():
        if weight.dim() > 1:
            noise = torch.randn(weight.shape, generator=generator).to(weight.device)
            weight.copy_((weight.float() + amount * weight.float().std() * noise).to(weight.dtype))
    return drafter


@torch.no_grad()
def agreement(drafter: Any, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Return the share of the target's greedy tokens that the drafter predicts, given the tokens before them.

    Args:
        drafter: draft model, a model of transformers.
        texts: (prompt, the target's greedy continuation) pairs of token ids.
    """
    n_equal = total = 0
    for prompt, continuation in texts:
        ids = torch.tensor([[*prompt, *continuation]], device=drafter.device)
        guesses = drafter(ids).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
        n_equal += sum(g == t for g, t in zip(guesses, continuation, strict=True))
        total += len(continuation)
    return n_equal / max(total, 1)


def drafter_with_agreement(
    model: Any, desired_agreement: float, texts: Sequence[tuple[Sequence[int], Sequence[int]]], seed: int = 0
) -> tuple[Any, float]:
    """Return a noisy copy of a model that predicts about the share `desired_agreement` of the model's greedy tokens.

    Returns:
        The copy, and its `agreement` on `texts`. Bisection finds the amount of noise.
    """
    low, high = 0.0, 2.0
    best, reached = noisy_copy(model, 0.0), 1.0
    for _ in range(CALIBRATION_STEPS):
        amount = (low + high) / 2
        drafter = noisy_copy(model, amount, seed)
        share = agreement(drafter, texts)
        if abs(share - desired_agreement) < abs(reached - desired_agreement):
            best, reached = drafter, share
        low, high = (amount, high) if share > desired_agreement else (low, amount)
    return best, reached
