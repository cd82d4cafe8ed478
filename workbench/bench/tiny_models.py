"""Tiny models whose joint distribution can be computed exactly, for tests of sampling promises."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from workbench.models.loading import Models
from workbench.models.runner import Runner


@torch.no_grad()
def tiny_model(vocabulary: int, seed: int, width: int = 16, layers: int = 4, spread: float = 0.4) -> LlamaForCausalLM:
    """Return a random Llama in float64 with a distribution that is neither flat nor certain.

    Args:
        vocabulary: number of tokens in the vocabulary.
        seed: seed of the weights.
        width: hidden size of the model.
        layers: number of decoder layers.
        spread: standard deviation of the weights.
    """
    return randomise_weights(LlamaForCausalLM(tiny_llama_config(vocabulary, width, layers)), seed, spread)


def tiny_llama_config(vocabulary: int, width: int, layers: int) -> LlamaConfig:
    """Return the configuration of a tiny Llama without special tokens."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )


def randomise_weights(model: Any, seed: int, spread: float) -> Any:
    """Convert the model to float64, set its weights to random numbers of deviation `spread`, and return the model."""
    model = model.double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 or name.endswith("class_embedding"):
            weight.copy_(spread * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return model


def tiny_models(
    tokenizer: Any, vocabulary: int = 8, seed: int = 1, layers: int = 4, shares: tuple[float, float] = (0.8, 0.3)
) -> Models:
    """Return a tiny target with a tiny drafter that is similar to it, but not equal.

    Args:
        tokenizer: any tokenizer of at least `vocabulary` entries; only the texts of tokens come from it.
        vocabulary: number of tokens of both models.
        seed: seed of the weights.
        layers: number of decoder layers of both models.
        shares: (a, b): each weight matrix of the drafter is a · the target's matrix + b · a random matrix. With
            (0.9, 0.1) both models agree more often than by default.
    """
    target, drafter, other = (tiny_model(vocabulary, s, layers=layers) for s in (seed, seed, seed + 1))
    with torch.no_grad():
        for weight, other_weight in zip(drafter.parameters(), other.parameters(), strict=True):
            weight.copy_(shares[0] * weight + shares[1] * other_weight if weight.dim() > 1 else weight)
    models = Models(Runner(target), tokenizer, "tiny-target")
    models.drafter, models.drafter_name, models.drafter_problem = Runner(drafter), "tiny-drafter", ""
    return models
