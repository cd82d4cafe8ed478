"""Falcon: draft blocks whose positions attend to each other, with one forward pass per block of tokens.

EAGLE's layer predicts one position ahead. Falcon's predicts k positions ahead, so the last k positions of a text
predict the next k. f is a feature of the target, f̂ a predicted one, e an embedding, x a token:

    block       …   s            s + 1          …   s + k − 1          the last positions of the text or draft
    input           f(s), e(s+1)                    f(s + k − 1), e(s + k)
    attends to      all positions up to the end of its own block: s + k − 1
    predicts        f̂(s + k)     f̂(s + k + 1)   …   f̂(s + 2k − 1)      →  distributions of x(s + k + 1), …, x(s + 2k)

The k predictions and the tokens drawn from them form the next block, so a draft of d levels costs ⌈d / k⌉ forward
passes. In return, a block's later tokens do not depend on its earlier ones: the distributions of a block are computed
before any of its tokens is drawn. The tokens are drawn from exactly these distributions, so verification is exact.

Within a block an LSTM carries information from earlier positions to later ones.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.engine.request import Sequence
from workbench.kernels.device_clock import Mark
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.common.feature import FeatureDistributions, FeatureDrafter, FeatureGrowth, FeatureState
from workbench.methods.common.feature_net import NORMS, FeatureNet

LONGEST = 4
"""Maximum number of positions in a drafted block."""
MEMORY = (("enter_1", "carry_1"), ("enter_2", "carry_2"))
"""Names of the weights of Falcon's two-layer LSTM: for each layer, (gates from the input, gates from the previous
state)."""


class FalconNet(FeatureNet):
    """EAGLE's layer over blocks of positions that attend to each other, with an LSTM over each block.

    Blocks are aligned to the end of the input, so the first block may be shorter. The LSTM's state is reset at the
    start of each block. The LSTM has no biases, so the zeros with which a shorter block is padded leave the state at
    zero.

    Args:
        width: the target's hidden size D.
        heads: number of attention heads.
        ffn: inner width of the gated MLP.
        context: maximum sequence length, in positions.
        block: number k of positions per block, and of positions predicted ahead. With 1 the net is EAGLE's layer and an
            LSTM over single positions.
        cond: size C of the LSTM's state; 0: a third of D.
        norms: names of the norms of the layer, from `NORMS`.
        head_size: size of an attention head; 0: the width divided by the number of heads.
        options: further arguments of `AttentionNet`.

    Raises:
        ValueError: a block has no position, or more than `LONGEST` positions.

    Source: Gao et al. 2024, Falcon, arXiv:2412.12639, §3 (the LSTM, the relaxed causal mask). EAGLE's projection, which
    is parallel to the LSTM here, is not in the paper.
    """

    kind: ClassVar[str] = "falcon"
    packed_layers: ClassVar[tuple[str, ...]] = (*MEMORY[0], *MEMORY[1], "recall", *FeatureNet.packed_layers)
    no_random_init: ClassVar[tuple[str, ...]] = ("enter_", "carry_", "recall")
    accuracy: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """Accuracy of the r-th most likely token at each draft level; empty, because it is not measured for this net."""

    def __init__(
        self, width: int, heads: int, ffn: int, context: int = 1024, block: int = 2, cond: int = 0,
        norms: abc.Sequence[str] = NORMS, head_size: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(width, heads, ffn, context, norms, head_size=head_size, **options)
        if type(block) is not int or not 1 <= block <= LONGEST:
            raise ValueError(f"block={block!r:.20} is out of range: give 1 to {LONGEST} positions")
        self.block, self.cond = block, cond or max(1, width // 3)
        for (input_name, state_name), input_width in zip(MEMORY, (2 * width, self.cond), strict=True):
            setattr(self, input_name, nn.Linear(input_width, 4 * self.cond, bias=False))
            setattr(self, state_name, nn.Linear(self.cond, 4 * self.cond, bias=False))
        self.recall = nn.Linear(self.cond, width, bias=False)
        nn.init.zeros_(self.recall.weight)  # initialised as EAGLE's layer: the LSTM adds nothing

    # -- inputs ----------------------------------------------------------------------------------------------------

    def make_pairs(self, next_embeds: Float[Tensor, "*b D"], features: Float[Tensor, "*b D"]) -> Float[Tensor, "*b E"]:
        """Return the layer's inputs: normalised embeddings and features, concatenated, E = 2 D.

        `attention_inputs` fuses embedding and feature later, when blocks are formed.
        """
        return torch.cat([self.norm_embed(next_embeds), self.norm_feature(features)], -1)

    def attention_inputs(self, x: Float[Tensor, "B n E"]) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n R"]]:
        """Return the residual stream that enters Falcon's decoder layer, and its normalised form.

        The residual stream is the fused pairs plus the output of the LSTM over each block.

        Args:
            x: pairs, in blocks aligned to the last pair.
        """
        stream = self._times("recall", self.lstm_states(x), self._times("fuse", x))
        return stream, self.before(stream)

    def lstm_states(self, x: Float[Tensor, "B n E"]) -> Float[Tensor, "B n C"]:
        """Return the LSTM's state at each pair of feature and token. It depends on the earlier pairs of the same block.

        torch's LSTM is not used, because it takes twice as long for so few positions. The gates have the order that
        torch's LSTM uses.

        Args:
            x: pairs, in blocks aligned to the last pair.
        """
        n = x.shape[1]
        inputs = nn.functional.pad(x, (0, 0, -n % self.block, 0)).reshape(-1, self.block, x.shape[2])
        for input_name, state_name in MEMORY:
            input_gates, states, cell = self._times(input_name, inputs), list[Tensor](), None
            for place in range(self.block):
                gates = self._times(state_name, states[-1], input_gates[:, place]) if states else input_gates[:, 0]
                write, forget, candidate, output = gates.chunk(4, -1)
                update = write.sigmoid() * candidate.tanh()
                cell = update if cell is None else forget.sigmoid() * cell + update
                states.append(output.sigmoid() * cell.tanh())
            inputs = torch.stack(states, 1)
        return inputs.reshape(x.shape[0], -1, self.cond)[:, -n:]

    # -- the layer ------------------------------------------------------------------------------------------------

    def block_mask(self, n: int, device: torch.device) -> Bool[Tensor, "n n"]:
        """Return the attention mask of n pairs of feature and token: each attends up to the end of its block."""
        places = torch.arange(n, device=device)
        end = n - 1 - (n - 1 - places) // self.block * self.block
        return places <= end.unsqueeze(1)

    def forward(
        self,
        x: Float[Tensor, "B n E"],
        positions: Int[Tensor, " n"],
        mask: Bool[Tensor, "*b n used"] | None = None,
        kv_cache: DraftKVCache | None = None,
    ) -> Float[Tensor, "B n D"]:
        """Return the layer's state at each pair of feature and token: the predicted feature `block` positions ahead.

        Args:
            x: pairs, in blocks aligned to the last pair.
            positions: positions of the pairs in the text.
            mask: true at the KV cache entries (columns) that each pair (row) attends to. None: all entries in
                `kv_cache`, and all new entries up to the end of the pair's own block.
            kv_cache: KV cache of earlier positions; the entries of the pairs are appended.
        """
        if mask is None:
            block_mask = self.block_mask(x.shape[1], x.device)
            mask = (
                block_mask
                if kv_cache is None
                else torch.cat([block_mask.new_ones(len(block_mask), kv_cache.n_used), block_mask], 1)
            )
        return super().forward(x, positions, mask, kv_cache)

    def attention(self, x: Float[Tensor, "B n E"], positions: Int[Tensor, " n"]) -> Float[Tensor, "B n n"]:
        """Return the attention weight from each pair of feature and token to each pair, averaged over heads."""
        queries, keys, _ = self.project_qkv(self.attention_inputs(x)[1], positions)
        scores = (queries @ keys.mT) * self.head_size**-0.5
        return scores.masked_fill(~self.block_mask(x.shape[1], x.device), -torch.inf).softmax(-1).mean(1)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild Falcon's net."""
        return super().sizes | {"block": self.block, "cond": self.cond}


