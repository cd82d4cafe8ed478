"""Falcon: draft blocks whose positions attend to each other, with one forward per few tokens.

EAGLE's layer predicts one position ahead. Here each position predicts k ahead, so the last k of a text predict the next
k:

    block       …   s            s + 1          …   s + k − 1          the newest positions of the text, or of the draft
    input           f(s), e(s+1)                    f(s + k − 1), e(s + k)
    attends to      everything up to the end of its own block: s + k − 1
    predicts        f̂(s + k)     f̂(s + k + 1)   …   f̂(s + 2k − 1)      →  distributions of x(s + k + 1), …, x(s + 2k)

The k predictions and the tokens drawn from them make the next block, and so on: a draft of d levels costs ⌈d / k⌉
forwards. In return, a block's later tokens do not depend on its earlier ones: the distributions of a block are fixed
before any of its tokens is drawn. The tokens are drawn from exactly these, so verification is exact.

Within a block an LSTM carries information from earlier positions to later ones.

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.engine.request import Row
from workbench.kernels.device_clock import Mark
from workbench.methods.drafters.attention_net import Entries
from workbench.methods.drafters.feature import FeatureDistributions, FeatureDrafter, FeatureGrowth, FeatureState
from workbench.methods.drafters.feature_net import NORMS, FeatureNet

LONGEST = 4
"""Largest number of positions in a block."""
MEMORY = (("enter_1", "carry_1"), ("enter_2", "carry_2"))
"""Names of the LSTM's weights: gates from the input, and gates from the previous state."""


