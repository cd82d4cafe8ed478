"""Training of prompt tokens: gradients flow through the whole frozen target to the prompt tokens' embeddings."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from workbench.methods.ppd.drafter import PromptTokens
from workbench.training.family.head_training import TrainingSetup
from workbench.training.family.in_pass import ProbedTexts, ProbeOptions, train_probes
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve

LOSS_DECAY = 0.8
"""Weight of a prompt token's loss, relative to the loss of the previous prompt token."""


@dataclass
class Options(ProbeOptions):
    """Options for training the prompt tokens of parallel prompt decoding.

    Attributes:
        prompts: Number of prompt tokens.
        ensemble: Number of embeddings per prompt token.
    """

    method: str = PromptTokens.kind
    other_rate: float = 0.01
    prompts: int = 3
    ensemble: int = 1


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the prompt tokens' embeddings, which are initialised with embeddings of target tokens.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §3.3 (distillation from the
    target's distribution; the weight of a loss is 0.8 to the power of the distance). Here the loss is computed at many
    positions of a text, not only at its end.
    """
    embedding = setup.teacher.embedding

    def start(net: PromptTokens, model: Any) -> None:
        sample = torch.randperm(len(embedding))[: net.levels * net.ensemble]
        net.embeds.copy_(embedding[sample].view(net.embeds.shape))

    return train_probes(setup, run_probes, LOSS_DECAY, start)


def run_probes(net: PromptTokens, model: Any, texts: ProbedTexts) -> Float[Tensor, "B P D"]:
    """Return the target's LM head inputs at prompt tokens, whose embeddings pass through all layers."""
    with torch.no_grad():
        cache = DynamicCache()
        model.model(texts.ids, past_key_values=cache, use_cache=True)
    embeds = net.embeds.flatten(0, 1)[texts.layout.input_index].expand(len(texts.ids), -1, -1)
    return model.model(
        inputs_embeds=embeds,
        past_key_values=cache,
        attention_mask=texts.mask,
        position_ids=texts.position_ids,
        use_cache=True,
    )[0]
