"""Hydra: Medusa's heads, each of which also reads the tokens drafted before the one it predicts.

The newest committed token x(t + 1) was predicted from the target's last hidden state f(t), and the target has not
processed it yet. Head k predicts x(t + 1 + k). It reads f(t), the embedding e(t + 1) of x(t + 1), and the embeddings of
the path drafted after it:

    head 1      f(t), e(t + 1)                          →  distribution of x(t + 2)
    head k      f(t), e(t + 1), …, e(t + k)             →  distribution of x(t + 1 + k)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.core.transfer import to_device
from workbench.decoders.draft_verify.parts import DistributionDrafter
from workbench.decoders.draft_verify.tree_building import FullDistributions, NodeDistributions, PartialTree
from workbench.engine.request import Sequence
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.methods.common.attention_net import Norm
from workbench.methods.common.trained_net import LevelNet, head_of, load_fitting
from workbench.models.loading import Models


class SequentialHeads(LevelNet):
    """Base class of heads that read the drafted tokens before the one they predict: Hydra and its variants.

    Args:
        width: the target's hidden size D.
        blocks: number K of heads.
        cond: width C of a projected embedding.
        context: maximum sequence length, in positions; for variants that use positions.
    """

    def __init__(self, width: int, blocks: int = 4, cond: int = 64, context: int = 1024) -> None:
        super().__init__()
        self.width, self.blocks, self.cond = width, blocks, cond
        self.norm = Norm(width, eps=1e-6)
        self.narrow = nn.Linear(width, cond, bias=False)

    def project(self, embeds: Float[Tensor, "*b D"]) -> Float[Tensor, "*b C"]:
        """Normalise token embeddings and project them to width C, for input to the heads."""
        return self.narrow(self.norm(embeds))

    def head_inputs(self, features: Float[Tensor, "B n D"]) -> Float[Tensor, "B n R"]:
        """Return the input of Hydra's heads at each position of whole texts, for training.

        Args:
            features: the target's last hidden states.
        """
        return features

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild the Hydra heads."""
        return {"width": self.width, "blocks": self.blocks, "cond": self.cond}


class HydraHeads(SequentialHeads):
    """K heads on the target's last hidden state and on the tokens after it. All share the target's LM head.

    Head k computes f + A(k) u + SiLU(W(k) f + B(k) u + b(k)) as input of the LM head. f is the hidden state, and u the
    k embeddings, each normalised and projected to width `cond` by one matrix that all heads share. Without A and B the
    head is Medusa's. Each head is initialised as the identity.

    Args:
        width: the target's hidden size D.
        blocks: number K of heads.
        cond: width C of a projected embedding.
        context: unused; all nets have this argument.

    Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, §3.
    """

    kind: ClassVar[str] = "hydra"
    no_random_init: ClassVar[tuple[str, ...]] = ("read.", "beside.", "direct.")

    def __init__(self, width: int, blocks: int = 4, cond: int = 64, context: int = 1024) -> None:
        super().__init__(width, blocks, cond)
        self.read = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.beside = nn.ModuleList(nn.Linear((k + 1) * cond, width, bias=False) for k in range(blocks))
        self.direct = nn.ModuleList(nn.Linear((k + 1) * cond, width, bias=False) for k in range(blocks))
        for layer in [*self.read, *self.beside, *self.direct]:
            for weight in layer.parameters():
                nn.init.zeros_(weight)

    def forward(
        self, features: Float[Tensor, "*b D"], token_embeds: Float[Tensor, "*b kC"], block: int
    ) -> Float[Tensor, "*b D"]:
        """Return the output of one Hydra head, which is the input of the LM head.

        Args:
            features: the target's last hidden states.
            token_embeds: projected embeddings of k = block + 1 tokens, the newest committed one first.
            block: index of the head, from 0.
        """
        inner = self.read[block](features) + self.beside[block](token_embeds)
        return features + self.direct[block](token_embeds) + nn.functional.silu(inner)


