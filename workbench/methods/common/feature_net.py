"""Drafters of the EAGLE family: one decoder layer that reads features of the target and predicts the next feature.

A *feature* f(s) is the target's LM head input at position s. It determines the distribution of the token at s + 1, so
f(s) and the embedding e(s + 1) of that token enter the layer together, as a *pair*. The layer predicts f(s + 1), and
the target's own LM head computes from it the distribution of the token at s + 2:

    position     s         s + 1        s + 2
    input        f(s)      e(s + 1)
    output                 f̂(s + 1)  →  distribution of x(s + 2)

The methods for vision-language targets differ in how an *image* enters the drafter. Each is a subclass that overrides
`compress_image`; some also override `next_embeddings` or `ahead`. Training and drafting run this same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.methods.common.attention_net import EPS, DecoderLayer, DraftKVCache, Norm
from workbench.models.checkpoints.description import Checkpoint

NORMS = ("norm_embed", "norm_feature", "before", "after")
"""Names of the norms of a feature drafter's layer: of embedding, feature, attention input and output."""
FUSED, QKV_ONLY, CUSTOM = "fused", "beside", ""
"""Ways in which a pair of feature and embedding enters a drafter's layer (`FeatureNet.input_fusion`).

FUSED: one product fuses embedding and feature into the residual stream. QKV_ONLY: the state is the residual stream, and
queries, keys and values also read the embedding. CUSTOM: the subclass defines another way."""


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """Target embeddings and features of a batch of B prompts with images at the same positions.

    Attributes:
        embeds: inputs of the target's decoder at every position.
        features: inputs of the target's LM head at every position but the last.
        spans: positions [start, end) of each image's vision tokens, in order.
        grids: rows and columns of each image's vision tokens.
        question: mask of the positions of the question's text; None: all text positions.
    """

    embeds: Float[Tensor, "B n D"]
    features: Float[Tensor, "B n_minus_1 D"]
    spans: Sequence[tuple[int, int]] = ()
    grids: Sequence[tuple[int, int]] = ()
    question: Bool[Tensor, "B n_minus_1"] | None = None

    def mean_question_feature(self) -> Float[Tensor, "B D"]:
        """Return the mean of the target's features over the positions of the question about the image."""
        is_question = self.question
        if is_question is None:
            is_question = torch.ones(self.features.shape[:2], dtype=torch.bool, device=self.features.device)
            for start, end in self.spans:
                is_question[:, start:end] = False
        weight = is_question.to(self.features.dtype)
        return (weight.unsqueeze(1) @ self.features).squeeze(1) / weight.sum(1, keepdim=True).clamp_min(1)


@dataclass(slots=True)
class CompressedImage:
    """Image of N vision tokens, compressed to M inputs of the drafter, with the origin of each input.

    Attributes:
        inputs: inputs of the drafter's layer.
        positions: position of each input, counted from the image's first token, increasing.
        compressor: name of the compression.
        visible: in training, mask of the inputs of each prompt to which other inputs may attend; None: all inputs.
        kept_indices: indices of the remaining vision tokens, if some were dropped.
        blocks: indices of the vision tokens that were merged into each input, if some were merged.
        weights: weight of each token in each input, if every input is a weighted sum of all tokens.
        gate: weight of each compressor, if a gate chooses among several.
        cost: in training, the expected share of the image's tokens that a gate retains, averaged over prompts.
    """

    inputs: Float[Tensor, "B M D"]
    positions: Int[Tensor, " M"]
    compressor: str = "all"
    visible: Bool[Tensor, "B M"] | None = None
    kept_indices: list[int] | None = None
    blocks: list[list[int]] | None = None
    weights: Float[Tensor, "M N"] | None = None
    gate: dict[str, float] | None = None
    cost: Tensor | None = None


@dataclass(slots=True)
class PromptInputs:
    """Inputs of the drafter's layer for B prompts: pairs of feature and embedding, and compressed images, in order.

    Attributes:
        inputs: inputs of the layer.
        positions: position of each input in the prompt, increasing.
        visible: in training, mask of the inputs of each prompt to which other inputs may attend; None: all inputs.
        images: the compressed images, whose inputs are also in `inputs`.
    """

    inputs: Float[Tensor, "B m D"]
    positions: Int[Tensor, " m"]
    visible: Bool[Tensor, "B m"] | None = None
    images: list[CompressedImage] = field(default_factory=list[CompressedImage])


