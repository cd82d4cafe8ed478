"""Shared code of verifiers that accept some drafts whatever the target's probability."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.core.lazy import LazySequence
from workbench.core.rejection import AcceptanceDecision, Reason, greedy_match
from workbench.core.rules import Rule
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Verification
from workbench.kernels.rejection import recursive_rejection


def exact_decision(v: Verification) -> AcceptanceDecision:
    """Return the decision of greedy match or recursive rejection, for nodes that the drafter does not decide."""
    if v.u_bonus is None:
        return greedy_match(v.tree, v.likeliest())
    return recursive_rejection(v.tree, v.p, v.u_bonus, v.lazy)


def is_chain_with_probs(tree: DraftTree, exact: AcceptanceDecision) -> bool:
    """Return whether a draft is a chain with its drafter's distributions; any other is verified exactly."""
    return bool(len(tree)) and tree.fanout <= 1 and tree.q is not None and exact.reason is not None


def allowed_mask(v: Verification) -> Bool[Tensor, " N"]:
    """Return which drafts of a chain are allowed by all logits processors."""
    return at_draft_tokens(v.tree, v.logits[:-1]) > -math.inf


def at_draft_tokens(tree: DraftTree, values: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """Return the value at each drafted token of a chain."""
    return values.gather(1, tree.tokens.unsqueeze(1)).squeeze(1)


def accept_unverified(
    exact: AcceptanceDecision,
    accepted: Bool[Tensor, " N"],
    rule: Rule,
    inputs: Mapping[str, Float[Tensor, " N"]],
    paid: Float[Tensor, " N"] | LazySequence[float],
) -> AcceptanceDecision:
    """Return the exact decision for a chain, with some nodes accepted whatever their target probability.

    Args:
        exact: exact decision with its reason; the first rule of the reason is that of an only child.
        accepted: nodes to accept.
        rule: rule that accepts them.
        inputs: inputs of that rule.
        paid: see `AcceptanceDecision.distribution_error`.
    """
    assert exact.reason is not None
    reason = Reason((*exact.reason.rules[:1], rule), {**exact.reason.inputs, **inputs}, accepted.long())
    return AcceptanceDecision(
        torch.where(accepted, 1.0, exact.accept), exact.bonus, reason=reason, distribution_error=paid
    )