@dataclass(slots=True)
class HydraState:
    """Drafting state of Hydra: the heads, and the target's LM head over the draft vocabulary."""

    net: SequentialHeads
    head: SharedHead


@dataclass(frozen=True, slots=True)
class HydraDistributions(NodeDistributions):
    """Next-token distributions after each of w nodes, from one head's outputs and the target's LM head.

    Attributes:
        state: drafting state.
        features: the head's output after each node, which is the input of the LM head.
        sequence: sequence that is drafted for.
    """

    state: HydraState
    features: Float[Tensor, "w D"]
    sequence: Sequence

    def full_probs(self) -> Float[Tensor, "w V"]:
        """Return the distributions after the nodes, over the target's whole vocabulary. Penalties are not applied."""
        return FullDistributions.of(self.state.head.scatter_logits(self._logits()), self.sequence.sampling).p

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Return log-probabilities and ids of the k most likely draft tokens after each node, without temperature."""
        return self.state.head.top_tokens(self._logits(), k)

    def _logits(self) -> Float[Tensor, "w K"]:
        """Return logits over the K tokens of the draft vocabulary, and add the time to the heads' measured time."""
        models = self.sequence.models
        start = models.target.clock.mark()
        logits = self.state.head(self.features)
        models.meter.add(start, models.target.clock.mark(), is_part=True)
        return logits


class HydraGrowth(PartialTree):
    """Draft tree in which the head of each level reads the tokens on the path to each node.

    Args:
        sequence: the sequence.
        hidden: input of the heads: the target's newest hidden state, or a state computed from it.
    """

    def __init__(self, sequence: Sequence, hidden: Float[Tensor, " R"]) -> None:
        self.state: HydraState = sequence.state.drafter
        super().__init__(sequence, self.state.net.kind, hidden.device)
        self.rank_probs = self.state.net.accuracy
        self._hidden = hidden.unsqueeze(0)
        # projected embeddings of the paths to the nodes that were expanded last
        self._projected = self._of(to_device(sequence.committed[-1:], hidden.device))
        self.root = self._distributions(0)

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> HydraDistributions:
        parent_paths = self._projected.expand(tokens.shape[0], -1) if below is None else self._projected[below]
        self._projected = torch.cat([parent_paths, self._of(tokens)], 1)
        return self._distributions(len(self.tokens))

    def _of(self, tokens: Int[Tensor, " w"]) -> Float[Tensor, "w C"]:
        return self.state.net.project(self.sequence.models.target.embed(tokens))

    def _distributions(self, block: int) -> HydraDistributions:
        clock = self.sequence.models.target.clock
        start = clock.mark()
        features = self.state.net(self._hidden.expand(len(self._projected), -1), self._projected, block)
        self.sequence.models.meter.add(start, clock.mark())
        return HydraDistributions(self.state, features, self.sequence)


@dataclass(frozen=True)
class Hydra(DistributionDrafter):
    """Draft with one head per level. Each head reads the target's last hidden state and the tokens of the node's path.

    A head's predictions therefore differ from node to node. In Medusa all nodes of a level have the same predictions.

    Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (HydraHeads.kind, "trees")
    reads_target: ClassVar[bool] = True

    def init_state(self, sequence: Sequence, models: Models) -> HydraState:
        """Return a drafting state with the trained heads, which are loaded once per target.

        Raises:
            ModelError: the heads cannot be read, or were trained for another target.
        """
        advice = "Train heads for this target: workbench train hydra --target …"
        net = load_fitting(HydraHeads, models, "Hydra heads", advice)
        return HydraState(net, head_of(HydraHeads, models))

    def max_levels(self, sequence: Sequence) -> int:
        """Return the maximum number of draft levels: one per head."""
        return sequence.state.drafter.net.blocks

    def begin(self, sequence: Sequence) -> PartialTree | None:
        """Return an empty draft tree; None after a prompt of one token, when the target has no hidden state yet."""
        hidden = sequence.cache_slot.last_hidden
        return None if hidden is None else HydraGrowth(sequence, hidden)
