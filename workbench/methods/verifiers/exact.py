"""Base classes of exact verifiers: greedy text, deterministic drafts, and rules stated as the emitted distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.rejection import AcceptanceDecision, Reason, greedy_match
from workbench.core.rules import Rule
from workbench.core.sample_matching import child_acceptance, match_sampled_token
from workbench.core.sibling_groups import SiblingGroups, verify_positions
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.kernels.rejection import recursive_rejection, supports_distributions

EMITTED = Rule(
    "emitted",
    "Match with the drawn token",
    "e / m",
    {"e": "emitted", "m": "unclaimed"},
    "e is the probability that this position emits the token, given all drafts for it; m is the mass of that "
    "distribution on all tokens but the earlier siblings'. One token is drawn from it, and a draft with that token is "
    "accepted.",
)
"""Rule of verifiers that compute the distribution of a position's token from all its drafts at once."""


@dataclass(frozen=True)
class Exact(Verifier):
    """A rule for sampled drafts. For deterministic drafts, the draft that equals the target's draw is accepted."""

    useful_for: ClassVar[frozenset[Sampling]] = frozenset()
    """Ways of drawing siblings for which it is offered: it is exact there, and differs from recursive rejection."""

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Apply greedy match, the rule for deterministic drafts, or `decide`."""
        if v.u_bonus is None:
            return greedy_match(v.tree, v.likeliest())
        if not len(v.tree) or v.tree.q is None:
            return recursive_rejection(v.tree, v.p, v.u_bonus, v.lazy)
        return self.decide(v.tree, v.p, v.u_bonus, v.lazy)

    def decide(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool = False
    ) -> AcceptanceDecision:
        """Apply the rule to a tree of at least one node, with the distributions that it was drawn from."""
        raise NotImplementedError


@dataclass(frozen=True)
class EmissionVerifier(Exact):
    """A rule defined by the distribution of the token that a position emits, given the drafts there."""

    explanation: ClassVar[Rule] = EMITTED

    def acceptance(self, tree: DraftTree, fans: SiblingGroups) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """Return the probability that each child is accepted, and the token's distribution if none is."""
        raise NotImplementedError

    def compiled_acceptance(
        self, tree: DraftTree, fans: SiblingGroups
    ) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"], Float[Tensor, "R 1"]] | None:
        """Return `acceptance` by compiled code: (probabilities, residual at the children's tokens, its other mass).

        None: there is no compiled version. `workbench.kernels.rejection.supports_distributions` must accept the
        distributions, and every position must have children.
        """
        return None

    def decide(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool = False
    ) -> AcceptanceDecision:
        """Compute the emitted token's distribution, draw from it, and accept the draft that equals the draw."""
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

        (accept, unclaimed), stop = verify_positions(tree, p, u_stop, at, late, in_one_piece=is_compiled)
        inputs = {"emitted": accept * unclaimed, "unclaimed": unclaimed}
        return AcceptanceDecision(accept, stop, reason=Reason((self.explanation,), inputs))


def rule_of(name: str, title: str, text: str, source: str) -> Rule:
    """Return `EMITTED` with the name and text of the verifier that computes the distribution."""
    return replace(EMITTED, name=name, title=title, says=f"{text} {EMITTED.says}", source=source)