class FalconNet(FeatureNet):
    """EAGLE's layer over blocks of positions that attend to each other, beside an LSTM over each block.

    Blocks are counted from the end of the positions read at once, so the first may be shorter. The LSTM has no biases:
    zero inputs leave its state at zero, and it reads nothing before its block.

    Args:
        width: the target's hidden size D.
        heads: attention heads.
        ffn: width of the gated MLP.
        context: longest sequence, in positions.
        block: k, positions of a block, which predict as many positions ahead; with 1 it is EAGLE's layer and an LSTM
            without memory.
        cond: C, size of the LSTM's state; 0: a third of D.
        norms: see `FeatureNet`.
        head_size: see `FeatureNet`.
        options: further arguments of `AttentionNet`.

    Raises:
        ValueError: a block has no position, or more than `LONGEST`.

    Source: Gao et al. 2024, Falcon, arXiv:2412.12639, §3 (the LSTM, the relaxed causal mask). EAGLE's projection
    beside the LSTM is ours.
    """

    kind: ClassVar[str] = "falcon"
    layers: ClassVar[tuple[str, ...]] = (*MEMORY[0], *MEMORY[1], "recall", *FeatureNet.layers)
    begins: ClassVar[tuple[str, ...]] = ("enter_", "carry_", "recall")
    accuracy: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """Empty: the accuracy of each rank at each level was not measured."""

    def __init__(
        self, width: int, heads: int, ffn: int, context: int = 1024, block: int = 2, cond: int = 0,
        norms: Sequence[str] = NORMS, head_size: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(width, heads, ffn, context, norms, head_size=head_size, **options)
        if type(block) is not int or not 1 <= block <= LONGEST:
            raise ValueError(f"block={block!r:.20}: give 1 to {LONGEST} positions")
        self.block, self.cond = block, cond or max(1, width // 3)
        for (entering, going_on), read in zip(MEMORY, (2 * width, self.cond), strict=True):
            setattr(self, entering, nn.Linear(read, 4 * self.cond, bias=False))
            setattr(self, going_on, nn.Linear(self.cond, 4 * self.cond, bias=False))
        self.recall = nn.Linear(self.cond, width, bias=False)
        nn.init.zeros_(self.recall.weight)  # initialised as EAGLE's layer: the LSTM adds nothing

    # -- inputs ----------------------------------------------------------------------------------------------------

    def pairs(self, following: Float[Tensor, "*b D"], features: Float[Tensor, "*b D"]) -> Float[Tensor, "*b E"]:
        """Concatenate embeddings and features, E = 2 D: they are fused later, when their block is known."""
        return torch.cat([self.norm_embed(following), self.norm_feature(features)], -1)

    def reads(self, x: Float[Tensor, "B n E"]) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n R"]]:
        """Return each fused pair plus the LSTM's output for its block so far."""
        stream = self._times("recall", self.remembered(x), self._times("fuse", x))
        return stream, self.before(stream)

    def remembered(self, x: Float[Tensor, "B n E"]) -> Float[Tensor, "B n C"]:
        """Return the LSTM's state at each pair, after the pairs of its block up to it.

        Not torch's LSTM, which takes twice as long for so few positions. Gates are in torch's order.
        """
        n = x.shape[1]
        read = nn.functional.pad(x, (0, 0, -n % self.block, 0)).reshape(-1, self.block, x.shape[2])
        for entering, going_on in MEMORY:
            told, states, cell = self._times(entering, read), list[Tensor](), None
            for place in range(self.block):
                gates = self._times(going_on, states[-1], told[:, place]) if states else told[:, 0]
                write, keep, new, show = gates.chunk(4, -1)
                written = write.sigmoid() * new.tanh()
                cell = written if cell is None else keep.sigmoid() * cell + written
                states.append(show.sigmoid() * cell.tanh())
            read = torch.stack(states, 1)
        return read.reshape(x.shape[0], -1, self.cond)[:, -n:]

    # -- the layer ------------------------------------------------------------------------------------------------

    def sees(self, n: int, device: torch.device) -> Bool[Tensor, "n n"]:
        """Return which of n pairs read at once each attends to: all up to the end of its own block."""
        places = torch.arange(n, device=device)
        end = n - 1 - (n - 1 - places) // self.block * self.block
        return places <= end.unsqueeze(1)

    def forward(
        self,
        x: Float[Tensor, "B n E"],
        places: Int[Tensor, " n"],
        mask: Bool[Tensor, "*b n used"] | None = None,
        entries: Entries | None = None,
    ) -> Float[Tensor, "B n D"]:
        """Return the layer's state at each pair: its prediction of the feature `block` positions ahead.

        Args:
            x: pairs, in blocks that are counted from the last.
            places: their positions in the text.
            mask: entries that each pair attends to; None: all earlier ones, and of the new ones those by `sees`.
            entries: keys and values of earlier positions; the new ones are appended.
        """
        if mask is None:
            own = self.sees(x.shape[1], x.device)
            mask = own if entries is None else torch.cat([own.new_ones(len(own), entries.used), own], 1)
        return super().forward(x, places, mask, entries)

    def attention(self, x: Float[Tensor, "B n E"], places: Int[Tensor, " n"]) -> Float[Tensor, "B n n"]:
        """Return each pair's attention weights, the mean over heads."""
        queries, keys, _ = self.turned(self.reads(x)[1], places)
        scores = (queries @ keys.mT) * self.head_size**-0.5
        return scores.masked_fill(~self.sees(x.shape[1], x.device), -torch.inf).softmax(-1).mean(1)

    @property
    def sizes(self) -> dict[str, Any]:
        """Constructor arguments that rebuild this net."""
        return super().sizes | {"block": self.block, "cond": self.cond}


@dataclass(slots=True)
class FalconState(FeatureState):
    """State of the drafter for one text; `guess` has one feature per position of the newest block, [k, D].

    Attributes:
        recent: the newest k − 1 stable pairs, [1, k − 1, E]; fewer if the text has fewer.
    """

    recent: Tensor | None = None

    def stay(
        self, x: Float[Tensor, "1 n E"], places: Int[Tensor, " n"], since: Mark | None = None
    ) -> Float[Tensor, "k D"]:
        """Read true pairs, whose entries are stable; return the last block's predictions (fewer for a short text)."""
        assert isinstance(self.net, FalconNet)
        states = self._run(x, places, since=since)[0, -self.net.block :]
        self.entries.settle()
        self.recent = x[:, max(0, x.shape[1] - self.net.block + 1) :]
        return states

    def newest(self) -> Float[Tensor, "k D"] | None:
        """Read all accepted pairs as stable in one call, and return the newest block's predictions.

        The newest block ends at the newest pair, wherever that is. So if the accepted pairs are not a whole number of
        blocks, the pairs before them that fill the first block are read again, in their new block. None as long as the
        text is shorter than a block.
        """
        assert isinstance(self.net, FalconNet)
        since, k = self.models.target.clock.mark(), self.net.block
        if (pairs := self.fresh()) is not None:
            n = pairs.shape[1]
            if self.recent is not None and (again := min(-n % k, self.recent.shape[1])):
                pairs = torch.cat([self.recent[:, -again:], pairs], 1)
                self.entries.keep(self.entries.stable - again)
            first = self.place + n - pairs.shape[1]
            self.guess = self.stay(pairs, torch.arange(first, self.place + n, device=pairs.device), since)
            self.place += n
        return self.guess if self.guess is not None and len(self.guess) == k else None


class BlockGrowth(FeatureGrowth):
    """A tree built in blocks of k levels after the newest pair.

    The block that contains a node predicts its children. At the last level of a block, all tokens of the path in it are
    known. They enter the layer as the next block, each with the predicted feature that it was drawn from. At other
    levels nothing has to be computed.

    Args:
        row: the sequence.
        source: name of the drafter in the trace.
        guess: predictions of the newest block, [k, D].
    """

    def __init__(self, row: Row, source: str, guess: Float[Tensor, "k D"]) -> None:
        super().__init__(row, source, guess[:1])
        # per expanded node: its block's predictions, its path's tokens in it, and the speculative entries it attends to
        self._blocks: Float[Tensor, "w k D"] = guess.unsqueeze(0)
        self._path: Int[Tensor, "w j"] = torch.zeros(1, 0, dtype=torch.long, device=guess.device)
        self._behind: Bool[Tensor, "w s"] = torch.zeros(1, 0, dtype=torch.bool, device=guess.device)

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> FeatureDistributions:
        above = torch.zeros_like(tokens) if below is None else below
        blocks, behind = self._blocks[above], self._behind[above]
        path = torch.cat([self._path[above], tokens.unsqueeze(1)], 1)
        w, k = blocks.shape[:2]
        if path.shape[1] == k:
            own = torch.eye(w, dtype=torch.bool, device=tokens.device).repeat_interleave(k, 1)
            behind = torch.cat([behind, own], 1)  # [w, s + w k]
            places = torch.arange(len(self.tokens) - k + 1, len(self.tokens) + 1, device=tokens.device).repeat(w)
            sees = behind.repeat_interleave(k, 0)
            states = self.state.speculate(blocks.flatten(0, 1), path.flatten(), places, sees)
            blocks, path = states.reshape(w, k, -1), path[:, :0]
        self._blocks, self._path, self._behind = blocks, path, behind
        self._states = blocks[:, path.shape[1]]
        return self._distributions()


@dataclass(frozen=True)
class Falcon(FeatureDrafter):
    """Draft blocks of levels, one forward each, in a tree by the plan's builder, or EAGLE-2's.

    Source: Gao et al. 2024, Falcon, arXiv:2412.12639, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (FalconNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = FalconNet
    state: ClassVar[type[FeatureState]] = FalconState
    recipe: ClassVar[str] = "chat-heads"

    def begin(self, row: Row) -> BlockGrowth | None:
        """Read the accepted pairs; a text shorter than a block gives None."""
        guess = row.state.drafter.newest()
        return None if guess is None else BlockGrowth(row, self.net.kind, guess)
