"""Losses that a drafter can be trained with, by name: how far a guessed feature, or the law it stands for, is off.

Each takes guesses and truths at N places and gives one number a place. Laws follow from features by the target's own LM
head, so that teacher laws are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Places:
    """What the drafter says and what is true, at N places.

    Attributes:
        guess: features.
        truth: features.
        logits: the drafter's.
        wanted: the target's logits.
    """

    guess: Float[Tensor, "N D"]
    truth: Float[Tensor, "N D"]
    logits: Float[Tensor, "N V"]
    wanted: Float[Tensor, "N V"]


def smooth_l1(at: Places) -> Float[Tensor, " N"]:
    """Huber distance of features, averaged over the width: EAGLE's regression."""
    return F.smooth_l1_loss(at.guess, at.truth, reduction="none").mean(-1)


def mse(at: Places) -> Float[Tensor, " N"]:
    """Squared distance of features, averaged over the width."""
    return (at.guess - at.truth).square().mean(-1)


def ce_soft(at: Places) -> Float[Tensor, " N"]:
    """Cross-entropy with the target's law: the forward divergence, up to the target's own entropy."""
    return -(at.wanted.softmax(-1) * at.logits.log_softmax(-1)).sum(-1)


def ce_hard(at: Places) -> Float[Tensor, " N"]:
    """Cross-entropy with the target's likeliest token."""
    return F.cross_entropy(at.logits, at.wanted.argmax(-1), reduction="none")


def reverse_kl(at: Places) -> Float[Tensor, " N"]:
    """Divergence of the target's law from the drafter's: unlikely tokens are punished, missing ones forgiven."""
    mine, theirs = at.logits.log_softmax(-1), at.wanted.log_softmax(-1)
    return (mine.exp() * (mine - theirs)).sum(-1)


def total_variation(at: Places) -> Float[Tensor, " N"]:
    """Half the distance of the laws: one minus the acceptance of a sampled draft."""
    return (at.wanted.softmax(-1) - at.logits.softmax(-1)).abs().sum(-1) / 2


LOSSES: dict[str, Callable[[Places], Float[Tensor, " N"]]] = {
    loss.__name__: loss for loss in (smooth_l1, mse, ce_soft, ce_hard, reverse_kl, total_variation)
}


@dataclass(frozen=True, slots=True)
class Weighted:
    """A sum of losses with weights.

    Example:
        >>> Weighted.parse("smooth_l1:1+ce_soft:0.1").terms
        (('smooth_l1', 1.0), ('ce_soft', 0.1))
    """

    terms: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> Weighted:
        """Read "name:weight+name:weight".

        Raises:
            ValueError: there is no such loss, or a weight is no number.
        """
        terms = [part.partition(":")[::2] for part in text.split("+")]
        for name, _ in terms:
            if name not in LOSSES:
                raise ValueError(f"there is no loss {name!r}; there are: {', '.join(LOSSES)}")
        return cls(tuple((name, float(weight or 1)) for name, weight in terms))

    def __call__(self, at: Places, shares: Sequence[float] | Tensor | None = None) -> tuple[Tensor, dict[str, float]]:
        """The weighted mean over places, and each loss's own mean.

        Args:
            at: the places.
            shares: weight of each place [N]; equal by default.
        """
        weight = torch.ones(len(at.guess)) if shares is None else torch.as_tensor(shares)
        weight = weight.to(at.guess) / weight.sum()
        found = {name: (LOSSES[name](at) * weight).sum() for name, _ in self.terms}
        total = torch.stack([found[name] * share for name, share in self.terms]).sum()
        return total, {name: float(value.detach()) for name, value in found.items()}