@dataclass(slots=True)
class FalconState(FeatureState):
    """Drafting state of Falcon for one text. Falcon predicts k features at once, so `guess` has the shape [k, D].

    Attributes:
        recent: newest k − 1 committed pairs, [1, k − 1, E]; fewer if the text is shorter. They are read again if they
            become part of the next block.
    """

    recent: Tensor | None = None

    def run_committed(
        self, x: Float[Tensor, "1 n E"], positions: Int[Tensor, " n"], since: Mark | None = None
    ) -> Float[Tensor, "k D"]:
        """Run Falcon's layer on committed pairs of feature and token, and commit their KV cache entries.

        Args:
            x: pairs.
            positions: positions of the pairs in the text.
            since: time from which the forward pass is measured, if it began before this call.

        Returns:
            The k features that are predicted at the positions of the last block.
        """
        assert isinstance(self.net, FalconNet)
        states = self._run(x, positions, since=since)[0, -self.net.block :]
        self.kv_cache.commit()
        self.recent = x[:, max(0, x.shape[1] - self.net.block + 1) :]
        return states

    def catch_up(self) -> Float[Tensor, "k D"] | None:
        """Run the net once over all accepted pairs of feature and token, and return the k predicted features.

        The features are predicted at the newest block, which ends at the newest pair. If the number of accepted pairs
        is not a multiple of k, earlier pairs fill up the first block, and are read again as part of it. The result is
        None while the text is shorter than a block.
        """
        assert isinstance(self.net, FalconNet)
        since, k = self.models.target.clock.mark(), self.net.block
        if (pairs := self.take_new_pairs()) is not None:
            n = pairs.shape[1]
            if self.recent is not None and (n_reread := min(-n % k, self.recent.shape[1])):
                pairs = torch.cat([self.recent[:, -n_reread:], pairs], 1)
                self.kv_cache.truncate(self.kv_cache.n_stable - n_reread)
            first = self.position + n - pairs.shape[1]
            self.guess = self.run_committed(pairs, torch.arange(first, self.position + n, device=pairs.device), since)
            self.position += n
        return self.guess if self.guess is not None and len(self.guess) == k else None


