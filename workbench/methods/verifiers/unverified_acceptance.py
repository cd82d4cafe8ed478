"""Shared code of verifiers that accept some drafts without testing the target's probability."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.core.lazy import LazySequence
from workbench.core.rejection import AcceptanceDecision, RuleExplanation, greedy_match
from workbench.core.rules import Rule
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Verification
from workbench.kernels.rejection import recursive_rejection


def exact_decision(v: Verification) -> AcceptanceDecision:
    """Return the exact rule's decision on a draft: greedy match at temperature 0, otherwise recursive rejection."""
    if v.u_bonus is None:
        return greedy_match(v.tree, v.likeliest())
    return recursive_rejection(v.tree, v.p, v.u_bonus, v.lazy)


def is_chain_with_probs(tree: DraftTree, exact: AcceptanceDecision) -> bool:
    """Return whether a draft is a non-empty chain that stores its drafter's distributions.

    Verifiers that accept drafts unverified apply the exact rule to any other draft.

    Args:
        tree: draft tree.
        exact: decision of the exact rule about the draft; it must contain an explanation.
    """
    return bool(len(tree)) and tree.fanout <= 1 and tree.q is not None and exact.explanation is not None


def allowed_mask(v: Verification) -> Bool[Tensor, " N"]:
    """Return a mask of the N tokens of a drafted chain: true at tokens that no logits processor forbids."""
    return at_draft_tokens(v.tree, v.logits[:-1]) > -math.inf


def at_draft_tokens(tree: DraftTree, values: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """Return, for each of the N positions of a drafted chain, the entry of `values` at the drafted token."""
    return values.gather(1, tree.tokens.unsqueeze(1)).squeeze(1)


def accept_unverified(
    exact: AcceptanceDecision,
    accepted: Bool[Tensor, " N"],
    rule: Rule,
    inputs: Mapping[str, Float[Tensor, " N"]],
    paid: Float[Tensor, " N"] | LazySequence[float],
) -> AcceptanceDecision:
    """Return the exact rule's decision on a drafted chain, changed so that some tokens are accepted unverified.

    Args:
        exact: decision of the exact rule, with its explanation.
        accepted: mask of the nodes to accept unverified.
        rule: explanation of these acceptances for the trace.
        inputs: values that the explanation shows for each node, by name.
        paid: deviation that each node adds, see `AcceptanceDecision.distribution_error`.
    """
    assert exact.explanation is not None
    explanation = RuleExplanation(
        (*exact.explanation.rules[:1], rule), {**exact.explanation.inputs, **inputs}, accepted.long()
    )
    return AcceptanceDecision(
        torch.where(accepted, 1.0, exact.accept), exact.bonus, explanation=explanation, distribution_error=paid
    )
