"""Find the positions of image tokens in a prompt, and record the hidden states of a prompt with images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PretrainedConfig

from workbench.core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Inputs = dict[str, Tensor]
"""Type of a processor's output for one prompt: `input_ids` [1, n], `pixel_values`, and other inputs of the model."""
_MARKERS = (
    "image_token_id", "image_token_index", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index", "begin_image_token_id", "end_image_token_id",
)  # fmt: skip
"""Keys of model configurations for the ids of tokens that stand for images or delimit them."""
_CROSSING = {
    "mllama": "its layers read the image through cross-attention, whose cached states cannot be reduced to an "
    "accepted path",
    "idefics": "its layers read the image through cross-attention, whose cached states cannot be reduced to an "
    "accepted path",
}


@dataclass(slots=True)
class ImagePrefill:
    """Embeddings and hidden states of a prompt with images, in `Slot.image_prefill` after a prefill with pixels.

    Attributes:
        embeds: [n, d] input of the first layer, at every position of the prompt.
        features: [n, d] last hidden states, which the LM head reads, at every position.
        is_vision: bool [n], positions of vision tokens.
        grids: (rows, columns) of patches of each image; (1, m) if the image's m tokens form no grid.
        spans: (start, end) of each image's vision tokens in the prompt.
        seconds: duration of the prefill.
    """

    embeds: Float[Tensor, "n d"]
    features: Float[Tensor, "n d"]
    is_vision: Bool[Tensor, " n"]
    grids: list[tuple[int, int]]
    spans: list[tuple[int, int]]
    seconds: float = 0.0

    @property
    def n_vision(self) -> int:
        """Return the number of vision tokens in the prompt."""
        return int(self.is_vision.sum())


def image_token_id(config: PretrainedConfig) -> int | None:
    """Return the id of the token that stands for one vision token in `input_ids`; None if the model has none."""
    token_id = getattr(config, "image_token_id", None)
    return token_id if token_id is not None else getattr(config, "image_token_index", None)


def marker_ids(config: PretrainedConfig) -> frozenset[int]:
    """Return the ids of all tokens that stand for images or delimit them; a text-only drafter must skip them."""
    ids = (getattr(config, name, None) for name in _MARKERS)
    return frozenset(i for i in ids if isinstance(i, int))


def why_no_images(config: PretrainedConfig, name: str) -> str:
    """Return why a model does not accept images; empty if it does."""
    if not hasattr(config, "vision_config") and image_token_id(config) is None:
        return f"{name} reads text only."
    kind = getattr(config, "model_type", "")
    if kind in _CROSSING:
        return f"The workbench does not support images with {name} ({kind}): {_CROSSING[kind]}."
    if image_token_id(config) is None:
        return (
            f"The workbench does not support images with {name} ({kind}): its prompts have no image placeholder token."
        )
    return ""


def layout(
    config: PretrainedConfig, inputs: Inputs, counts: Sequence[int] | None = None
) -> tuple[Bool[Tensor, " n"], list[tuple[int, int]], list[tuple[int, int]]]:
    """Locate the images in a prompt: return which positions are vision tokens, and each image's grid and span.

    Args:
        config: configuration of the model.
        inputs: processor output for the prompt.
        counts: vision tokens of each image, if the tensors do not determine them (images cut into tiles).
    """
    is_vision = inputs["input_ids"][0] == image_token_id(config)
    positions = is_vision.nonzero().flatten().tolist()
    sizes = _sizes(config, inputs, is_vision.tolist()) if counts is None else list(counts)
    grids, spans, offset = [], [], 0
    for i, size in enumerate(sizes):
        image_positions = positions[offset : offset + size]
        offset += size
        if image_positions:
            spans.append((image_positions[0], image_positions[-1] + 1))
            grids.append(_grid(config, inputs, i, size))
    return is_vision, grids, spans


def _sizes(config: PretrainedConfig, inputs: Inputs, is_vision: list[bool]) -> list[int]:
    """Return the number of vision tokens of each image in a prompt, from the processor's output.

    Args:
        config: configuration of the model.
        inputs: output of the processor for the prompt.
        is_vision: whether each position of the prompt is a vision token.
    """
    total, grid = sum(is_vision), inputs.get("image_grid_thw")
    if grid is not None:
        return (grid.prod(1) // _merge(config) ** 2).tolist()
    pixels = inputs.get("pixel_values")
    n = len(pixels) if pixels is not None and pixels.dim() in (4, 5) else 1
    if n > 1 and total % n == 0 and (pixels is None or pixels.dim() == 4):
        return [total // n] * n
    runs = [sum(1 for _ in group) for is_image, group in groupby(is_vision) if is_image]
    return runs if len(runs) == n else [total]


def _grid(config: PretrainedConfig, inputs: Inputs, i: int, size: int) -> tuple[int, int]:
    grid, pixels = inputs.get("image_grid_thw"), inputs.get("pixel_values")
    if grid is not None:
        rows, cols = (int(x) // _merge(config) for x in grid[i, 1:])
        return (rows, cols) if rows * cols == size else (1, size)
    patch = getattr(getattr(config, "vision_config", None), "patch_size", None)
    if pixels is not None and pixels.dim() == 4 and isinstance(patch, int):
        rows, cols = pixels.shape[2] // patch, pixels.shape[3] // patch
        if rows * cols == size:
            return rows, cols
    side = math.isqrt(size)
    is_one_tile = pixels is None or pixels.dim() == 4
    return (side, side) if side * side == size and is_one_tile else (1, size)


def _merge(config: PretrainedConfig) -> int:
    return getattr(config.vision_config, "spatial_merge_size", 1)


@contextmanager
def record_prefill_tensors(model: PreTrainedModel, first_layer: torch.nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the first layer's input, position ids and last hidden states in the prefill of a prompt with images."""
    tensors: dict[str, Tensor] = {}
    trunk = model.base_model
    if trunk is model:
        raise ModelError(f"The model {type(trunk).__name__} has no decoder submodule whose output its LM head reads.")

    def before(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        tensors["embeds"] = args[0] if args else named["hidden_states"]
        if isinstance(position_ids := named.get("position_ids"), Tensor):
            tensors["places"] = position_ids

    def after(_: Any, args: Any, output: Any) -> None:
        tensors["features"] = output[0]

    hooks = [
        first_layer.register_forward_pre_hook(before, with_kwargs=True),
        trunk.register_forward_hook(after),
    ]
    try:
        yield tensors
    finally:
        for hook in hooks:
            hook.remove()
