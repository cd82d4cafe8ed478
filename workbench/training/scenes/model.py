"""Configurations of the bundled vision-language models, and functions that save and load these models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

from workbench.models.chat_markers import IMAGE
from workbench.models.int8_checkpoint import load_folder
from workbench.scenes.scene import SIDE
from workbench.training.models import llama_config, save_half, save_tokenizer
from workbench.training.scenes.data import GRID, PATCH
from workbench.training.tokenizer import token_id

VISION_TOKENS = GRID * GRID

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{% elif message['role'] != 'system' %}<|user|>{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|image|>{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}"
    "{% if message['role'] == 'assistant' %}<|endoftext|>{% elif message['role'] == 'system' %}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def language_config(
    tokenizer: PreTrainedTokenizerFast, hidden: int = 256, layers: int = 5, inner: int = 512
) -> LlamaConfig:
    """Return the configuration of a language model that answers questions about scenes."""
    return llama_config(tokenizer, hidden, layers, max(2, hidden // 64), inner)


def vision_language_config(
    tokenizer: PreTrainedTokenizerFast, vision: SiglipVisionConfig, language: LlamaConfig
) -> LlavaConfig:
    """Return the LLaVA configuration with a vision tower, a two-layer projector and a language model."""
    ends: dict[str, Any] = {name: getattr(language, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return LlavaConfig(
        vision_config=vision,
        text_config=language,
        image_token_index=token_id(tokenizer, IMAGE),
        image_seq_length=VISION_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
        **ends,
    )


def make_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """Return the processor, which scales images to 64 × 64 pixels and inserts 64 vision tokens per image."""
    image_processor = SiglipImageProcessorPil(
        size={"height": SIDE, "width": SIDE},
        resample=3,
        do_convert_rgb=True,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
        image_token=IMAGE,
        num_additional_image_tokens=0,
    )


def save_vision_model(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a model in the Hugging Face layout: an int8 checkpoint, configurations and processor.

    Args:
        model: The float32 model; it is not changed.
        tokenizer: Tokenizer of the model.
        out: Folder of the model.
    """
    half = LlavaForConditionalGeneration(model.config)
    config: Any = half.config
    for part in (config.text_config, config.vision_config):
        part.dtype = "float16"  # models loaded for training have float32 here
    save_half(half, model, tokenizer, out, is_int8=True)
    save_tokenizer(make_processor(tokenizer), out)


def load_vision_model(
    folder: Path, dtype: torch.dtype = torch.float32
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Load a vision-language model for inference, with frozen weights, and the model's processor."""
    model = load_folder(LlavaForConditionalGeneration, folder, dtype).eval().requires_grad_(False)
    processor: Any = LlavaProcessor.from_pretrained(str(folder))
    return model, cast(LlavaProcessor, processor)
