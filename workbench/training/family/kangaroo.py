"""Training of Kangaroo's adapter: after an early exit it should predict the target's final output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.methods.drafters.kangaroo import ExitAdapter
from workbench.training.family.drafter import Curve, beside, together
from workbench.training.family.head_training import HELD_ROWS, TrainingSetup, begun, keeping, some_of
from workbench.training.heads.losses import Places, Weighted
from workbench.training.heads.trainer import begin_at
from workbench.training.loop import RunResult
from workbench.training.models import half_precision


def taps_of(options: Any, layers: int) -> tuple[int, ...]:
    """Return the layer whose output the adapter reads."""
    return (options.exit_layer,)


def train(course: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the adapter.

    Source: Liu et al. 2024, Kangaroo, arXiv:2404.18911, §3.1.

    Raises:
        ParameterError: the readings have no hidden states of the exit layer.
    """
    options, table, taps = course.options, course.table, course.readings.facts["taps"]
    if options.exit_layer not in taps:
        raise ParameterError(
            f"{options.readings} holds nothing of layer {options.exit_layer}.",
            f"Make readings with taps={options.exit_layer} in another folder"
            + (f", or give exit_layer among {taps}." if taps else "."),
        )
    loss = Weighted.parse(options.loss)

    def fresh() -> ExitAdapter:
        net = ExitAdapter(table.shape[1], options.heads, options.exit_layer)
        begin_at(net, course.teacher.last_norm)
        return net

    net = begun(options.seed, fresh)

    def guesses(rows: list[int], decide: Tensor) -> Tensor:
        exits = beside([course.readings.stream(f"tap-{options.exit_layer}", row) for row in rows])
        return net(exits.float(), torch.arange(exits.shape[1], device=exits.device))[decide]

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        _, features, _, answer = together(course.readings, rows)
        sample = some_of(int(answer.sum()), options.places, generator)
        with half_precision(options.half):
            guess, truth = guesses(rows, answer)[sample], features[answer][sample].float()
            with torch.no_grad():
                target_logits = F.linear(truth, table)
            logits = F.linear(guess, table)
        total, figures = loss(Places(guess.float(), truth, logits.float(), target_logits.float()))
        return int(answer.sum()), {name: torch.tensor(value) for name, value in figures.items()}, total

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        matches = count = 0
        for start in range(0, len(course.held), HELD_ROWS):
            rows = course.held[start : start + HELD_ROWS]
            answer, target_tokens = together(course.readings, rows)[3], beside([course.said(row) for row in rows])
            with half_precision(options.half):
                draft_tokens = course.kept[F.linear(guesses(rows, answer), table).argmax(-1)]
            matches, count = matches + int((draft_tokens == target_tokens[answer]).sum()), count + len(draft_tokens)
        return {"agreement 1": matches / max(count, 1)}

    return course.run(
        net, step_losses, measure, vocab_size=len(course.teacher.head), **keeping(course.kept, course.teacher)
    )
