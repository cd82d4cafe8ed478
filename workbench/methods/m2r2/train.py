"""Training of M2R2's accelerator adapters: after the exit layer, the fast stream predicts the target's output.

The frozen target's first layers process a batch of answers once, unchanged. The fast residual stream passes through the
same layers over their KV cache, all positions at once. As in a draft, each position attends to the true text before it.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from workbench.core.errors import ParameterError
from workbench.kernels.layers import decoder_layers, text_config, with_layers
from workbench.kernels.packed import unpack_temporarily
from workbench.methods import registry
from workbench.methods.m2r2.drafter import Accelerators
from workbench.models.pretrained import load_model
from workbench.training.family.drafter import load_answer_batches, load_batch
from workbench.training.family.head_training import TrainingSetup, build_seeded, sample_indices
from workbench.training.family.options import ChatHeadOptions
from workbench.training.heads.losses import LossInputs, WeightedLoss
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve


@dataclass
class Options(ChatHeadOptions):
    """Options for training M2R2's accelerator adapters.

    Attributes:
        exit_layer: Layer after which the fast residual stream is read.
        rank: Rank of the adapters.
    """

    method: str = Accelerators.kind
    loss: str = "ce_soft:1+cosine:0.1"
    matrix_rate: float = 0.006
    exit_layer: int = 3
    rank: int = 32
    depth_shares: ClassVar[Mapping[str, int]] = {"exit_layer": 4}

    def draft_vocabulary_size(self, vocab_size: int) -> int:
        return vocab_size  # the target's own LM head reads the fast stream, with all of its tokens


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train M2R2's adapters, which are initialised as the identity; the target's weights are frozen.

    Loss terms that compare directions (`cosine`) compare the fast stream with the target's residual stream after its
    last layer.

    Raises:
        ParameterError: the target has no layer with the number `exit_layer`.

    Source: Bhendawade et al. 2025, M2R2, arXiv:2502.02040 (distillation from the target, alignment of residuals).
    """
    options, teacher = setup.options, setup.teacher
    n_layers = text_config(teacher.config).num_hidden_layers
    if not 1 <= options.exit_layer < n_layers:
        raise ParameterError(
            f"exit_layer={options.exit_layer}, but the target has {n_layers} layers.", f"Use 1 to {n_layers - 1}."
        )
    model = load_model(options.target, setup.device, torch.float32).requires_grad_(False)
    table, loss = teacher.lm_head, WeightedLoss.parse(options.loss)
    with torch.no_grad():  # scale per component; the unscaled stream has the direction of f / scale
        scale = teacher.last_norm(table.new_ones(table.shape[1]))
    held_batches = load_answer_batches(teacher, setup.readings, setup.held_out)
    net = build_seeded(options.seed, lambda: registry.heads()[options.method].build(table.shape[1], vars(options)))

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = load_batch(setup.readings, rows)
        sample = sample_indices(int(answer.sum()), options.places, generator)
        with half_precision(options.half):
            _, fast = streams(net, model, ids)
            guess, truth = fast[answer][sample], features[answer][sample].float()
            with torch.no_grad():
                target_logits = F.linear(truth, table)
            logits = F.linear(guess, table)
        predictions = LossInputs(guess.float() / scale, truth / scale, logits.float(), target_logits.float())
        total, figures = loss(predictions)
        return int(answer.sum()), {name: torch.tensor(value) for name, value in figures.items()}, total

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        """Return top-1 agreement and cosine similarity with the target, of the fast (adapted) and the slow stream."""
        (matches, similarity), count = torch.zeros(2, 2, device=setup.device), 0
        for rows, (ids, answer, target_tokens) in held_batches:
            truth = load_batch(setup.readings, rows)[1][answer].float() / scale
            with half_precision(options.half):
                for i, stream in enumerate(reversed(streams(net, model, ids))):
                    states = stream[answer]
                    matches[i] += (F.linear(states, table).argmax(-1) == target_tokens).sum()
                    similarity[i] += F.cosine_similarity(states.float() / scale, truth, dim=-1).sum()
            count += len(target_tokens)
        (agreement, plain), (cosine, slow) = (matches / max(count, 1)).tolist(), (similarity / max(count, 1)).tolist()
        return {"agreement": agreement, "of the plain exit": plain, "cosine": cosine, "of the slow stream": slow}

    with unpack_temporarily(model):  # packed products have no gradients
        return setup.run(net, step_losses, measure)


class SlowStreamCache(DynamicCache):
    """KV cache of the unchanged (slow) residual stream, which the fast stream reads without adding entries."""

    def __init__(self, cache: DynamicCache) -> None:
        super().__init__()
        self.layers = cache.layers

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        layer: Any = self.layers[layer_idx]
        return layer.keys, layer.values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


def streams(
    net: Accelerators, model: Any, ids: Int[Tensor, "B n"]
) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n D"]]:
    """Return the LM head's inputs after the exit layer from the slow (unchanged) and the fast (adapted) stream.

    Args:
        net: the adapters.
        model: the target, with frozen weights.
        ids: padded texts.
    """
    cache, n = DynamicCache(), net.exit_layer
    layers = list(decoder_layers(model)[1])[:n]
    with torch.no_grad():
        slow = with_layers(model, layers, range(n)).get_decoder()(ids, past_key_values=cache, use_cache=True)[0]
    fast = with_layers(model, [net.with_adapters(layer, i) for i, layer in enumerate(layers)], range(n)).get_decoder()
    return slow, fast(ids, past_key_values=SlowStreamCache(cache), use_cache=True)[0]
