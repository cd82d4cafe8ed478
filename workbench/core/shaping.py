"""Changes of the target's law that depend on the text so far, as logits processors: see `core.sampling`.

They are part of the target's law, not of a rule of acceptance: every node of a draft tree gets its own, from its own
history, so that what is lossless without them is lossless with them. Drafters that know the row's law use them as well.
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
    """Lower the logits of tokens that were generated already: by `frequency` for each time, by `presence` once.

    Tokens of the prompt do not count. Source: OpenAI's API reference, `frequency_penalty` and `presence_penalty`.
    """

    prompt_length: int
    presence: float
    frequency: float

    def __call__(self, ids: Int[Tensor, "B L"], scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Logits after the tokens `ids`, prompt included."""
        new = ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, new, torch.ones_like(new, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0).to(scores.dtype)


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Add to the logits of some tokens, everywhere."""

    tokens: tuple[int, ...]
    values: tuple[float, ...]

    def __call__(self, ids: Int[Tensor, "B L"], scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Logits after the tokens `ids`."""
        at = to_device(self.tokens, scores.device)
        return scores.index_add(1, at, to_device(self.values, scores.device, scores.dtype).expand(len(scores), -1))


@dataclass(frozen=True, slots=True)
class NotBefore:
    """Give no probability to some tokens before `least` others were generated."""

    prompt_length: int
    least: int
    tokens: tuple[int, ...]

    def __call__(self, ids: Int[Tensor, "B L"], scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Logits after the tokens `ids`, prompt included."""
        if ids.shape[1] - self.prompt_length >= self.least:
            return scores
        return scores.index_fill(1, to_device(self.tokens, scores.device), -math.inf)
