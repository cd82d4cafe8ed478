"""Training of parallel heads, one per draft level; the draft tree is chosen by the accuracies of the heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.methods.common.trained_net import RANKS, LevelNet
from workbench.training.family.drafter import load_batch
from workbench.training.family.head_training import EVAL_BATCH_SIZE, TrainingSetup, draft_vocabulary_config, sum_losses
from workbench.training.heads.losses import LossInputs, WeightedLoss
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve

AnswerBatch = tuple[Int[Tensor, "B n"], Float[Tensor, "B n D"], Bool[Tensor, "B n"], Bool[Tensor, "B n"]]
"""Type of a batch of padded answers: token ids [B, n], features [B, n, D], positions before a text's last token [B, n],
and positions that predict a token of the answer [B, n]."""
Predict = Callable[
    [AnswerBatch, torch.Generator, int | None],
    Iterable[tuple[Float[Tensor, "N D"], Float[Tensor, "N W"], Float[Tensor, "N D"]]],
]
"""Type of a function (answers, random generator, largest number of positions or None) that computes predictions.

For each draft level it yields the predicted features, their logits over the draft vocabulary, and the target's features
at the same tokens.
"""


def train_levels(
    setup: TrainingSetup, net: LevelNet, levels: int, predict: Predict, label: str, weights: Callable[[int], float]
) -> tuple[RunResult, Curve]:
    """Train parallel heads, one per draft level, on the target's distributions.

    Args:
        setup: target, data and options.
        net: net with all heads.
        levels: number of draft levels.
        predict: function that computes the heads' predictions on a batch.
        label: name of a level's loss without the level's number.
        weights: function that returns the weight of a level's loss, by the level's index from 0.
    """
    options, teacher, loss = setup.options, setup.teacher, WeightedLoss.parse(setup.options.loss)

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        batch, losses = load_batch(setup.readings, rows), dict[str, Tensor]()
        with half_precision(options.half):
            for level, (guess, logits, truth) in enumerate(predict(batch, generator, options.places), 1):
                with torch.no_grad():
                    target_logits = F.linear(truth, setup.lm_head_rows)
                inputs = LossInputs(guess.float(), truth, logits.float(), target_logits.float())
                losses[f"{label} {level}"], _ = loss(inputs)
        answer = batch[-1]
        return int(answer.sum()), losses, sum_losses(weights(level) * x for level, x in enumerate(losses.values()))

    def predict_tokens(
        rows: list[int], generator: torch.Generator
    ) -> Iterable[tuple[Float[Tensor, "N W"], Int[Tensor, " N"]]]:
        for _, logits, truth in predict(load_batch(setup.readings, rows), generator, None):
            yield logits, teacher.greedy_tokens(truth)

    def measure() -> dict[str, float]:
        net.accuracy = measure_ranks(setup, levels, predict_tokens)
        return {f"agreement {level + 1}": row[0] for level, row in enumerate(net.accuracy)}

    facts: dict[str, Any] = {"vocab_size": len(teacher.lm_head)}
    facts |= draft_vocabulary_config(setup.draft_vocabulary, teacher)
    return setup.run(net, step_losses, measure, **facts)


@torch.inference_mode()
def measure_ranks(
    setup: TrainingSetup,
    levels: int,
    predict: Callable[[list[int], torch.Generator], Iterable[tuple[Float[Tensor, "N W"], Int[Tensor, " N"]]]],
) -> tuple[tuple[float, ...], ...]:
    """Return how often the r-th best token of each level is right (r = 1 … 10), on held-out answers: [K, 10].

    Args:
        setup: training setup with the held-out answers.
        levels: number of levels, K.
        predict: function (indices of stored answers, random generator) → for each level the logits over the draft
            vocabulary, [N, W], and the right tokens, [N].
    """
    hits = torch.zeros(levels, RANKS, device=setup.device)
    total, generator = hits.new_zeros(levels), torch.Generator().manual_seed(0)
    for start in range(0, len(setup.held_out), EVAL_BATCH_SIZE):
        with half_precision():
            rows = setup.held_out[start : start + EVAL_BATCH_SIZE]
            for level, (logits, tokens) in enumerate(predict(rows, generator)):
                top_tokens = setup.draft_vocabulary[logits.topk(RANKS, dim=-1).indices]
                hits[level] += (top_tokens == tokens[:, None]).float().sum(0)
                total[level] += len(tokens)
    shares = hits / total.clamp_min(1)[:, None]
    return tuple(tuple(round(share, 4) for share in row) for row in shares.tolist())