class BlockGrowth(FeatureGrowth):
    """Draft tree that is built after the newest pair in blocks of k levels.

    One forward pass predicts the distributions of k successive levels, a block. At the last level of a block, all k
    tokens of a path in this block are known. They enter the layer as the next block, each paired with the predicted
    feature from which it was drawn. The other levels of a block need no forward pass.

    Args:
        sequence: the sequence.
        source: name of the drafter in the trace.
        guess: predictions of the newest block, [k, D].
    """

    def __init__(self, sequence: Sequence, source: str, guess: Float[Tensor, "k D"]) -> None:
        super().__init__(sequence, source, guess[:1])
        # for each expanded node: predictions of its block, tokens of its path in the block, mask over speculative
        # entries
        self._blocks: Float[Tensor, "w k D"] = guess.unsqueeze(0)
        self._path: Int[Tensor, "w j"] = torch.zeros(1, 0, dtype=torch.long, device=guess.device)
        self._behind: Bool[Tensor, "w s"] = torch.zeros(1, 0, dtype=torch.bool, device=guess.device)

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> FeatureDistributions:
        parents = torch.zeros_like(tokens) if below is None else below
        blocks, visible = self._blocks[parents], self._behind[parents]
        path = torch.cat([self._path[parents], tokens.unsqueeze(1)], 1)
        w, k = blocks.shape[:2]
        if path.shape[1] == k:
            own_block = torch.eye(w, dtype=torch.bool, device=tokens.device).repeat_interleave(k, 1)
            visible = torch.cat([visible, own_block], 1)  # [w, s + w k]
            places = torch.arange(len(self.tokens) - k + 1, len(self.tokens) + 1, device=tokens.device).repeat(w)
            sees = visible.repeat_interleave(k, 0)
            states = self.state.speculate(blocks.flatten(0, 1), path.flatten(), places, sees)
            blocks, path = states.reshape(w, k, -1), path[:, :0]
        self._blocks, self._path, self._behind = blocks, path, visible
        self._states = blocks[:, path.shape[1]]
        return self._distributions()


@dataclass(frozen=True)
class Falcon(FeatureDrafter):
    """Draft a tree in blocks of levels, with one forward pass per block. The default tree builder is EAGLE-2's.

    Source: Gao et al. 2024, Falcon, arXiv:2412.12639, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (FalconNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = FalconNet
    state: ClassVar[type[FeatureState]] = FalconState
    recipe: ClassVar[str] = "chat-heads"

    def begin(self, sequence: Sequence) -> BlockGrowth | None:
        """Process the new accepted pairs of feature and token, and start a tree.

        Return None for a text shorter than a block.
        """
        guess = sequence.state.drafter.catch_up()
        return None if guess is None else BlockGrowth(sequence, self.net.kind, guess)
