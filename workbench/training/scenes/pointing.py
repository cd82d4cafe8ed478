"""Teaching a vision-language model where to look: supervision of a few attention heads.

A question names objects; before the model answers, one of its heads for each of them should look at that object's
patches. So should it in a caption before an object is described, and before it is said how it lies to the one before.
The geometry of the scene says which patches these are. Left alone, a model of this size learns to find objects by
colour, and for a long time guesses among all of them when it is given the shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from workbench.scenes.scene import SIZES, Scene
from workbench.training.scenes.data import ASPECTS, RELATIONS, patch_labels
from workbench.training.scenes.packing import Packed

HEADS = 2
"""Objects to look at, at most; head i looks for the i-th."""

SHORT = 12
"""Tokens that a short answer has at most."""


class Pointer:
    """Watches one layer of a language model, whose first heads learn to point.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        layer: Index of the layer; by default the middle one: the layers before read the question, those behind answer.
    """

    def __init__(
        self, model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, layer: int | None = None
    ) -> None:
        self._sizes, self._relations = (
            {tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in words}
            for words in (SIZES, RELATIONS[1:])
        )
        layers: Any = model.model.language_model.layers
        self.attention = layers[len(layers) // 2 if layer is None else layer].self_attn
        self._entered: dict[str, Any] = {}
        self.attention.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, _: Any, __: Any, entered: dict[str, Any]) -> None:
        self._entered = entered

    def loss(
        self, packed: Packed, named: Sequence[Sequence[tuple[int, ...]]], drawn: Sequence[Scene], shown: Any
    ) -> Tensor:
        """Return how far the heads look beside the objects, in nats, averaged over the objects named.

        It is the negative logarithm of the attention on the object's patches, of all that falls on patches.

        Args:
            packed: The batch of which the model has just read the last states.
            named: For each row and question the objects that it names.
            drawn: The scenes of the rows.
            shown: Their maps, uint8 [n, 64, 64].
        """
        looks, masks = [], []
        ranks = torch.from_numpy(patch_labels(drawn, shown).answers[..., list(ASPECTS).index("rank")])
        for row, questions in enumerate(named):
            for place, objects in self.looks(packed.labels[row].tolist(), questions, len(drawn[row].items)):
                for head, index in enumerate(objects[:HEADS]):
                    mask = ranks[row] == index
                    if mask.any() and packed.image[row].any():  # else it is covered by others, or nothing is shown
                        looks.append((row, place, head))
                        masks.append(mask)
        if not looks:
            return torch.zeros(())
        rows, places, heads = torch.tensor(looks).T
        states, (cos, sin) = self._entered["hidden_states"], self._entered["position_embeddings"]
        size = self.attention.head_dim
        first = int(packed.image[rows[0]].nonzero()[0])
        seen = slice(first, first + ranks.shape[1])
        width = HEADS * size
        queries = torch.nn.functional.linear(states, self.attention.q_proj.weight[:width])
        keys = torch.nn.functional.linear(states, self.attention.k_proj.weight[:width])
        split = [part.unflatten(-1, (HEADS, size)).transpose(1, 2) for part in (queries, keys)]
        queries, keys = apply_rotary_pos_emb(split[0], split[1], cos, sin)  # [B, heads, T, size]
        query, key = queries[rows, heads, places], keys[rows, heads, seen]
        scores = (key @ query[..., None])[..., 0].float() * size**-0.5  # [named, patches]
        found = scores.masked_fill(~torch.stack(masks), -torch.inf)
        return (scores.logsumexp(-1) - found.logsumexp(-1)).mean()

    def looks(
        self, labels: Sequence[int], named: Sequence[tuple[int, ...]], items: int
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield places of a row and the objects to look at there.

        Args:
            labels: The next token at each place, where it belongs to an answer; else -100.
            named: For each question of the row the objects that it names.
            items: Number of objects in the picture.
        """
        starts = [t for t in range(1, len(labels)) if labels[t] >= 0 > labels[t - 1]]
        for start, objects in zip(starts, named, strict=True):
            if objects:
                yield start, objects
            end = next((t for t in range(start, len(labels)) if labels[t] < 0), len(labels))
            sizes = [t for t in range(start, end) if labels[t] in self._sizes]
            relations = [t for t in range(start, end) if labels[t] in self._relations]
            if len(sizes) != items or len(relations) < items - 1 or end - start <= SHORT:
                continue  # not a caption
            for index, t in enumerate(sizes):
                yield t, (index,)
                yield t + 1, (index,)
            for index, t in enumerate(
                relations[: items - 1], 1
            ):  # behind them stand overlaps with objects further away
                yield t, (index, index - 1)
