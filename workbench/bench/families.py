"""Tiny random models of many families, in float64, for testing promises about greedy text."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

VOCABULARY = 64
hf: Any = transformers  # configurations accept more arguments than their type stubs declare

_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GROUPED = _BASE | {"num_key_value_heads": 2}
_SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILIES: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": lambda **kw: hf.LlamaConfig(**_GROUPED | kw),
    "mistral": lambda **kw: hf.MistralConfig(**_GROUPED | {"sliding_window": 6} | kw),
    "qwen2": lambda **kw: hf.Qwen2Config(**_GROUPED | kw),
    "qwen3": lambda **kw: hf.Qwen3Config(**_GROUPED | {"head_dim": 8} | kw),
    "qwen3_moe": lambda **kw: hf.Qwen3MoeConfig(
        **_GROUPED | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16} | kw
    ),
    "phi3": lambda **kw: hf.Phi3Config(**_GROUPED | {"sliding_window": None} | kw),
    "gpt2": lambda **kw: hf.GPT2Config(
        **{
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 128,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        | _named(kw, num_hidden_layers="n_layer")
    ),
    "gpt_neox": lambda **kw: hf.GPTNeoXConfig(**_BASE | kw),
    "opt": lambda **kw: hf.OPTConfig(
        **{k: v for k, v in _BASE.items() if k != "intermediate_size"} | {"ffn_dim": 48, "word_embed_proj_dim": 32} | kw
    ),
    "olmo2": lambda **kw: hf.Olmo2Config(**_GROUPED | kw),
    "smollm3": lambda **kw: hf.SmolLM3Config(**_GROUPED | kw),
    "granite": lambda **kw: hf.GraniteConfig(**_GROUPED | kw),
    "gemma3_text": lambda **kw: hf.Gemma3TextConfig(
        **_GROUPED | {"head_dim": 8, "sliding_window": 6, "layer_types": _SLIDING} | kw
    ),
    "gpt_oss": lambda **kw: hf.GptOssConfig(
        **_GROUPED
        | {
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 6,
            "layer_types": _SLIDING,
        }
        | kw
    ),
    "llama4_text": lambda **kw: hf.Llama4TextConfig(
        **_GROUPED
        | {
            "head_dim": 8,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 8,
        }
        | kw
    ),
}
"""Configurations of tiny models by family. Attention windows and chunks are shorter than the prompts of the tests."""


def _named(values: dict[str, Any], **other: str) -> dict[str, Any]:
    return {other.get(name, name): value for name, value in values.items()}


def random_model(
    config: PreTrainedConfig, seed: int = 0, scale: float = 12.0, device: str = "cpu", auto: Any = AutoModelForCausalLM
) -> Any:
    """Return a randomly initialised model in float64.

    Args:
        config: configuration of the model.
        seed: seed of the weights.
        scale: factor on the usual initial weights. Without it the next-token distributions would be nearly flat.
        device: device of the model.
        auto: class of transformers whose `from_config` builds the model.
    """
    config = copy.deepcopy(config)
    config._experts_implementation = "eager"  # grouped matrix products do not support float64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251 (transformers draws initial weights from it)
        model: Any = auto.from_config(config, dtype=torch.float64)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(scale)
    return model.to(device).eval().requires_grad_(False)


def family(name: str, seed: int = 0, device: str = "cpu", **overrides: Any) -> Any:
    """Return a tiny random model of a model family; `overrides` change its configuration."""
    return random_model(FAMILIES[name](**overrides), seed, device=device)
