"""Guesses that the target itself makes in the pass that verifies the draft before.

Behind nodes of the draft stand probes, each in the place of a token that is not known yet, and what the target says
there is a guess at the token after it. So one pass verifies a draft, and makes the next one's guesses:

    places      t        t + 1    t + 2    t + 3    …
    verified    x(t)     draft
    behind x(t)          s(1)     s(2)     s(3)     s(j) guesses x(t + 1 + j); x(t + 1) the pass itself decides
    behind the draft              s(1)     s(2)     …

Only the guesses behind the node that the walk ends at are used; each other node's are computed in vain. What a probe
is made of is the subclass's affair; how many stand behind each node is decided here, or by `DynamicSparse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.probes import Probes
from workbench.core.tree import DraftTree, ancestors
from workbench.engine.draft_plan import Plan
from workbench.engine.feedback import Outcome
from workbench.engine.parts import LawDrafter
from workbench.engine.request import Row
from workbench.engine.verification_input import ROOM
from workbench.methods.drafters.medusa import RANKS, HeadsGrowth
from workbench.methods.drafters.trained import TrainedNet
from workbench.methods.growers.dynamic_sparse import planned_behind

Attached = tuple[int, ...]
"""How many probes stand behind the root and behind each node of a draft, one behind the other."""
_Net = TypeVar("_Net", bound="ProbeNet")


class ProbeNet(TrainedNet):
    """What makes probes."""

    levels: int
    """Probes behind one place, at most: so many levels can be drafted."""
    ensemble: int = 1
    """Several stand for each of them, whose guesses are averaged; each reads those of its own number alone."""
    accuracy: tuple[tuple[float, ...], ...] = ()
    """How often the r-th best token of each probe was right on held-out text, [levels, 10]."""

    def said(self, logits: Float[Tensor, "*b jv V"]) -> Float[Tensor, "*b j V"]:
        """Logits of probes, of what the target said at them, in `laid_out`'s order."""
        *batch, _, vocabulary = logits.shape
        return logits.reshape(*batch, -1, self.ensemble, vocabulary).mean(-2)

    def config(self) -> dict[str, Any]:
        return super().config() | {"head_accuracy": self.accuracy}

    @classmethod
    def of(cls: type[_Net], config: Mapping[str, Any], context: int = 1024) -> _Net:
        net = super().of(config, context)
        net.accuracy = tuple(map(tuple, config["head_accuracy"]))
        return net


@dataclass(slots=True)
class ProbeState:
    """What drafting needs of the probes and of one text.

    Attributes:
        net: what makes the probes.
        guesses: logits of s ≤ m probes behind the place where the last round ended, [s, V].
        end: tokens of the text for which they are.
        attached: of the pass that goes on.
        probing: its probes.
    """

    net: Any
    guesses: Float[Tensor, "s V"] | None = None
    end: int = 0
    attached: Attached = ()
    probing: Probes | None = None

    def known(self, row: Row) -> Float[Tensor, "s V"] | None:
        """The guesses for the text as it stands."""
        return self.guesses if self.end == len(row.committed) else None

    def whole(self, hidden: Float[Tensor, "B s V"], level: int) -> Float[Tensor, "B V"]:
        """Logits of one level, from 0: there was nothing to compute but the target's pass."""
        return hidden[:, level]


