"""Parallel prompt decoding: trained embeddings behind the draft make the target itself guess the tokens after next.

A prompt token is an input embedding and no word. Behind a node of the draft it stands where the unknown tokens behind
that node will, and what the target says there is a guess at the token after those. So one pass of the target verifies
a draft, and makes the next one's guesses:

    places      t        t + 1    t + 2    t + 3    …
    verified    x(t)     draft
    behind x(t)          s(1)     s(2)     s(3)     s(j) guesses x(t + 1 + j); x(t + 1) the pass itself decides
    behind the draft              s(1)     s(2)     …

Only the guesses behind the node that the walk ends at are used; each other node's are computed in vain. How many nodes
are drafted and how many prompt tokens stand behind each is what `DynamicSparse` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.core.probes import Probes
from workbench.core.tree import DraftTree, ancestors
from workbench.engine.block import ROOM
from workbench.engine.models import Models
from workbench.engine.parts import LawDrafter
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.engine.told import Outcome
from workbench.methods.drafters.medusa import RANKS, HeadsGrowth
from workbench.methods.drafters.trained import TrainedNet, load_fitting
from workbench.methods.growers.dynamic_sparse import planned_behind

Attached = tuple[int, ...]
"""How many prompt tokens stand behind the root and behind each node of a draft."""


class PromptTokens(TrainedNet):
    """m prompt tokens, each of v input embeddings; nothing else is trained.

    Of several embeddings each has a pass of its own beside the others, and what is said at them is averaged.

    Args:
        width: the target's hidden size D.
        prompts: m.
        ensemble: v.
        context: longest sequence, in positions; of no account here.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §3.
    """

    kind: ClassVar[str] = "ppd"

    def __init__(self, width: int, prompts: int = 3, ensemble: int = 1, context: int = 1024) -> None:
        super().__init__()
        self.width, self.prompts, self.ensemble = width, prompts, ensemble
        self.accuracy: tuple[tuple[float, ...], ...] = ()
        """How often the r-th best token of each prompt token was right on held-out text, [m, 10]."""
        self.embeds = nn.Parameter(torch.zeros(prompts, ensemble, width))

    def said(self, logits: Float[Tensor, "*b jv V"]) -> Float[Tensor, "*b j V"]:
        """Logits of prompt tokens, of what the target said at each of their embeddings, in `laid_out`'s order."""
        *batch, _, vocabulary = logits.shape
        return logits.reshape(*batch, -1, self.ensemble, vocabulary).mean(-2)

    @property
    def sizes(self) -> dict[str, Any]:
        """What the constructor needs to build it again."""
        return {"width": self.width, "prompts": self.prompts, "ensemble": self.ensemble}

    def config(self) -> dict[str, Any]:
        return super().config() | {"head_accuracy": self.accuracy}

    @classmethod
    def of(cls, config: Mapping[str, Any], context: int = 1024) -> PromptTokens:
        net = cls(**config["net"], context=context)
        net.accuracy = tuple(map(tuple, config["head_accuracy"]))
        return net


@dataclass(slots=True)
class PromptState:
    """What drafting needs of the prompt tokens and of one text.

    Attributes:
        net: the prompt tokens.
        shown: of each embedding the token whose embedding is most like it: what a trace shows, and nothing reads.
        guesses: logits of s ≤ m prompt tokens behind the place where the last round ended, [s, V].
        end: tokens of the text for which they are.
        attached: of the pass that goes on.
        probing: its probes.
    """

    net: PromptTokens
    shown: Int[Tensor, " jv"]
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


