"""The drafter of the EAGLE family: one decoder layer that reads features of the target and guesses the next one.

A *feature* f(s) is what the target's LM head read at position s. It decides the token at s + 1, and of that token only
the embedding e(s + 1) is known to the drafter, so the two enter together; the layer answers with a guess at f(s + 1),
which the target's own LM head turns into the law of the token at s + 2:

    position     s         s + 1        s + 2
    enters       f(s)      e(s + 1)
    answers                f̂(s + 1)  →  law of x(s + 2)

What a *picture* looks like to the drafter is the only thing in which the methods for vision-language targets differ:
each is a subclass that overrides `look`, and here and there what follows a position or how far a state looks ahead.
Training and drafting run this same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.methods.drafters.attention_net import EPS, DecoderLayer, Entries, Norm
from workbench.models.checkpoints.description import Checkpoint

NORMS = ("norm_embed", "norm_feature", "before", "after")
"""Norms of the embedding and of the feature that enter, of what the attention reads, and of what leaves."""
FUSED, BESIDE, OWN_WAY = "fused", "beside", ""
"""One product fuses embedding and feature to the stream; or the stream is the state, and queries, keys and values read
the embedding beside it; or neither."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Prompts as the target saw them. All prompts of a batch have their pictures in the same places.

    Attributes:
        embeds: what entered the target's decoder, at every position.
        features: what its LM head read, at every position but the last.
        spans: positions [start, end) of each picture's vision tokens, in order.
        grids: rows and columns of each picture's vision tokens.
        question: which positions hold the question's text; None: all text.
    """

    embeds: Float[Tensor, "B n D"]
    features: Float[Tensor, "B n_minus_1 D"]
    spans: Sequence[tuple[int, int]] = ()
    grids: Sequence[tuple[int, int]] = ()
    question: Bool[Tensor, "B n_minus_1"] | None = None

    def of_question(self) -> Float[Tensor, "B D"]:
        """The mean feature of the question."""
        keep = self.question
        if keep is None:
            keep = torch.ones(self.features.shape[:2], dtype=torch.bool, device=self.features.device)
            for start, end in self.spans:
                keep[:, start:end] = False
        weight = keep.to(self.features.dtype)
        return (weight.unsqueeze(1) @ self.features).squeeze(1) / weight.sum(1, keepdim=True).clamp_min(1)


@dataclass(slots=True)
class View:
    """What one picture of N vision tokens becomes for the drafter: M inputs, and where each came from.

    Attributes:
        inputs: what enters the layer.
        places: position of each input, counted from the picture's first token, increasing.
        compressor: name of what was done to the picture.
        visible: in training, which inputs of each prompt count; None: all.
        kept: indices of the tokens kept, where some were dropped.
        blocks: indices of the tokens that were merged into each input, where some were merged.
        weights: weight of each token in each input, where inputs attend to them all.
        gate: how a gate weighed its alternatives.
        cost: in training, the share of the picture's tokens that a gate expects to keep, averaged over prompts.
    """

    inputs: Float[Tensor, "B M D"]
    places: Int[Tensor, " M"]
    compressor: str = "all"
    visible: Bool[Tensor, "B M"] | None = None
    kept: list[int] | None = None
    blocks: list[list[int]] | None = None
    weights: Float[Tensor, "M N"] | None = None
    gate: dict[str, float] | None = None
    cost: Tensor | None = None


@dataclass(slots=True)
class Entered:
    """What enters the layer for a prompt: text and what became of the pictures, in order. Shapes as in `View`."""

    inputs: Float[Tensor, "B m D"]
    places: Int[Tensor, " m"]
    visible: Bool[Tensor, "B m"] | None = None
    views: list[View] = field(default_factory=list[View])


class FeatureNet(DecoderLayer):
    """EAGLE's drafter: the embedding of the next token and a feature, fused, then one decoder layer.

    Args:
        width: the target's hidden size D.
        heads: attention heads.
        ffn: width of the gated feed-forward.
        context: longest sequence, in positions.
        norms: which of `NORMS` there are; EAGLE's own layer has none of them.
        fuse_bias: whether the fusion has a bias.
        head_size: of `AttentionNet`.
        options: of `AttentionNet`.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.1. The norms on what enters are those of EagleVLM (Huang et al.
    2025, arXiv:2509.11815, §3.1); the norm on what leaves, which starts as the target's last norm, is ours.
    """

    kind: ClassVar[str] = "eagle"
    layers: ClassVar[tuple[str, ...]] = ("fuse", *DecoderLayer.layers)
    ahead: int = 1
    """Future features that one state answers with."""
    guesses_features: ClassVar[bool] = True
    """Whether a state is a guess at a feature and so leaves through the last norm; else that norm is the LM head's."""
    enters: ClassVar[str] = FUSED
    """How a pair comes into the layer, for compiled passes (`feature_twin`); a class whose code is its own says so."""
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
        self.feeds(ffn)

    # -- what enters ----------------------------------------------------------------------------------------------

    def taken(self, features: Float[Tensor, "*b F"]) -> Float[Tensor, "*b D"]:
        """What the target's own features are when they enter: here what they are."""
        return features

    def pairs(self, following: Float[Tensor, "*b D"], features: Float[Tensor, "*b D"]) -> Float[Tensor, "*b E"]:
        """Fuse each feature with the embedding of the token that follows it."""
        return self._times("fuse", torch.cat([self.norm_embed(following), self.norm_feature(features)], -1))

    def following(self, seen: Seen) -> Float[Tensor, "B n_minus_1 D"]:
        """What counts as the embedding behind each position: that of the next one."""
        return seen.embeds[:, 1:]

    def look(self, seen: Seen, pairs: Float[Tensor, "B n_minus_1 D"], picture: int, how: Any = None) -> View:
        """What a picture becomes. Here nothing happens to it: the drafter is fed what the target saw.

        Args:
            seen: the prompt.
            pairs: features and embeddings, fused at every position as if all were text.
            picture: its number in the prompt.
            how: what the method's parameters say about it.
        """
        start, end = seen.spans[picture]
        inputs = pairs[:, start:end]
        return View(inputs, torch.arange(inputs.shape[1], device=inputs.device))

    def practise(self, n_prompts: int, chance: Callable[..., Tensor], step: int) -> Any:
        """How a batch of training looks at its pictures, for `look`: a drafter that can see less of them learns to.

        Args:
            n_prompts: of the batch.
            chance: shape → uniform numbers.
            step: number of the batch.
        """
        return None

    def enter(self, seen: Seen, how: Any = None) -> Entered:
        """A prompt: its text as pairs, its pictures as they look to this drafter, in order."""
        pairs = self.pairs(self.following(seen), self.taken(seen.features))
        inputs, places, views, done = list[Tensor](), list[Tensor](), list[View](), 0
        visible: list[Tensor | None] = []
        everywhere = torch.arange(pairs.shape[1], device=pairs.device)
        for number, (start, end) in enumerate(seen.spans):
            view = self.look(seen, pairs, number, how)
            views.append(view)
            inputs += [pairs[:, done:start], view.inputs]
            places += [everywhere[done:start], start + view.places]
            visible += [None, view.visible]
            done = end
        inputs, places, visible = [*inputs, pairs[:, done:]], [*places, everywhere[done:]], [*visible, None]
        if all(part is None for part in visible):
            return Entered(torch.cat(inputs, 1), torch.cat(places), None, views)
        counts = [
            torch.ones(part.shape[:2], dtype=torch.bool, device=part.device) if chosen is None else chosen
            for part, chosen in zip(inputs, visible, strict=True)
        ]
        return Entered(torch.cat(inputs, 1), torch.cat(places), torch.cat(counts, 1), views)

    # -- the layer ------------------------------------------------------------------------------------------------

    def reads(self, x: Float[Tensor, "B n E"]) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n R"]]:
        """The stream, and what queries, keys and values are made of."""
        return x, self.before(x)

    def forward(
        self,
        x: Float[Tensor, "B n E"],
        places: Int[Tensor, " n"],
        mask: Bool[Tensor, "*b n used"] | None = None,
        entries: Entries | None = None,
    ) -> Float[Tensor, "B n D"]:
        """The layer's state at each input: its guess at the next feature.

        Args:
            x: inputs.
            places: their positions in the text.
            mask: which entries each input sees; None: all entries before it, and itself.
            entries: keys and values of what came before; the new ones are appended.
        """
        stream, read = self.reads(x)
        return self.left(self.mix(stream, places, mask, entries, read))

    def left(self, mixed: Float[Tensor, "B n D"]) -> Float[Tensor, "B n D"]:
        """The state that leaves, given the stream behind the attention."""
        state = self.fed(mixed)
        return self.after(state) if self.guesses_features else state

    def said(self, state: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """What an LM head reads of a state."""
        return state if self.guesses_features else self.after(state)

    def attention(self, x: Float[Tensor, "B n D"], places: Int[Tensor, " n"]) -> Float[Tensor, "B n n"]:
        """What each input gives to those up to it, the mean over heads."""
        queries, keys, _ = self.turned(self.reads(x)[1], places)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (queries @ keys.mT) * self.head_size**-0.5
        return scores.masked_fill(later, -torch.inf).softmax(-1).mean(1)

    def futures(self, state: Float[Tensor, "*b D"]) -> Float[Tensor, "*b k D"]:
        """The `ahead` next features that a state stands for: here the one."""
        return state.unsqueeze(-2)

    @property
    def sizes(self) -> dict[str, Any]:
        """What the constructor needs to build it again."""
        names = {name for name, _ in self.named_parameters()}
        mine: dict[str, tuple[Any, Any]] = {
            "norms": (list(self.norms), list(NORMS)),
            "fuse_bias": ("fuse.bias" in names, False),
            "eps": (self.eps, EPS),
            "rope": (self.rope, {}),
            "bias": ("qkv.bias" in names, False),
            "head_size": (self.head_size, self.width // self.heads),
        }
        other = {name: value for name, (value, usual) in mine.items() if value != usual}
        return {"width": self.width, "heads": self.heads, "ffn": self.down.in_features} | other

    @classmethod
    def adopted(cls, checkpoint: Checkpoint, context: int, layers: int) -> FeatureNet:
        """EAGLE's layer out of somebody's checkpoint."""
        if checkpoint.architecture != "eagle":  # a subclass of another kind adopts its own
            return super().adopted(checkpoint, context, layers)
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
    """A checkpoint's tensors with those of its decoder layer joined as they are here.

    Heads that share keys and values get copies of them.
    """
    facts, read = checkpoint.facts, checkpoint.read()
    groups = facts["heads"] // facts["kv_heads"]
    for kind in ("weight", "bias"):
        if f"q.{kind}" in read:
            own = [read.pop(f"{name}.{kind}") for name in "qkv"]
            every = [_repeated(each, facts["kv_heads"], groups) for each in own[1:]]
            read[f"qkv.{kind}"] = torch.cat([own[0], *every])
    read["gate_up.weight"] = torch.cat([read.pop("gate.weight"), read.pop("up.weight")])
    return read


def _repeated(weight: Tensor, heads: int, groups: int) -> Tensor:
    """Rows of shared heads, each head's as often as it is shared."""
    return weight.view(heads, -1, *weight.shape[1:]).repeat_interleave(groups, 0).flatten(0, 1)
