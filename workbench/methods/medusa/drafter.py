"""Medusa: heads on the target's last hidden state predict later tokens, and a fixed tree combines their candidates."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import DistributionDrafter
from workbench.decoders.draft_verify.tree_building import FullDistributions, NodeDistributions, PartialTree
from workbench.engine.request import Sequence
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.methods.common.trained_net import RANKS as RANKS
from workbench.methods.common.trained_net import LevelNet, head_of, load_fitting
from workbench.methods.tree_builders.template import Template
from workbench.models.checkpoints.description import Checkpoint
from workbench.models.loading import Models


class MedusaHeads(LevelNet):
    """Medusa's heads: K stacks of residual blocks on the target's last hidden state, each followed by an LM head.

    A block computes x + SiLU(W x + b). W and b are initialised as 0, so each block starts as the identity.

    Args:
        width: the target's hidden size D.
        blocks: number K of stacks (heads).
        layers: number of residual blocks per stack.
        own_rows: vocabulary size W of each stack's own LM head; 0: all stacks share the target's LM head.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.1.1.
    """

    kind = "medusa"

    def __init__(self, width: int, blocks: int = 4, layers: int = 1, own_rows: int = 0) -> None:
        super().__init__()
        self.width = width
        stacks = [nn.ModuleList(nn.Linear(width, width) for _ in range(blocks)) for _ in range(layers)]
        self.heads, self.more = stacks[0], nn.ModuleList(stacks[1:])
        for stack in stacks:
            for layer in stack:
                nn.init.zeros_(layer.get_parameter("weight"))
                nn.init.zeros_(layer.get_parameter("bias"))
        self.own = nn.Parameter(torch.zeros(blocks, own_rows, width)) if own_rows else None
        self._together: list[tuple[Tensor, Tensor]] = []

    @property
    def stacks(self) -> list[nn.ModuleList]:
        """Return the residual blocks of the K heads layer by layer: each list item contains one block per head."""
        return [self.heads, *(stack for stack in self.more if isinstance(stack, nn.ModuleList))]

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "K N D"]:
        """Return the outputs of Medusa's K heads, which are LM head inputs, for N hidden states of the target."""
        x = features.expand(len(self.heads), -1, -1)
        if not self._together:
            for stack in self.stacks:
                x = torch.stack([h + nn.functional.silu(head(h)) for h, head in zip(x, stack, strict=True)])
        for weight, bias in self._together:
            x = x + nn.functional.silu(torch.baddbmm(bias.unsqueeze(1), x, weight.mT))
        return x

    def prepare_for_drafting(self) -> MedusaHeads:
        """Prepare Medusa's heads for drafting: disable gradients, and use one product per layer for all heads."""
        super().prepare_for_drafting()
        self._together = []
        for stack in self.stacks:
            weight, bias = (torch.stack([h.get_parameter(part) for h in stack]) for part in ("weight", "bias"))
            for k, head in enumerate(stack):  # share the stacked memory, so that there is only one copy
                head.get_parameter("weight").data, head.get_parameter("bias").data = weight[k], bias[k]
            self._together.append((weight, bias))
        return self

    def config(self) -> dict[str, Any]:
        more: dict[str, Any] = {"n_layers": len(self.stacks)} if len(self.more) else {}
        more |= {} if self.own is None else {"own_rows": self.own.shape[1]}
        return {"hidden_size": self.width, "n_heads": len(self.heads), "head_accuracy": self.accuracy} | more

    @classmethod
    def of(cls, config: Mapping[str, Any], context: int = 1024) -> MedusaHeads:
        net = cls(config["hidden_size"], config["n_heads"], config.get("n_layers", 1), config.get("own_rows", 0))
        net.accuracy = tuple(map(tuple, config["head_accuracy"]))
        return net

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, context: int, layers: int) -> MedusaHeads:
        """Create Medusa heads from an external checkpoint, with the measured accuracies if the checkpoint has them.

        Args:
            checkpoint: weights and sizes of heads in another program's format.
            context: unused.
            layers: unused.
        """
        facts, weights = checkpoint.facts, checkpoint.read()
        blocks, n_layers = facts["n_heads"], facts["n_layers"]
        own_heads = [weights[f"vocabulary.{k}"] for k in range(blocks)] if "vocabulary.0" in weights else []
        net = cls(facts["hidden_size"], blocks, n_layers, len(own_heads[0]) if own_heads else 0)
        net.accuracy = tuple(map(tuple, facts.get("accuracy", ())))
        with torch.no_grad():
            for j, stack in enumerate(net.stacks):
                for k, block in enumerate(stack):
                    block.get_parameter("weight").copy_(weights[f"{k}.{j}.weight"])
                    if f"{k}.{j}.bias" in weights:
                        block.get_parameter("bias").copy_(weights[f"{k}.{j}.bias"])
            if net.own is not None:
                net.own.copy_(torch.stack(own_heads))
        return net


@dataclass(frozen=True, slots=True)
class MedusaState:
    """Drafting state of Medusa: the heads, and the target's LM head over the draft vocabulary."""

    net: MedusaHeads
    head: SharedHead

    def head_logits(self, hidden: Float[Tensor, "B D"]) -> Float[Tensor, "B K W"]:
        """Return logits of all K heads. Head k (from 1) predicts the token k + 1 positions after `hidden`.

        W is the size of the target's vocabulary, or of a draft vocabulary, which `head.token_ids` maps to target ids.
        """
        x = self.net(hidden)
        if self.net.own is not None:
            return (x @ self.net.own.mT).transpose(0, 1)
        return self.head(x.transpose(0, 1))

    def level_logits(self, hidden: Float[Tensor, "B D"], level: int) -> Float[Tensor, "B V"]:
        """Return logits of one head over the target's V tokens, −∞ outside the draft vocabulary.

        Args:
            hidden: hidden states of the target.
            level: index of the head, from 0.
        """
        x = self.net(hidden)[level]
        return (
            self.head.full_logits(x) if self.net.own is None else self.head.scatter_logits(x @ self.net.own[level].mT)
        )


