"""Hydra++: deeper heads, which also read an extra attention layer over the whole text.

The extra layer, the prefix layer, follows the target's last layer. It reads the target's last hidden states (features)
f(1) … f(t) of all processed positions. It runs once per round, over features of committed tokens only, so it never has
to be rolled back. e is a token's embedding:

    prefix      f(≤ t)  →  g(t)
    head k      g(t), e(t + 1), …, e(t + k)   →  distribution of x(t + 1 + k)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Sequence
from workbench.kernels.segment import CaptureSelection
from workbench.methods.common.attention_net import DecoderLayer, DraftKVCache, Norm
from workbench.methods.common.feature import FEATURES, read_features
from workbench.methods.common.trained_net import head_of, load_fitting
from workbench.methods.hydra.drafter import Hydra, HydraGrowth, HydraState, SequentialHeads
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH


class Prefix(DecoderLayer):
    """Decoder layer over features projected to width C, the prefix layer of Hydra++."""

    def __init__(self, width: int, cond: int, heads: int, ffn: int, context: int) -> None:
        super().__init__(cond, heads, context)
        self.add_mlp(ffn)
        self.enter = nn.Sequential(Norm(width, eps=self.eps), nn.Linear(width, cond, bias=False))

    def forward(
        self, features: Float[Tensor, "B n D"], positions: Int[Tensor, " n"], kv_cache: DraftKVCache | None = None
    ) -> Float[Tensor, "B n C"]:
        """Return the prefix layer's outputs for features at consecutive positions.

        The arguments are the same as those of `AttentionNet.attend`.
        """
        return self.after(self.apply_mlp(self.attend(self.enter(features), positions, None, kv_cache)))


class PrefixHeads(SequentialHeads):
    """Base class of heads that read the output of decoder layers over the whole text: Hydra++ and its variants."""

    @property
    def text_layers(self) -> list[DecoderLayer]:
        """Return the decoder layers that read the whole text before Hydra++'s heads; each has a KV cache."""
        raise NotImplementedError


class HydraPlusPlusHeads(PrefixHeads):
    """Heads of Hydra++: K stacks of n layers of width C, which read the prefix layer's state and the tokens after it.

    Let u be the prefix layer's state and k projected embeddings. The first layer computes R(k) u + SiLU(W(k) u + b(k)),
    and each further layer y + SiLU(V(k, j) y + b(k, j)) from the output y before it. One shared matrix projects the
    result to the width of a feature, and f(t) is added with a learned weight per dimension and head. Each head is
    initialised to return f(t).

    Args:
        width: the target's hidden size D.
        blocks: number K of stacks.
        cond: inner width C.
        deep: number n of layers per stack.
        prefix_heads: attention heads of the prefix layer.
        ffn: width of the prefix layer's MLP.
        context: maximum sequence length, in positions.

    Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, §4 (the two products of the first layer are those of the
    released code).
    """

    kind: ClassVar[str] = "hydra-plus-plus"

    def __init__(
        self, width: int, blocks: int = 4, cond: int = 64, deep: int = 4, prefix_heads: int = 4, ffn: int = 192,
        context: int = 1024,
    ) -> None:  # fmt: skip
        super().__init__(width, blocks, cond)
        self.deep = deep
        self.prefix = Prefix(width, cond, prefix_heads, ffn, context)
        self.first = nn.ModuleList(nn.Linear((k + 2) * cond, cond) for k in range(blocks))
        self.around = nn.ModuleList(nn.Linear((k + 2) * cond, cond, bias=False) for k in range(blocks))
        self.further = nn.ModuleList(
            nn.ModuleList(nn.Linear(cond, cond) for _ in range(deep - 1)) for _ in range(blocks)
        )
        self.through = nn.ParameterList(torch.ones(width) for _ in range(blocks))
        self.leave = nn.Linear(cond, width, bias=False)
        nn.init.zeros_(self.leave.weight)

    def head_inputs(self, features: Float[Tensor, "B n D"], positions: Int[Tensor, " n"] | None = None,
             kv_cache: DraftKVCache | None = None) -> Float[Tensor, "B n DC"]:  # fmt: skip
        """Return each feature, concatenated with the prefix layer's state for all features up to its position.

        Args:
            features: the target's last hidden states.
            positions: positions in the text; by default 0 … n − 1.
            kv_cache: KV cache of earlier positions; None: there are none.
        """
        if positions is None:
            positions = torch.arange(features.shape[1], device=features.device)
        return torch.cat([features, self.prefix(features, positions, kv_cache)], -1)

    def forward(
        self, features: Float[Tensor, "*b DC"], token_embeds: Float[Tensor, "*b kC"], block: int
    ) -> Float[Tensor, "*b D"]:
        """Return the output of one Hydra++ head, which is the input of the LM head.

        Args:
            features: result of `head_inputs` for some positions.
            token_embeds: projected embeddings of k = block + 1 tokens, the newest committed one first.
            block: index of the head, from 0.
        """
        feature, state = features[..., : self.width], features[..., self.width :]
        u = torch.cat([state, token_embeds], -1)
        y = self.around[block](u) + nn.functional.silu(self.first[block](u))
        stack = self.further[block]
        assert isinstance(stack, nn.ModuleList)
        for layer in stack:
            y = y + nn.functional.silu(layer(y))
        return self.through[block] * feature + self.leave(y)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild the net with Hydra++'s heads."""
        prefix = {"prefix_heads": self.prefix.heads, "ffn": self.prefix.down.in_features}
        return super().sizes | {"deep": self.deep} | prefix

    @property
    def text_layers(self) -> list[DecoderLayer]:
        return [self.prefix]

    def prepare_for_drafting(self) -> HydraPlusPlusHeads:
        """Prepare Hydra++'s net for drafting: disable gradients, and copy the prefix layer into a faster layout."""
        super().prepare_for_drafting()
        self.prefix.prepare_for_drafting()
        return self


