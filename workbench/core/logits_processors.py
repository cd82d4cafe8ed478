"""Logits processors of requests: penalties for repeated tokens, logit biases and a minimum length.

They are part of the target's distribution, not of a verifier. Each node of a draft tree is processed with its own
history, so a method that is lossless without them stays lossless with them. Drafters that have access to the sequence's
sampling parameters apply them, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.transfer import to_device


@dataclass(frozen=True, slots=True)
class Penalties:
    """Lower the logits of tokens that the text already contains: by `frequency` per occurrence, by `presence` once.

    Only generated tokens count, not those of the prompt. Source: OpenAI's API reference, `frequency_penalty` and
    `presence_penalty`.
    """

    prompt_length: int
    presence: float
    frequency: float

    def __call__(self, ids: Int[Tensor, "B L"], scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Return the logits `scores`, lowered for tokens that occur in `ids` after the prompt.

        `ids` are all tokens so far, prompt included.
        """
        new = ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, new, torch.ones_like(new, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0).to(scores.dtype)


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Add constants to the logits of some tokens at every position."""

    tokens: tuple[int, ...]
    values: tuple[float, ...]

    def __call__(self, ids: Int[Tensor, "B L"], scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Return the logits `scores` with the biases added; `ids` is not used."""
        at = to_device(self.tokens, scores.device)
        return scores.index_add(1, at, to_device(self.values, scores.device, scores.dtype).expand(len(scores), -1))


@dataclass(frozen=True, slots=True)
class MinNewTokens:
    """Set the probability of the tokens that would end the text to 0 until `min_tokens` tokens have been generated."""

    prompt_length: int
    min_tokens: int
    tokens: tuple[int, ...]

    def __call__(self, ids: Int[Tensor, "B L"], scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Return the logits `scores`, with −inf for `tokens` if too few tokens have been generated.

        `ids` are all tokens so far, prompt included.
        """
        if ids.shape[1] - self.prompt_length >= self.min_tokens:
            return scores
        return scores.index_fill(1, to_device(self.tokens, scores.device), -math.inf)
