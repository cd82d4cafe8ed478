"""Probe tokens: what goes into the target's pass behind a draft to be computed, and is never accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.tree import DraftTree, ancestors


@dataclass(frozen=True, slots=True)
class Entering:
    """Where probes come into a pass that are made of what the target thinks of the draft half way up.

    Attributes:
        layer: how many of the target's first layers have run by then, over all but these probes; at least 1.
        made: from the residual streams behind those layers, row 0 at the last committed token and row i + 1 at node i,
            to the streams of the probes.
    """

    layer: int
    made: Callable[[Float[Tensor, "N_plus_1 D"]], Float[Tensor, "P D"]]


@dataclass(frozen=True, slots=True)
class Probes:
    """Tokens behind the nodes of a draft, each with a position and a view of its own.

    All of them see what is committed, the last token of it included. No node of the draft sees a probe, so that the
    target says of the draft what it would have said without them.

    Attributes:
        tokens: int64 [P] token ids, on the target's device.
        parents: int64 [P], behind which place a probe stands: −1 the last committed token, i < N node i of the draft,
            N + j an earlier probe j. For whoever draws it; `sees` decides what it reads.
        places: int64 [P], distance behind the last committed token, 1 for its first successor.
        sees: bool [P, N + P], the nodes and probes that each of them reads, itself among them, no later probe.
        farthest: the largest of `places` (an upper bound, known without asking the device).
        source: who asked for them, for display.
        states: [P, D], input embeddings that are read in the tokens' place, which then are for display alone; None:
            the tokens are read.
        entering: where they come in above the first layer; the tokens are for display then, too.
    """

    tokens: Int[Tensor, " P"]
    parents: Int[Tensor, " P"]
    places: Int[Tensor, " P"]
    sees: Bool[Tensor, "P N_plus_P"]
    farthest: int
    source: str = ""
    states: Float[Tensor, "P D"] | None = None
    entering: Entering | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @classmethod
    def chain(cls, tree: DraftTree, tokens: Int[Tensor, " P"], node: int = -1, source: str = "") -> Probes:
        """Probes one behind the other, the first behind a node of the tree, as text that goes on from there.

        Args:
            tree: the draft, of N nodes.
            tokens: P ids on the tree's device.
            node: index of the node; −1: the last committed token.
            source: see the class.
        """
        n, p = len(tree), tokens.shape[0]
        behind = torch.arange(n, n + p, device=tokens.device) - 1
        parents = torch.cat([behind.new_full((min(p, 1),), node), behind[1:]])
        whole = ancestors(torch.cat([tree.parents, parents]), n + p)[n:]
        return cls(tokens, parents, whole.sum(1), whole, tree.depth + p, source)


@dataclass(frozen=True, slots=True)
class Probed:
    """What the target said of probes, in their order.

    Attributes:
        probes: as they were asked for.
        logits: [P, V], as the model gave them: no penalty, no processor, no temperature.
        hidden: [P, D], what its LM head read.
    """

    probes: Probes
    logits: Float[Tensor, "P V"]
    hidden: Float[Tensor, "P D"]


def joined(tree: DraftTree, several: list[Probes]) -> Probes:
    """Probes of several askers in one block, none of which sees another's; as tokens, without what is read for them.

    Args:
        tree: the draft, of N nodes.
        several: at least one.
    """
    if len(several) == 1:
        return several[0]  # its embeddings among them
    n, total = len(tree), sum(map(len, several))
    sees = several[0].sees.new_zeros(total, n + total)
    parents, at = list[Tensor](), 0
    for probes in several:
        sees[at : at + len(probes), :n] = probes.sees[:, :n]
        sees[at : at + len(probes), n + at : n + at + len(probes)] = probes.sees[:, n:]
        parents.append(torch.where(probes.parents < n, probes.parents, probes.parents + at))
        at += len(probes)
    return Probes(
        torch.cat([probes.tokens for probes in several]),
        torch.cat(parents),
        torch.cat([probes.places for probes in several]),
        sees,
        max(probes.farthest for probes in several),
    )