class IndependentLevels(Protocol):
    """State of a drafter whose predictions at one level do not depend on the tokens of earlier levels."""

    @property
    def net(self) -> Any:
        """Return the drafter's net.

        Its attribute `accuracy` contains, for each level, the share of positions at which the r-th likeliest token was
        right.
        """

    def level_logits(self, hidden: Float[Tensor, "B *b D"], level: int) -> Float[Tensor, "B V"]:
        """Return logits of one draft level over the target's V tokens.

        Args:
            hidden: input of the level predictions, as in `HeadsGrowth`, with a batch dimension.
            level: index of the level, from 0.
        """
        ...


class HeadsGrowth(PartialTree):
    """Draft tree over independent predictions: head k gives one distribution for all nodes on level k.

    Args:
        sequence: the sequence; its drafter state is `IndependentLevels`.
        hidden: input of the state's `level_logits`.
        logq: log-probabilities of each head's most likely tokens, descending.
        tokens: ids of each head's most likely tokens.
    """

    def __init__(
        self, sequence: Sequence, hidden: Float[Tensor, "*b D"], logq: Float[Tensor, "K R"], tokens: Int[Tensor, "K R"]
    ) -> None:
        self.state: IndependentLevels = sequence.state.drafter
        super().__init__(sequence, self.state.net.kind, hidden.device)
        self.hidden, self.logq, self.guesses = hidden, logq, tokens
        self.rank_probs = self.state.net.accuracy
        self.root = HeadDistributions(self, 0, 1)

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> HeadDistributions:
        return HeadDistributions(self, len(self.tokens), tokens.shape[0])


@dataclass(frozen=True, slots=True)
class HeadDistributions(NodeDistributions):
    """Next-token distribution of one head, which is the same after each of `n` nodes.

    Attributes:
        growth: tree that contains the nodes.
        level: index of the head, from 0.
        n: number of nodes.
    """

    growth: HeadsGrowth
    level: int
    n: int

    def full_probs(self) -> Float[Tensor, "w V"]:
        """Return the head's distribution, repeated for n nodes, over the target's vocabulary.

        Penalties are not applied.
        """
        state = self.growth.state
        logits = state.level_logits(self.growth.hidden[None], self.level)
        return FullDistributions.of(logits, self.growth.sequence.sampling).p.expand(self.n, -1)

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Return log-probabilities and ids of the head's k ≤ 10 most likely tokens of the draft vocabulary.

        Temperature is not applied.
        """
        logq, tokens = self.growth.logq[self.level, :k], self.growth.guesses[self.level, :k]
        return logq.repeat(self.n, 1), tokens.repeat(self.n, 1)


@dataclass(frozen=True)
class Medusa(DistributionDrafter):
    """Draft with heads that independently read one hidden state, from the newest token that the target has processed.

    The newest committed token was predicted from this hidden state, and the target has not processed it yet, so head k
    predicts the k-th token after it. A path (i₁, i₂, …) of the static tree stands for the i₁-th best token of head 1,
    then the i₂-th best token of head 2, and so on. The tree builder `Template` fixes the paths by the heads' accuracies
    on held-out text; other tree builders combine the heads' distributions in each round.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.1.1 (heads), §2.1.2 and §2.3.3 (tree).
    """

    needs: ClassVar[tuple[str, ...]] = ("medusa", "trees")
    reads_target: ClassVar[bool] = True

    def init_state(self, sequence: Sequence, models: Models) -> MedusaState:
        """Return a drafting state with the Medusa heads, which are loaded once per target.

        Raises:
            ModelError: the heads cannot be read, or were trained for another target.
        """
        advice = "Train heads for this target: workbench train medusa --target …"
        net = load_fitting(MedusaHeads, models, "Medusa heads", advice)
        return MedusaState(net, head_of(MedusaHeads, models))

    def runs_on_device(self, sequence: Sequence) -> bool:
        """Return whether the hidden state of the last token is known: it is all that the heads read."""
        return sequence.cache_slot.last_hidden is not None

    def max_levels(self, sequence: Sequence) -> int:
        """Return the maximum number of draft levels: one per head."""
        return len(sequence.state.drafter.net.heads)

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Run the Medusa heads once for all sequences, then build a draft tree for each sequence."""
        target, meter = sequences[0].models.target, sequences[0].models.meter
        hidden = {id(sequence): sequence.cache_slot.last_hidden for sequence in sequences}
        ready = [sequence for sequence in sequences if hidden[id(sequence)] is not None]
        trees = {id(sequence): DraftTree.empty("medusa", target.device) for sequence in sequences}
        if ready:
            start = target.clock.mark()
            logits = ready[0].state.drafter.head_logits(torch.stack([h for h in hidden.values() if h is not None]))
            meter.add(start, target.clock.mark(), [id(sequence.owner) for sequence in ready])
            head = ready[0].state.drafter.head
            for b, sequence in enumerate(ready):
                grower, state = sequence.state.plan.tree_builder or Template(), hidden[id(sequence)]
                assert state is not None
                trees[id(sequence)] = grower.build(
                    HeadsGrowth(sequence, state, *head.top_tokens(logits[b], RANKS)), sequence.state.plan
                )
        return [trees[id(sequence)] for sequence in sequences]
