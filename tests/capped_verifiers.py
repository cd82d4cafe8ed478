"""Verifiers that end a round after a few accepted draft tokens: an exact one, and a wrong one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision, greedy_match, recursive_rejection
from workbench.core.sampling import likeliest, pick
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier


@dataclass(frozen=True)
class FirstFew(Verifier):
    """Speculative sampling of the first `most` tokens of a chain; the token after them is sampled from p."""

    name = "first-few"
    exact_for = frozenset({Sampling.CHAIN})
    most: int = param(2, ge=1, le=16, doc="maximum number of draft tokens accepted per round")

    def rule(self, v: Verification) -> AcceptanceDecision:
        if v.u_bonus is None:
            return greedy_match(v.tree, likeliest(v.logits))
        ruling = recursive_rejection(v.tree, v.p, v.u_bonus)
        level = torch.arange(len(v.p), device=v.p.device)
        stop = torch.where(level < self.most, ruling.bonus, pick(v.p, v.u_bonus))
        return AcceptanceDecision(ruling.accept.masked_fill(level[:-1] >= self.most, 0.0), stop)


@dataclass(frozen=True)
class WrongFirstFew(FirstFew):
    """A wrong variant: the token after the last accepted one is sampled from the residual distribution, not from p."""

    def rule(self, v: Verification) -> AcceptanceDecision:
        ruling = super().rule(v)
        return ruling if v.u_bonus is None else replace(ruling, bonus=recursive_rejection(v.tree, v.p, v.u_bonus).bonus)
