"""What exact verifiers share: greedy text, drafts without laws, and rules that say what a place emits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.following import following, shares
from workbench.core.places import Fans, place_by_place
from workbench.core.rejection import Reason, Ruling, greedy_match
from workbench.core.rules import Rule
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.parts import Verifier
from workbench.engine.rejecting import passes, recursive_rejection
from workbench.engine.told import Verification

EMITTED = Rule(
    "emitted",
    "The draw is followed",
    "e / m",
    {"e": "emitted", "m": "unclaimed"},
    "e is the chance that this place emits the token, given all drafts for it; m, what e's law gives to all but the "
    "elder siblings. One draw from that law is followed if a draft has its token.",
)
"""What rules have in common that find the law of a place's token from all its drafts at once."""


@dataclass(frozen=True)
class Exact(Verifier):
    """A rule for drafts that were drawn. Chosen ones have no law: the target draws, and its draw is followed."""

    made_for: ClassVar[frozenset[Sampling]] = frozenset()
    """Ways of choosing siblings for which it is offered: it is exact, and another rule than recursive rejection."""

    def rule(self, v: Verification) -> Ruling:
        """Greedy match, the rule for chosen drafts, or `judge`."""
        if v.u_stop is None:
            return greedy_match(v.tree, v.likeliest())
        if not len(v.tree) or v.tree.q is None:
            return recursive_rejection(v.tree, v.p, v.u_stop, v.late)
        return self.judge(v.tree, v.p, v.u_stop, v.late)

    def judge(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool = False
    ) -> Ruling:
        """The rule, for a tree of one node at least, with the laws it was drawn from."""
        raise NotImplementedError


@dataclass(frozen=True)
class ByEmission(Exact):
    """A rule that is stated as the law of the token that a place emits, given the drafts there."""

    says: ClassVar[Rule] = EMITTED

    def tests(self, tree: DraftTree, fans: Fans) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """The probability that the rule's tests end with each child, and the law of the token if with none."""
        raise NotImplementedError

    def outline(
        self, tree: DraftTree, fans: Fans
    ) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"], Float[Tensor, "R 1"]] | None:
        """The same from compiled passes, and of that law only what it has at the children's tokens, and at all others.

        None: nothing is compiled for it. Laws are such as `workbench.engine.rejecting.passes` says, with children at
        every place.
        """
        return None

    def judge(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool = False
    ) -> Ruling:
        """Find the law, draw from it, and follow the draw; a token drawn in the end counts if a draft has it."""
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
        return Ruling(accept, stop, reason=Reason((self.says,), inputs))


def rule_of(name: str, title: str, says: str, source: str) -> Rule:
    """`EMITTED` under the name of the verifier that found the law."""
    return replace(EMITTED, name=name, title=title, says=f"{says} {EMITTED.says}", source=source)
