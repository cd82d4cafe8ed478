"""Base classes of exact verifiers, which share greedy match and the rule for deterministic drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.rejection import AcceptanceDecision, RuleExplanation, greedy_match
from workbench.core.rules import Rule
from workbench.core.sample_matching import child_acceptance, match_sampled_token
from workbench.core.sibling_groups import SiblingGroups, verify_positions
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.kernels.rejection import recursive_rejection, supports_distributions

EMITTED = Rule(
    "emitted",
    "Match with the target's sampled token",
    "e / m",
    {"e": "emitted", "m": "unclaimed"},
    "e is the probability that this position emits the token, given all drafts for it; m is the mass of that "
    "distribution on all tokens except the earlier siblings. One token is drawn from it, and a draft with that token "
    "is accepted.",
)
"""Explanation, for the trace, of verifiers that compute a token's distribution from all drafts at its position."""


@dataclass(frozen=True)
class Exact(Verifier):
    """Base class of exact verifiers for sampled drafts.

    A deterministic draft is accepted if it equals a token drawn from the target's distribution.
    """

    useful_for: ClassVar[frozenset[Sampling]] = frozenset()
    """Ways of drawing siblings for which methods offer this verifier: those for which it is exact and differs from
    recursive rejection."""

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Verify a draft tree by greedy match at temperature 0, otherwise by a rule that depends on its drafts.

        The method `decide` verifies sampled drafts, and recursive rejection verifies deterministic ones.
        """
        if v.u_bonus is None:
            return greedy_match(v.tree, v.likeliest())
        if not len(v.tree) or v.tree.q is None:
            return recursive_rejection(v.tree, v.p, v.u_bonus, v.lazy)
        return self.decide(v.tree, v.p, v.u_bonus, v.lazy)

    def decide(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_bonus: Float[Tensor, " N_plus_1"], lazy: bool = False
    ) -> AcceptanceDecision:
        """Return the verifier's acceptance of each sampled draft, and the token to emit after each position.

        Args:
            tree: draft tree of N ≥ 1 nodes, with the distributions `tree.q` from which they were drawn.
            p: the target's distributions after the root and after each node.
            u_bonus: uniform random numbers in [0, 1) for the token that is emitted after the accepted path, one per
                position.
            lazy: whether this token may be sampled later, only at the last accepted position.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class EmissionVerifier(Exact):
    """Base class of verifiers that define the distribution of the token emitted at a position, given its drafts."""

    explanation: ClassVar[Rule] = EMITTED

    def acceptance(self, tree: DraftTree, fans: SiblingGroups) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """Return the acceptance probability of each drafted child, and the residual distribution at each position.

        The emitted token follows the residual distribution if no child is accepted.

        Args:
            tree: draft tree.
            fans: groups of up to F siblings at R positions, with the target's and the drafter's distributions over V
                tokens.
        """
        raise NotImplementedError

    def compiled_acceptance(
        self, tree: DraftTree, fans: SiblingGroups
    ) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"], Float[Tensor, "R 1"]] | None:
        """Return acceptance probabilities and residual probabilities from compiled code; None without such code.

        `workbench.kernels.rejection.supports_distributions` must be true for the distributions, and every position must
        have children.

        Returns:
            Three tensors: acceptance probability of each child; residual probability of each child's token; sum of the
            residual probabilities of all tokens that are no child.
        """
        return None

    def decide(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_bonus: Float[Tensor, " N_plus_1"], lazy: bool = False
    ) -> AcceptanceDecision:
        """Draw the emitted token from its distribution given the drafts, and accept the draft that equals it."""
        assert tree.q is not None
        is_compiled = supports_distributions(p, tree.q)

        def at(fans: SiblingGroups, ends: bool) -> tuple[Sequence[Float[Tensor, "R F"]], Tensor]:
            if is_compiled and not ends and (outline := self.compiled_acceptance(tree, fans)) is not None:
                accept_probs, left_x, other_mass = outline
                reject_prob = (1 - accept_probs.sum(1, keepdim=True)).clamp_min_(0)
                is_same = fans.token.unsqueeze(2) == fans.token.unsqueeze(1)  # [R, F, F]
                emitted = (is_same * accept_probs.unsqueeze(1)).sum(2).addcmul_(reject_prob, left_x)
                return child_acceptance(fans, emitted, reject_prob * other_mass), p
            accept, unclaimed, left_probs = match_sampled_token(
                fans, fans.emitted_probs(*self.acceptance(tree, fans)), inplace=True
            )
            return [accept, unclaimed], left_probs

        (accept, unclaimed), bonus = verify_positions(tree, p, u_bonus, at, lazy, in_one_piece=is_compiled)
        inputs = {"emitted": accept * unclaimed, "unclaimed": unclaimed}
        return AcceptanceDecision(accept, bonus, explanation=RuleExplanation((self.explanation,), inputs))


def rule_of(name: str, title: str, text: str, source: str) -> Rule:
    """Return the trace's explanation of a verifier, with its name, title, text and source."""
    return replace(EMITTED, name=name, title=title, says=f"{text} {EMITTED.says}", source=source)