class InPass(LawDrafter):
    """Guesses that the target made at probes, in the pass that verified the draft before.

    A text's first pass has nothing to draft: the root and its probes go through it. So has a pass behind a place that
    no probe stood at. Subclasses give a `ProbeState` to each row.
    """

    reads_target: ClassVar[bool] = True
    called: ClassVar[str]
    """What its probes are, in the plural, for a round's signals."""

    def asked(self, row: Row, tree: DraftTree, at: Layout, bare: Probes) -> Probes:
        """The probes with what is read at them. `bare`: where they stand and what they see; its tokens are −1."""
        raise NotImplementedError

    def reach(self, row: Row) -> int:
        """One level a probe; without any the one of a draft that is always empty."""
        return max(1, row.state.net.levels)

    def begin(self, row: Row) -> HeadsGrowth | None:
        """The tree over the guesses; None where there are none."""
        guesses = row.state.known(row)
        if guesses is None:
            return None
        best = guesses.float().log_softmax(-1).topk(min(RANKS, guesses.shape[1]), dim=-1)
        return HeadsGrowth(row, guesses, best.values, best.indices)

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """A tree of as many levels as probes stood where the last round ended."""
        guesses = row.state.known(row)
        row.signals["guessed levels"] = 0 if guesses is None else len(guesses)
        return super().propose_row(row, plan if guesses is None else replace(plan, depth=min(plan.depth, len(guesses))))

    def probes(self, row: Row, tree: DraftTree) -> Probes | None:
        """Probes behind the places of the draft; none in rounds that are planned without one."""
        state: ProbeState = row.state
        useful = min(state.net.levels, row.remaining - 2) if row.plan.depth else 0
        state.probing, state.attached = None, attached(row, tree, useful)
        row.signals[self.called] = sum(state.attached)
        if not any(state.attached):
            return None
        at = laid_out(state.attached, state.net.ensemble, tree.tokens.device)
        above = ancestors(tree.parents, tree.depth)
        sees = torch.cat([above.new_zeros(1, len(tree)), above])[at.place]
        places = sees.sum(1) + at.step + 1
        parents = torch.where(at.before < 0, at.place - 1, at.before + len(tree))
        bare = Probes(
            torch.full_like(at.place, -1), parents, places, torch.cat([sees, at.sees], 1),
            tree.depth + state.net.levels, state.net.kind,
        )  # fmt: skip
        state.probing = self.asked(row, tree, at, bare)
        return state.probing

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Keep what was said at the probes behind the last node that was kept."""
        state: ProbeState = row.state
        state.guesses, probed = None, outcome.probed
        if probed is None or probed.probes is not state.probing:
            return  # there was no room for them
        last = outcome.verdict.path[-1] + 1 if outcome.verdict.path else 0
        begin, n = sum(state.attached[:last]), state.attached[last]
        if n:
            v = state.net.ensemble
            state.guesses, state.end = state.net.said(probed.logits[begin * v : (begin + n) * v]), len(row.committed)


def attached(row: Row, tree: DraftTree, useful: int) -> Attached:
    """How many probes stand behind the root and each node: as the grower has planned, else as many as there are.

    Args:
        row: whose round it is.
        tree: its draft.
        useful: most behind one place, none of them for a token behind the text's end.
    """
    planned = planned_behind(row, tree) if len(tree) else None
    wanted = [useful] * (1 + len(tree)) if planned is None else [min(n, useful) for n in planned]
    room = (ROOM - len(tree)) // row.state.net.ensemble
    while sum(wanted) > room:  # other growers' trees may be large
        most = max(wanted)
        if most == 1:  # the last places are the least likely ones
            wanted = [n if sum(wanted[:i]) < room else 0 for i, n in enumerate(wanted)]
            break
        wanted = [min(n, most - 1) for n in wanted]
    return tuple(wanted)


@dataclass(frozen=True, slots=True)
class Layout:
    """Probes in a pass, place by place, step by step.

    Attributes:
        place: behind which place each stands: 0 the root, i + 1 node i.
        step: how many stand before it there, of its part of the ensemble.
        own: its row among all that the net has, step by step.
        before: number of the one that it goes on from; −1: it is the first behind its place.
        sees: which of them each reads: of its place and its part of the ensemble those up to itself.
    """

    place: Int[Tensor, " P"]
    step: Int[Tensor, " P"]
    own: Int[Tensor, " P"]
    before: Int[Tensor, " P"]
    sees: Bool[Tensor, "P P"]


@lru_cache(maxsize=256)
def laid_out(attached: Attached, ensemble: int, device: torch.device) -> Layout:
    """Where so many probes, `ensemble` for each, stand. Shared, never written to, by training too."""
    with torch.inference_mode(False):  # who asks first may be a round, and nothing is learnt through its tensors
        cells = [(place, step, i) for place, n in enumerate(attached) for step in range(n) for i in range(ensemble)]
        place, step, part = torch.tensor(cells, device=device).unbind(1)
        number = torch.arange(len(cells), device=device)
        before = torch.where(step > 0, number - ensemble, -1)
        same = (place[:, None] == place) & (part[:, None] == part)
        return Layout(place, step, step * ensemble + part, before, same & (step <= step[:, None]))
