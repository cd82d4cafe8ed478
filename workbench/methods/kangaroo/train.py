"""Training of Kangaroo's adapter, which predicts the target's final features from an early layer's hidden states."""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.methods.kangaroo.drafter import ExitAdapter
from workbench.training.family.drafter import load_batch, pad_and_stack
from workbench.training.family.head_training import (
    EVAL_BATCH_SIZE,
    TrainingSetup,
    build_seeded,
    draft_vocabulary_config,
    sample_indices,
)
from workbench.training.family.options import ChatHeadOptions
from workbench.training.heads.losses import LossInputs, WeightedLoss
from workbench.training.heads.trainer import init_weights
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve


@dataclass
class Options(ChatHeadOptions):
    """Options for training Kangaroo's adapter.

    Attributes:
        heads: Number of attention heads.
        exit_layer: Layer whose output the adapter reads; the recorded hidden states must contain it (`taps`).
    """

    method: str = ExitAdapter.kind
    loss: str = "ce_soft:1"
    heads: int = 9
    exit_layer: int = 8
    depth_shares: ClassVar[Mapping[str, int]] = {"exit_layer": 6}

    def capture_layers(self, layers: int) -> tuple[int, ...]:
        return (self.exit_layer,)


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train Kangaroo's adapter on recorded hidden states of the target.

    Source: Liu et al. 2024, Kangaroo, arXiv:2404.18911, §3.1.

    Raises:
        ParameterError: the recorded training data (readings) has no hidden states of the exit layer.
    """
    options, table, taps = setup.options, setup.lm_head_rows, setup.readings.facts["taps"]
    if options.exit_layer not in taps:
        raise ParameterError(
            f"{options.readings} has no hidden states of the target's layer {options.exit_layer}.",
            f"Create a folder of readings (hidden states for training) with taps={options.exit_layer}"
            + (f", or set exit_layer to one of {taps}." if taps else "."),
        )
    loss = WeightedLoss.parse(options.loss)

    def build_untrained() -> ExitAdapter:
        net = ExitAdapter(table.shape[1], options.heads, options.exit_layer)
        init_weights(net, setup.teacher.last_norm)
        return net

    net = build_seeded(options.seed, build_untrained)

    def guesses(rows: list[int], decide: Tensor) -> Tensor:
        exits = pad_and_stack([setup.readings.hidden_states(f"tap-{options.exit_layer}", row) for row in rows])
        return net(exits.float(), torch.arange(exits.shape[1], device=exits.device))[decide]

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        _, features, _, answer = load_batch(setup.readings, rows)
        sample = sample_indices(int(answer.sum()), options.places, generator)
        with half_precision(options.half):
            guess, truth = guesses(rows, answer)[sample], features[answer][sample].float()
            with torch.no_grad():
                target_logits = F.linear(truth, table)
            logits = F.linear(guess, table)
        total, figures = loss(LossInputs(guess.float(), truth, logits.float(), target_logits.float()))
        return int(answer.sum()), {name: torch.tensor(value) for name, value in figures.items()}, total

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        matches = count = 0
        for start in range(0, len(setup.held_out), EVAL_BATCH_SIZE):
            rows = setup.held_out[start : start + EVAL_BATCH_SIZE]
            answer, target_tokens = (
                load_batch(setup.readings, rows)[3],
                pad_and_stack([setup.target_tokens(row) for row in rows]),
            )
            with half_precision(options.half):
                draft_tokens = setup.draft_vocabulary[F.linear(guesses(rows, answer), table).argmax(-1)]
            matches, count = matches + int((draft_tokens == target_tokens[answer]).sum()), count + len(draft_tokens)
        return {"agreement 1": matches / max(count, 1)}

    return setup.run(
        net,
        step_losses,
        measure,
        vocab_size=len(setup.teacher.lm_head),
        **draft_vocabulary_config(setup.draft_vocabulary, setup.teacher),
    )
