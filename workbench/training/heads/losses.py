"""Losses for training drafters, by name: distances between features, or between the distributions computed from them.

Each loss takes predictions and true values at N positions and returns one number per position. Distributions are
computed from features by the target's own LM head, so that target distributions are never stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The drafter's predictions and the true values, at N positions.

    Attributes:
        guess: features that the drafter predicts, float [N, D].
        truth: the target's features, float [N, D].
        draft_logits: the drafter's logits, float [N, V].
        target_logits: the target's logits, float [N, V].
    """

    guess: Float[Tensor, "N D"]
    truth: Float[Tensor, "N D"]
    draft_logits: Float[Tensor, "N V"]
    target_logits: Float[Tensor, "N V"]


def smooth_l1(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return the Huber distance of predicted and true features, averaged over the width: EAGLE's regression loss."""
    return F.smooth_l1_loss(inputs.guess, inputs.truth, reduction="none").mean(-1)


def mse(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return the squared distance of predicted and true features, averaged over the width."""
    return (inputs.guess - inputs.truth).square().mean(-1)


def cosine(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return one minus the cosine of the angle between predicted and true features: M2R2's residual alignment loss."""
    return 1 - F.cosine_similarity(inputs.guess, inputs.truth, dim=-1)


def ce_soft(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return the cross-entropy of the drafter with the target's distribution: forward KL plus the target's entropy."""
    return -(inputs.target_logits.softmax(-1) * inputs.draft_logits.log_softmax(-1)).sum(-1)


def ce_hard(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return the cross-entropy of the drafter's distribution with the target's most probable token as the label."""
    return F.cross_entropy(inputs.draft_logits, inputs.target_logits.argmax(-1), reduction="none")


def forward_kl(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return KL(p ‖ q) of target p and drafter q: large if the drafter misses tokens that the target may generate."""
    log_q, log_p = inputs.draft_logits.log_softmax(-1), inputs.target_logits.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def reverse_kl(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return KL(q ‖ p) of drafter q and target p: large if the drafter proposes improbable tokens."""
    log_q, log_p = inputs.draft_logits.log_softmax(-1), inputs.target_logits.log_softmax(-1)
    return (log_q.exp() * (log_q - log_p)).sum(-1)


def total_variation(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return half the L1 distance of drafter's and target's distributions.

    This is one minus the acceptance probability of a sampled draft token.
    """
    return (inputs.target_logits.softmax(-1) - inputs.draft_logits.softmax(-1)).abs().sum(-1) / 2


def jensen_shannon(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return the mean KL divergence of drafter's and target's distributions from their average, which is symmetric.

    Source: Zhou et al. 2024, DistillSpec, arXiv:2310.08461, §3: the generalised divergence at β = ½.
    """
    log_q, log_p = inputs.draft_logits.log_softmax(-1), inputs.target_logits.log_softmax(-1)
    log_mean = torch.logaddexp(log_q, log_p) - math.log(2)
    return ((log_q.exp() * (log_q - log_mean)).sum(-1) + (log_p.exp() * (log_p - log_mean)).sum(-1)) / 2


def tvd_plus_plus(inputs: LossInputs) -> Float[Tensor, " N"]:
    """Return a loss whose gradient is a policy gradient of total variation with normalised rewards.

    The gradient of total variation is E_q[1(q > p) ∇ log q], a policy gradient with the reward r = 1(p ≥ q). Here the
    reward is replaced by its advantage (r − μ) / σ; μ and σ are mean and standard deviation over all positions, in
    expectation under q. μ has no effect here, since the sum over the whole vocabulary replaces sampling. Only the
    gradient is meaningful; the value is zero if the distributions agree everywhere.

    Source: Goel et al. 2024, Direct Alignment, arXiv:2403.00858, §3.
    """
    log_q = inputs.draft_logits.log_softmax(-1)
    q, reward = log_q.detach().exp(), (inputs.target_logits.log_softmax(-1) >= log_q.detach()).to(log_q)
    mean = (q * reward).sum() / len(q)
    std = ((q * (reward - mean).square()).sum() / len(q)).sqrt()
    advantage = (reward - mean) / std if std > 0 else torch.zeros_like(reward)
    return -(q * advantage * log_q).sum(-1)


_ALL = (
    smooth_l1, mse, cosine, ce_soft, ce_hard, forward_kl, reverse_kl, jensen_shannon, total_variation, tvd_plus_plus,
)  # fmt: skip
LOSSES: dict[str, Callable[[LossInputs], Float[Tensor, " N"]]] = {loss.__name__: loss for loss in _ALL}
FEATURE_LOSSES = (smooth_l1.__name__, mse.__name__, cosine.__name__)
"""Names of the losses that compare features (hidden states); a draft model predicts no features."""


@dataclass(frozen=True, slots=True)
class WeightedLoss:
    """A weighted sum of losses for training a drafter.

    Example:
        >>> WeightedLoss.parse("smooth_l1:1+ce_soft:0.1").terms
        (('smooth_l1', 1.0), ('ce_soft', 0.1))
    """

    terms: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> WeightedLoss:
        """Return the weighted sum of losses that a text such as "smooth_l1:1+ce_soft:0.1" describes.

        Raises:
            ValueError: a loss is unknown, or a weight is not a number.
        """
        terms = [part.partition(":")[::2] for part in text.split("+")]
        for name, _ in terms:
            if name not in LOSSES:
                raise ValueError(f"there is no loss {name!r}; use one of: {', '.join(LOSSES)}")
        return cls(tuple((name, float(weight or 1)) for name, weight in terms))

    def __call__(
        self, inputs: LossInputs, shares: Sequence[float] | Tensor | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute the losses: return their weighted sum averaged over positions, and the average of each loss by name.

        Args:
            inputs: predictions and true values.
            shares: weight of each position in the average [N]; equal by default.
        """
        weight = inputs.guess.new_ones(len(inputs.guess)) if shares is None else torch.as_tensor(shares)
        weight = weight.to(inputs.guess) / weight.sum()
        means = {name: (LOSSES[name](inputs) * weight).sum() for name, _ in self.terms}
        total = torch.stack([means[name] * share for name, share in self.terms]).sum()
        return total, {name: float(value.detach()) for name, value in means.items()}
