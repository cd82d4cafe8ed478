"""Training of Hydra's heads: each on the target's distribution after the true tokens that the head gets as input."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.drafters.hydra import SequentialHeads
from workbench.methods.drafters.medusa import RANKS
from workbench.training.family.drafter import load_batch
from workbench.training.family.head_training import (
    EVAL_BATCH_SIZE,
    TrainingSetup,
    answer_continues,
    build_seeded,
    draft_vocabulary_config,
    sample_indices,
    shift_left,
    sum_losses,
)
from workbench.training.heads.losses import LossInputs, WeightedLoss
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve

Guesses = Callable[..., Iterator[tuple[Tensor, Tensor]]]
"""Function like `guesses`, for heads that get tokens as input."""


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the heads; their losses are summed without weights, as in the paper.

    Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, §3 and §4 (distillation from the target's distribution).
    """
    return train_sequential_heads(setup, guesses)


def train_sequential_heads(setup: TrainingSetup, guesses: Guesses, loss_decay: float = 1.0) -> tuple[RunResult, Curve]:
    """Train heads that get tokens as input.

    Args:
        setup: training setup.
        guesses: yields the predicted and true features of each level.
        loss_decay: weight of a level's loss relative to the level before.
    """
    options, teacher = setup.options, setup.teacher
    table, loss = setup.lm_head_rows, WeightedLoss.parse(options.loss)
    net = build_seeded(options.seed, lambda: registry.heads()[options.method].build(table.shape[1], vars(options)))

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = load_batch(setup.readings, rows)
        sample = sample_indices(int(answer_continues(answer, 1).sum()), options.places, generator)
        losses: dict[str, Tensor] = {}
        with half_precision(options.half):
            for block, (guess, truth) in enumerate(guesses(net, teacher.embedding, ids, features, answer, sample)):
                with torch.no_grad():
                    target_logits = F.linear(truth, table)
                logits = F.linear(guess, table)
                total, _ = loss(LossInputs(guess.float(), truth, logits.float(), target_logits.float()))
                losses[f"head {block + 1}"] = total
        weighted = [loss_decay**block * total for block, total in enumerate(losses.values())]
        return int(answer.sum()), losses, sum_losses(weighted)

    def measure() -> dict[str, float]:
        net.accuracy = tuple(map(tuple, hit_rates(net, setup, table, guesses)))
        return {f"agreement {block + 1}": row[0] for block, row in enumerate(net.accuracy)}

    facts = {"vocab_size": len(teacher.lm_head), **draft_vocabulary_config(setup.draft_vocabulary, teacher)}
    return setup.run(net, step_losses, measure, **facts)


def guesses(
    net: SequentialHeads, embedding: Tensor, ids: Tensor, features: Tensor, answer: Tensor, sample: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield per head the predicted and the true features, at positions where both belong to one answer.

    Args:
        net: the heads.
        embedding: the target's embedding, [V, D].
        ids: padded dialogues, int64 [B, n].
        features: the target's features, [B, n, D].
        answer: positions whose feature predicts a token of the answer, bool [B, n].
        sample: indices into the positions that have a next answer token to predict; None: all.
    """
    indices = answer_continues(answer, 1).nonzero()
    indices = indices if sample is None else indices[sample]
    rows, positions = indices.unbind(1)
    states, token_inputs = net.head_inputs(features.float())[rows, positions], []
    for block in range(net.blocks):
        token_inputs.append(net.project(embedding[shift_left(ids, block + 1)[rows, positions]]))
        in_answer = answer_continues(answer, block + 1)[rows, positions]
        guess = net(states, torch.cat(token_inputs, 1), block)
        if in_answer.any():
            yield guess[in_answer], shift_left(features, block + 1)[rows, positions][in_answer].float()


@torch.inference_mode()
def hit_rates(net: SequentialHeads, setup: TrainingSetup, table: Tensor, guesses: Guesses) -> list[list[float]]:
    """Return how often the r-th best token of each head is the target's most probable one, r = 1 … 10: [K, 10]."""
    hits = torch.zeros(net.blocks, RANKS, device=table.device)
    total = hits.new_zeros(net.blocks)
    for start in range(0, len(setup.held_out), EVAL_BATCH_SIZE):
        ids, features, _, answer = load_batch(setup.readings, setup.held_out[start : start + EVAL_BATCH_SIZE])
        with half_precision():
            for block, (guess, truth) in enumerate(guesses(net, setup.teacher.embedding, ids, features, answer)):
                target_tokens = setup.teacher.greedy_tokens(truth)
                top_tokens = setup.draft_vocabulary[F.linear(guess, table).topk(RANKS, dim=-1).indices]
                hits[block] += (top_tokens == target_tokens[:, None]).float().sum(0)
                total[block] += len(target_tokens)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
