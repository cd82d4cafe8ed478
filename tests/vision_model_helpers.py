"""Tiny vision-language models whose joint output distribution can be computed exactly, and images for them."""

from __future__ import annotations

import string
from typing import Any

import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from workbench.bench.tiny_models import randomise_weights, tiny_llama_config, tiny_model
from workbench.models.loading import Models
from workbench.models.runner import Runner

IMAGE = "<|image|>"
"""Image placeholder token of the tiny vision-language models."""
SIDE = 8
"""Side of their input images, in pixels."""


@torch.no_grad()
def tiny_vision_model(
    vocabulary: int, seed: int, patch: int = 4, width: int = 16, layers: int = 2, spread: float = 0.4
) -> LlavaForConditionalGeneration:
    """Return a random float64 LLaVA whose last token is the placeholder; an image has (SIDE / patch)² tokens."""
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
        patch_size=patch,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision,
        text_config=tiny_llama_config(vocabulary, width, layers),
        image_token_index=vocabulary - 1,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=(SIDE // patch) ** 2,
        tie_word_embeddings=False,
    )
    return randomise_weights(LlavaForConditionalGeneration(config), seed, spread)


def tiny_processor(vocabulary: int, patch: int = 4) -> LlavaProcessor:
    """Return the processor of `tiny_vision_model`: each letter is a token, and the last token is the placeholder."""
    letters = dict(zip(string.ascii_letters[: vocabulary - 1], range(vocabulary - 1), strict=True))
    raw = Tokenizer(WordLevel(vocab=letters | {IMAGE: vocabulary - 1}, unk_token="a"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    raw.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, additional_special_tokens=[IMAGE])
    size = {"height": SIDE, "width": SIDE}
    pixels = CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False)
    return LlavaProcessor(
        pixels, tokenizer, patch_size=patch, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        image_token=IMAGE,
    )  # fmt: skip


def tiny_vision_models(vocabulary: int = 8, seed: int = 1, blind: bool = False, device: str = "cpu") -> Models:
    """Return a tiny vision-language target, and a similar drafter for which an image is one token.

    Args:
        vocabulary: number of tokens, including the placeholder.
        seed: seed of the weights.
        blind: whether the drafter has text input only.
        device: device of both models.
    """
    processor = tiny_processor(vocabulary)
    target: Any = tiny_vision_model(vocabulary, seed)
    drafter: Any = tiny_vision_model(vocabulary, seed + 1, patch=SIDE)
    with torch.no_grad():
        mine, theirs = drafter.model.language_model, target.model.language_model
        for ours, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            ours.copy_(0.3 * ours + 0.8 * other if ours.dim() > 1 else ours)
        drafter.lm_head.weight.copy_(0.3 * drafter.lm_head.weight + 0.8 * target.lm_head.weight)
        if blind:
            text = tiny_model(vocabulary, seed, layers=2)
            text.model.load_state_dict(mine.state_dict())
            text.lm_head.load_state_dict(drafter.lm_head.state_dict())
            drafter = text
    models = Models(Runner(target.to(device)), processor.tokenizer, "tiny-vision-target")
    models.processor = processor
    models.drafter, models.drafter_name, models.drafter_problem = Runner(drafter.to(device)), "tiny-vision-drafter", ""
    models.drafter_processor = None if blind else tiny_processor(vocabulary, patch=SIDE)
    return models


def noise_image(seed: int = 0, side: int = 2 * SIDE) -> Image.Image:
    """Return an image of coloured noise."""
    pixels = torch.randint(0, 256, (side, side, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())
