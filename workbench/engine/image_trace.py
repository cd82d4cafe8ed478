"""Images in a trace, as the target sees them after its processor has resized them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from workbench.engine.image_inputs import image_token_counts
from workbench.kernels.image_layout import Inputs, layout
from workbench.trace.images import PNG_URL, PromptImage

if TYPE_CHECKING:
    from PIL.Image import Image

    from workbench.models.loading import Models
    from workbench.models.runner import Runner

SHOWN = 512
"""Maximum width and height in pixels of an image in a trace, if the target does not read it as one grid of patches."""


def record_images(models: Models, inputs: Inputs, images: Sequence[Image]) -> list[PromptImage]:
    """Return the images of a prompt for its trace, as the target sees them; [] if the prompt has none."""
    if not images:
        return []
    config = models.target.model.config
    is_vision, grids, spans = layout(config, inputs, image_token_counts(models, inputs, images))
    assert is_vision.shape[0]
    records = []
    for i, (picture, (rows, cols), (start, end)) in enumerate(zip(images, grids, spans, strict=False)):
        image = _as_seen(models.processor, inputs, i, picture, len(images))
        records.append(PromptImage(png_url(image), image.width, image.height, rows, cols, start, end))
    return records


def _as_seen(processor: Any, inputs: Inputs, i: int, picture: Image, n: int) -> Image:
    """Return image `i` of `n` as the target's processor resized it.

    If the tensors do not show the resized size, return a thumbnail.
    """
    from PIL import Image as images

    pixels, grid = inputs.get("pixel_values"), inputs.get("image_grid_thw")
    part = processor.image_processor
    mean, std = getattr(part, "image_mean", None), getattr(part, "image_std", None)
    if pixels is not None and pixels.dim() == 4 and pixels.shape[:2] == (n, 3):
        values = pixels[i].float().cpu()
        if getattr(part, "do_normalize", True) and mean and std:
            values = values * torch.tensor(std).view(3, 1, 1) + torch.tensor(mean).view(3, 1, 1)
        return images.fromarray((values.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
    if grid is not None and isinstance(patch := getattr(part, "patch_size", None), int):
        return picture.resize((int(grid[i, 2]) * patch, int(grid[i, 1]) * patch))
    thumbnail = picture.copy()
    thumbnail.thumbnail((SHOWN, SHOWN))
    return thumbnail


def png_url(image: Image) -> str:
    """Return an image as a data URL in PNG format."""
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return PNG_URL + base64.b64encode(out.getvalue()).decode("ascii")


def position_bytes(runner: Runner) -> int:
    """Return the size of one token's keys and values in all layers of a model's KV cache, in bytes."""
    cache = runner.cache
    return cache.n_bytes // (cache.n_rows * cache.capacity)