@dataclass(frozen=True)
class PPD(LawDrafter):
    """Guesses that the target made at prompt tokens, in the pass that verified the draft before.

    A text's first pass has nothing to draft: the root and m prompt tokens go through it. So has a pass behind a place
    that no prompt token stood at.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §3 and Figure 2.
    """

    needs: ClassVar[tuple[str, ...]] = (PromptTokens.kind, "trees")
    reads_target: ClassVar[bool] = True

    def prime(self, row: Row, models: Models) -> PromptState:
        """The prompt tokens, loaded once for the target.

        Raises:
            ModelError: they cannot be read, or are none for this target.
        """
        again = "Train prompt tokens for this target: workbench train ppd --target …"
        net = load_fitting(PromptTokens, models, "prompt tokens", again)
        unit = nn.functional.normalize
        with torch.inference_mode():
            alike = unit(net.embeds.flatten(0, 1), dim=-1) @ unit(models.target.embed.get_parameter("weight"), dim=-1).T
            return PromptState(net, alike.argmax(-1))

    def reach(self, row: Row) -> int:
        """One level a prompt token; without any the one of a draft that is always empty."""
        return max(1, row.state.net.prompts)

    def begin(self, row: Row) -> HeadsGrowth | None:
        """The tree over the guesses; None where there are none."""
        guesses = row.state.known(row)
        if guesses is None:
            return None
        best = guesses.float().log_softmax(-1).topk(min(RANKS, guesses.shape[1]), dim=-1)
        return HeadsGrowth(row, guesses, best.values, best.indices)

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """A tree of as many levels as prompt tokens stood where the last round ended."""
        guesses = row.state.known(row)
        row.signals["guessed levels"] = 0 if guesses is None else len(guesses)
        return super().propose_row(row, plan if guesses is None else replace(plan, depth=min(plan.depth, len(guesses))))

    def probes(self, row: Row, tree: DraftTree) -> Probes | None:
        """Prompt tokens behind the places of the draft; none in rounds that are planned without one."""
        state: PromptState = row.state
        useful = min(state.net.prompts, row.remaining - 2) if row.plan.depth else 0
        state.probing, state.attached = None, attached(row, tree, useful)
        row.signals["prompt tokens"] = sum(state.attached)
        if not any(state.attached):
            return None
        at = laid_out(state.attached, state.net.ensemble, tree.tokens.device)
        above = ancestors(tree.parents, tree.depth)
        sees = torch.cat([above.new_zeros(1, len(tree)), above])[at.place]
        places = sees.sum(1) + at.step + 1
        parents = torch.where(at.before < 0, at.place - 1, at.before + len(tree))
        state.probing = Probes(
            state.shown[at.own], parents, places, torch.cat([sees, at.sees], 1), tree.depth + state.net.prompts,
            state.net.kind, state.net.embeds.flatten(0, 1)[at.own],
        )  # fmt: skip
        return state.probing

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Keep what was said at the prompt tokens behind the last node that was kept."""
        state: PromptState = row.state
        state.guesses, probed = None, outcome.probed
        if probed is None or probed.probes is not state.probing:
            return  # there was no room for them
        last = outcome.verdict.path[-1] + 1 if outcome.verdict.path else 0
        begin, n = sum(state.attached[:last]), state.attached[last]
        if n:
            v = state.net.ensemble
            state.guesses, state.end = state.net.said(probed.logits[begin * v : (begin + n) * v]), len(row.committed)


def attached(row: Row, tree: DraftTree, useful: int) -> Attached:
    """How many prompt tokens stand behind the root and each node: as the grower has planned, else as many as there are.

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
    """Prompt tokens' embeddings in a pass, place by place, step by step.

    Attributes:
        place: behind which place each stands: 0 the root, i + 1 node i.
        step: which prompt token it is, from 0.
        own: its row among all embeddings of the net.
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
    """Where so many prompt tokens of `ensemble` embeddings each stand. Shared, never written to, by training too."""
    with torch.inference_mode(False):  # who asks first may be a round, and nothing is learnt through its tensors
        cells = [(place, step, i) for place, n in enumerate(attached) for step in range(n) for i in range(ensemble)]
        place, step, part = torch.tensor(cells, device=device).unbind(1)
        number = torch.arange(len(cells), device=device)
        before = torch.where(step > 0, number - ensemble, -1)
        same = (place[:, None] == place) & (part[:, None] == part)
        return Layout(place, step, step * ensemble + part, before, same & (step <= step[:, None]))