class FeatureNet(DecoderLayer):
    """EAGLE's drafter: the embedding of the next token and a feature are fused, and enter one decoder layer.

    Args:
        width: the target's hidden size D.
        heads: number of attention heads.
        ffn: inner width of the gated MLP.
        context: maximum sequence length, in positions.
        norms: names of the norms of the layer, from `NORMS`; the original EAGLE has none of them.
        fuse_bias: whether the fusion has a bias.
        head_size: size of an attention head; 0: the width divided by the number of heads.
        options: further arguments of `AttentionNet`.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.1. The input norms are those of EagleVLM (Huang et al. 2025,
    arXiv:2509.11815, §3.1); the output norm, initialised as the target's final norm, is ours.
    """

    kind: ClassVar[str] = "eagle"
    packed_layers: ClassVar[tuple[str, ...]] = ("fuse", *DecoderLayer.packed_layers)
    ahead: int = 1
    """Number of future features of the target that one drafter state predicts."""
    predicts_features: ClassVar[bool] = True
    """Whether the layer's output state is a predicted feature, to which the output norm is applied. If not, the norm
    is part of the LM head."""
    input_fusion: ClassVar[str] = FUSED
    """Way in which feature and embedding enter the layer: FUSED, QKV_ONLY or CUSTOM. `compiled_feature_net` compiles
    the first two."""
    norm_embed: nn.Module
    norm_feature: nn.Module

    def __init__(
        self,
        width: int,
        heads: int,
        ffn: int,
        context: int = 1024,
        norms: Sequence[str] = NORMS,
        fuse_bias: bool = False,
        head_size: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(width, heads, context, head_size=head_size, **options)
        self.norms = tuple(name for name in NORMS if name in norms)
        for name in NORMS:
            setattr(self, name, Norm(width, eps=self.eps) if name in norms else nn.Identity())
        self.fuse = nn.Linear(2 * width, width, bias=fuse_bias)
        self.add_mlp(ffn)

    # -- inputs ---------------------------------------------------------------------------------------------------

    def combine_hidden_states(self, features: Float[Tensor, "*b F"]) -> Float[Tensor, "*b D"]:
        """Return the drafter layer's input for the target's features: in EAGLE the unchanged features."""
        return features

    def make_pairs(self, next_embeds: Float[Tensor, "*b D"], features: Float[Tensor, "*b D"]) -> Float[Tensor, "*b E"]:
        """Fuse each feature with the embedding of the token that follows it."""
        return self._times("fuse", torch.cat([self.norm_embed(next_embeds), self.norm_feature(features)], -1))

    def next_embeddings(self, prompt: PromptFeatures) -> Float[Tensor, "B n_minus_1 D"]:
        """Return the embedding that is paired with the feature of each position: in EAGLE that of the next position."""
        return prompt.embeds[:, 1:]

    def compress_image(
        self, prompt: PromptFeatures, pairs: Float[Tensor, "B n_minus_1 D"], image: int, options: Any = None
    ) -> CompressedImage:
        """Return the drafter's inputs for an image: in this class, one input for each of the target's vision tokens.

        Args:
            prompt: embeddings and features of the prompts.
            pairs: fused features and embeddings of all positions, including image positions.
            image: index of the image in the prompt.
            options: the method's parameters for image compression.
        """
        start, end = prompt.spans[image]
        inputs = pairs[:, start:end]
        return CompressedImage(inputs, torch.arange(inputs.shape[1], device=inputs.device))

    def sample_options(self, n_prompts: int, rand: Callable[..., Tensor], step: int) -> Any:
        """Sample options of the image compression for a training batch.

        This class has no such options and returns None.

        Args:
            n_prompts: number of prompts in the batch.
            rand: function that returns uniform random numbers in [0, 1) of a given shape.
            step: index of the batch.
        """
        return None

    def build_inputs(self, prompt: PromptFeatures, options: Any = None) -> PromptInputs:
        """Return the drafter layer's inputs for prompts: pairs of feature and embedding, and compressed images.

        Args:
            prompt: embeddings and features of the prompts.
            options: the method's parameters for image compression.
        """
        pairs = self.make_pairs(self.next_embeddings(prompt), self.combine_hidden_states(prompt.features))
        inputs, places, views, end_before = list[Tensor](), list[Tensor](), list[CompressedImage](), 0
        visible: list[Tensor | None] = []
        everywhere = torch.arange(pairs.shape[1], device=pairs.device)
        for index, (start, end) in enumerate(prompt.spans):
            view = self.compress_image(prompt, pairs, index, options)
            views.append(view)
            inputs += [pairs[:, end_before:start], view.inputs]
            places += [everywhere[end_before:start], start + view.positions]
            visible += [None, view.visible]
            end_before = end
        inputs, places, visible = [*inputs, pairs[:, end_before:]], [*places, everywhere[end_before:]], [*visible, None]
        if all(part is None for part in visible):
            return PromptInputs(torch.cat(inputs, 1), torch.cat(places), None, views)
        masks = [
            torch.ones(part.shape[:2], dtype=torch.bool, device=part.device) if mask is None else mask
            for part, mask in zip(inputs, visible, strict=True)
        ]
        return PromptInputs(torch.cat(inputs, 1), torch.cat(places), torch.cat(masks, 1), views)

    # -- the layer ------------------------------------------------------------------------------------------------

    def attention_inputs(self, x: Float[Tensor, "B n E"]) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n R"]]:
        """Return the layer's residual stream, and the input of its query, key and value projections."""
        return x, self.before(x)

    def forward(
        self,
        x: Float[Tensor, "B n E"],
        positions: Int[Tensor, " n"],
        mask: Bool[Tensor, "*b n used"] | None = None,
        kv_cache: DraftKVCache | None = None,
    ) -> Float[Tensor, "B n D"]:
        """Return the layer's output state at each input, which is its prediction of the target's next feature.

        Args:
            x: inputs of the layer.
            positions: positions of the inputs in the text.
            mask: true at the KV cache entries (columns) that each input (row) attends to; None: causal attention.
            kv_cache: KV cache of earlier positions; the entries of the inputs are appended.
        """
        stream, attention_input = self.attention_inputs(x)
        return self.output_state(self.attend(stream, positions, mask, kv_cache, attention_input))

    def output_state(self, stream: Float[Tensor, "B n D"]) -> Float[Tensor, "B n D"]:
        """Return the drafter layer's output state, computed from the residual stream after the attention."""
        state = self.apply_mlp(stream)
        return self.after(state) if self.predicts_features else state

    def lm_head_input(self, state: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Return the LM head's input, computed from the layer's output state."""
        return state if self.predicts_features else self.after(state)

    def attention(self, x: Float[Tensor, "B n D"], positions: Int[Tensor, " n"]) -> Float[Tensor, "B n n"]:
        """Return the layer's causal attention weight from each input (row) to each input (column), averaged over heads.

        Args:
            x: inputs of the layer.
            positions: positions of the inputs in the text.
        """
        queries, keys, _ = self.project_qkv(self.attention_inputs(x)[1], positions)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (queries @ keys.mT) * self.head_size**-0.5
        return scores.masked_fill(later, -torch.inf).softmax(-1).mean(1)

    def futures(self, state: Float[Tensor, "*b D"]) -> Float[Tensor, "*b k D"]:
        """Return the next k features that the layer's state predicts; in EAGLE k = 1, and the state is the feature."""
        return state.unsqueeze(-2)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild EAGLE's net."""
        names = {name for name, _ in self.named_parameters()}
        options: dict[str, tuple[Any, Any]] = {
            "norms": (list(self.norms), list(NORMS)),
            "fuse_bias": ("fuse.bias" in names, False),
            "eps": (self.eps, EPS),
            "rope": (self.rope, {}),
            "bias": ("qkv.bias" in names, False),
            "head_size": (self.head_size, self.width // self.heads),
        }
        non_default = {name: value for name, (value, usual) in options.items() if value != usual}
        return {"width": self.width, "heads": self.heads, "ffn": self.down.in_features} | non_default

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, context: int, layers: int) -> FeatureNet:
        """Create EAGLE's net from an external checkpoint.

        Args:
            checkpoint: checkpoint of an EAGLE drafter from another program.
            context: maximum sequence length, in positions.
            layers: number of the target's layers.
        """
        if checkpoint.architecture != "eagle":  # subclasses adopt checkpoints of their own architecture
            return super().from_checkpoint(checkpoint, context, layers)
        facts, weights = checkpoint.facts, layer_weights(checkpoint)
        net = cls(
            facts["hidden_size"],
            facts["heads"],
            facts["ffn"],
            context,
            norms=facts["norms"],
            fuse_bias="fuse.bias" in weights,
            eps=facts["eps"],
            rope=facts["rope"],
            bias="qkv.bias" in weights,
        )
        net.load_state_dict(weights)
        return net


def layer_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return a checkpoint's tensors, with the decoder layer's matrices concatenated as in `DecoderLayer`.

    Shared key and value heads (GQA) are copied, one per query head.
    """
    facts, weights = checkpoint.facts, checkpoint.read()
    groups = facts["heads"] // facts["kv_heads"]
    for kind in ("weight", "bias"):
        if f"q.{kind}" in weights:
            parts = [weights.pop(f"{name}.{kind}") for name in "qkv"]
            repeated = [_repeated(part, facts["kv_heads"], groups) for part in parts[1:]]
            weights[f"qkv.{kind}"] = torch.cat([parts[0], *repeated])
    weights["gate_up.weight"] = torch.cat([weights.pop("gate.weight"), weights.pop("up.weight")])
    return weights


def _repeated(weight: Tensor, heads: int, groups: int) -> Tensor:
    """Repeat the weight rows of each key or value head `groups` times: once per query head that shares the head."""
    return weight.view(heads, -1, *weight.shape[1:]).repeat_interleave(groups, 0).flatten(0, 1)
