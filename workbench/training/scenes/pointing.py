"""Supervised attention for a vision-language model: a few attention heads learn to attend to the relevant objects.

A question names objects; before the model answers, one attention head per object should attend to the patches of this
object. The same holds in a caption before an object is described, and before the relation of an object to the previous
object is given. The geometry of the scene determines these patches. Without supervision, a model of this size learns to
find objects by colour. If a question names a shape, the model chooses among all objects at random for a long time.
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
"""Largest number of objects per question; attention head i attends to the i-th object."""

SHORT = 12
"""Largest number of tokens of an answer about a scene that counts as short."""


class Pointer:
    """Attention loss for the first attention heads of one layer of a language model.

    Args:
        model: Vision-language model to train.
        tokenizer: Tokenizer of the model.
        layer: Index of the layer; by default the middle layer: earlier layers read the question, later layers answer.
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
        self._layer_inputs: dict[str, Any] = {}
        self.attention.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, _: Any, __: Any, entered: dict[str, Any]) -> None:
        self._layer_inputs = entered

    def loss(
        self,
        packed: Packed,
        named_objects: Sequence[Sequence[tuple[int, ...]]],
        scene_list: Sequence[Scene],
        item_maps: Any,
    ) -> Tensor:
        """Return the attention loss in nats, averaged over the named objects.

        The loss is the negative logarithm of the share of a head's attention to patches that falls on the object's
        patches.

        Args:
            packed: The batch of the model's latest forward pass.
            named_objects: For each sequence and question the objects that it names.
            scene_list: The scenes of the sequences.
            item_maps: Number of the item at each pixel, uint8 [n, 64, 64].
        """
        triples, masks = [], []
        ranks = torch.from_numpy(patch_labels(scene_list, item_maps).answers[..., list(ASPECTS).index("rank")])
        for row, questions in enumerate(named_objects):
            for position, objects in self.attention_targets(
                packed.labels[row].tolist(), questions, len(scene_list[row].items)
            ):
                for head, index in enumerate(objects[:HEADS]):
                    mask = ranks[row] == index
                    if mask.any() and packed.is_image[row].any():  # otherwise hidden, or no image
                        triples.append((row, position, head))
                        masks.append(mask)
        if not triples:
            return torch.zeros(())
        rows, positions, heads = torch.tensor(triples).T
        states, (cos, sin) = self._layer_inputs["hidden_states"], self._layer_inputs["position_embeddings"]
        head_dim = self.attention.head_dim
        first = int(packed.is_image[rows[0]].nonzero()[0])
        patches = slice(first, first + ranks.shape[1])
        width = HEADS * head_dim
        queries = torch.nn.functional.linear(states, self.attention.q_proj.weight[:width])
        keys = torch.nn.functional.linear(states, self.attention.k_proj.weight[:width])
        parts = [part.unflatten(-1, (HEADS, head_dim)).transpose(1, 2) for part in (queries, keys)]
        queries, keys = apply_rotary_pos_emb(parts[0], parts[1], cos, sin)  # [B, heads, T, size]
        query, key = queries[rows, heads, positions], keys[rows, heads, patches]
        scores = (key @ query[..., None])[..., 0].float() * head_dim**-0.5  # [named, patches]
        object_scores = scores.masked_fill(~torch.stack(masks), -torch.inf)
        return (scores.logsumexp(-1) - object_scores.logsumexp(-1)).mean()

    def attention_targets(
        self, labels: Sequence[int], named_objects: Sequence[tuple[int, ...]], items: int
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (position in a sequence, objects to which the supervised attention heads should attend there).

        Args:
            labels: The next token at each position, if it belongs to an answer; else -100.
            named_objects: For each question of the sequence the objects that it names.
            items: Number of objects in the image.
        """
        starts = [t for t in range(1, len(labels)) if labels[t] >= 0 > labels[t - 1]]
        for start, objects in zip(starts, named_objects, strict=True):
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
            ):  # later relations are overlaps with objects further away
                yield t, (index, index - 1)