@dataclass(slots=True)
class PrefixState(HydraState):
    """Drafting state of Hydra++ for one text.

    Attributes:
        kv_caches: KV cache of each layer in `PrefixHeads.text_layers`, computed from the target's features.
        newest: the heads' input at the newest feature, a vector; None before the first feature.
        features: the target's features that the layers have not read yet, in one tensor per round.
    """

    kv_caches: list[DraftKVCache]
    newest: Tensor | None = None
    features: list[Tensor] = field(default_factory=list[Tensor])

    def catch_up(self, sequence: Sequence) -> Tensor | None:
        """Run the prefix layers on all features that they have not processed yet, in one call.

        Return the heads' input for the newest position, [D]; None before the first one.
        """
        parts, self.features = self.features, []
        if any(map(len, parts)):
            features, begin = torch.cat(parts), self.kv_caches[0].n_used
            places = torch.arange(begin, begin + len(features), device=features.device)
            self.newest = self.head_inputs(sequence, features.unsqueeze(0), places)[0, -1]
            for entries in self.kv_caches:
                entries.commit()
        return self.newest

    def head_inputs(
        self, sequence: Sequence, features: Float[Tensor, "1 n D"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "1 n R"]:
        """Return the input of Hydra++'s heads at new text positions, vectors of width R.

        Args:
            sequence: sequence that is drafted for.
            features: the target's features at these positions.
            positions: positions in the text, after those in the KV cache.
        """
        assert isinstance(self.net, HydraPlusPlusHeads)
        return self.net.head_inputs(features, positions, self.kv_caches[0])


@dataclass(frozen=True)
class HydraPlusPlus(Hydra):
    """Draft with Hydra heads of n layers, which read the output of a decoder layer over the text's features.

    Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, §4.
    """

    needs: ClassVar[tuple[str, ...]] = (HydraPlusPlusHeads.kind, "trees")
    heads: ClassVar[type[PrefixHeads]] = HydraPlusPlusHeads
    state: ClassVar[type[PrefixState]] = PrefixState
    display_name: ClassVar[str] = "Hydra++"

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states of the target prefill captures: its features (LM head inputs)."""
        return FEATURES

    def init_state(self, sequence: Sequence, models: Models) -> PrefixState:
        """Return a drafting state. Its prefix layer has read the features of all committed positions but the last.

        Raises:
            ModelError: the heads cannot be read, or were trained for another target.
        """
        advice = f"Train heads for this target: workbench train {self.heads.kind} --target …"
        net = load_fitting(self.heads, models, f"{self.display_name} heads", advice)
        features, capacity = read_features(sequence, models), len(sequence.committed) + sequence.remaining + SCRATCH
        entries = [DraftKVCache(layer.heads, layer.head_size, capacity, features) for layer in net.text_layers]
        state = self.state(net, head_of(self.heads, models), entries, features=[features])
        with torch.inference_mode():
            state.catch_up(sequence)
        return state

    def begin(self, sequence: Sequence) -> PartialTree | None:
        """Process the target's new features, and return an empty draft tree; None after a prompt of one token."""
        clock = sequence.models.target.clock
        start = clock.mark()
        hidden = sequence.state.drafter.catch_up(sequence)
        sequence.models.meter.add(start, clock.mark(), is_part=True)  # counted as part of the first head's forward pass
        return None if hidden is None else self.growth(sequence, hidden)

    def growth(self, sequence: Sequence, hidden: Float[Tensor, " R"]) -> PartialTree:
        """Return an empty draft tree.

        Args:
            sequence: sequence that is drafted for.
            hidden: the heads' input at the newest feature.
        """
        return HydraGrowth(sequence, hidden)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's features of the root and of the accepted nodes, for the next draft."""
        accepted = feedback.path_indices
        assert feedback.hidden is not None
        sequence.state.drafter.features.append(feedback.hidden[accepted])
