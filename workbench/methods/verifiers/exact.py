"""Base classes of exact verifiers: greedy text, deterministic drafts, and rules stated as the emitted distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.following import following, shares
from workbench.core.places import Fans, place_by_place
from workbench.core.rejection import AcceptanceDecision, Reason, greedy_match
from workbench.core.rules import Rule
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.feedback import Verification
from workbench.decoders.draft_verify.parts import Verifier
from workbench.kernels.rejection import passes, recursive_rejection

EMITTED = Rule(
    "emitted",
    "The draw is followed",
    "e / m",
    {"e": "emitted", "m": "unclaimed"},
    "e is the probability that this position emits the token, given all drafts for it; m is the mass of that "
    "distribution on all tokens but the earlier siblings'. One token is drawn from it, and a draft with that token is "
    "accepted.",
)
"""Rule of verifiers that compute the distribution of a position's token from all its drafts at once."""


@dataclass(frozen=True)
class Exact(Verifier):
    """A rule for sampled drafts. For deterministic drafts the target draws, and its draw is followed."""

    made_for: ClassVar[frozenset[Sampling]] = frozenset()
    """Ways of choosing siblings for which it is offered: it is exact there, and differs from recursive rejection."""

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Apply greedy match, the rule for deterministic drafts, or `judge`."""
        if v.u_stop is None:
            return greedy_match(v.tree, v.likeliest())
        if not len(v.tree) or v.tree.q is None:
            return recursive_rejection(v.tree, v.p, v.u_stop, v.late)
        return self.judge(v.tree, v.p, v.u_stop, v.late)

    def judge(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool = False
    ) -> AcceptanceDecision:
        """Apply the rule to a tree of at least one node, with the distributions it was drawn from."""
        raise NotImplementedError


@dataclass(frozen=True)
class ByEmission(Exact):
    """A rule stated as the distribution of the token that a position emits, given the drafts there."""

    says: ClassVar[Rule] = EMITTED

    def tests(self, tree: DraftTree, fans: Fans) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """Return the probability that each child passes, and the token's distribution if none does."""
        raise NotImplementedError

    def outline(
        self, tree: DraftTree, fans: Fans
    ) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"], Float[Tensor, "R 1"]] | None:
        """Return `tests` from compiled passes, with the final distribution only at the children's tokens and elsewhere.

        None: there is no compiled version. The distributions are such as `workbench.kernels.rejection.passes` accepts,
        with children at every position.
        """
        return None

    def judge(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool = False
    ) -> AcceptanceDecision:
        """Compute the distribution, draw from it, and follow the draw; a token drawn last counts if a draft has it."""
        assert tree.q is not None
        brief = passes(p, tree.q)

        def at(fans: Fans, ends: bool) -> tuple[Sequence[Float[Tensor, "R F"]], Tensor]:
            if brief and not ends and (outline := self.outline(tree, fans)) is not None:
                kept, left_x, others = outline
                missed = (1 - kept.sum(1, keepdim=True)).clamp_min_(0)
                same = fans.token.unsqueeze(2) == fans.token.unsqueeze(1)  # [R, F, F]
                emitted = (same * kept.unsqueeze(1)).sum(2).addcmul_(missed, left_x)
                return shares(fans, emitted, missed * others), p
            accept, unclaimed, left = following(fans, fans.emitted(*self.tests(tree, fans)), spent=True)
            return [accept, unclaimed], left

        (accept, unclaimed), stop = place_by_place(tree, p, u_stop, at, late, whole=brief)
        inputs = {"emitted": accept * unclaimed, "unclaimed": unclaimed}
        return AcceptanceDecision(accept, stop, reason=Reason((self.says,), inputs))


def rule_of(name: str, title: str, says: str, source: str) -> Rule:
    """Return `EMITTED` with the name and text of the verifier that computes the distribution."""
    return replace(EMITTED, name=name, title=title, says=f"{says} {EMITTED.says}", source=source)
