"""Training of Hydra's heads: each on the target's distribution after the true tokens that the head gets as input."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.hydra.drafter import HydraHeads, SequentialHeads
from workbench.training.family.head_training import (
    TrainingSetup,
    answer_continues,
    build_seeded,
    predicting_positions,
    sample_indices,
    shift_left,
)
from workbench.training.family.levels import AnswerBatch, train_levels
from workbench.training.family.options import ChatHeadOptions
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve


@dataclass
class Options(ChatHeadOptions):
    """Options for training Hydra's heads.

    Attributes:
        blocks: Number of heads.
        cond: Width of the token vectors.
    """

    method: str = HydraHeads.kind
    loss: str = "ce_soft:1"
    blocks: int = 4
    cond: int = 64


Guesses = Callable[..., Iterator[tuple[Tensor, Tensor]]]
"""Type of functions that yield predicted and true features of each draft level, for heads that get tokens as input."""


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train Hydra's heads. The loss is the unweighted sum of the heads' losses, as in the paper.

    Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, §3 and §4 (distillation from the target's distribution).
    """
    return train_sequential_heads(setup, guesses)


def train_sequential_heads(setup: TrainingSetup, guesses: Guesses, loss_decay: float = 1.0) -> tuple[RunResult, Curve]:
    """Train heads that read the tokens before the one they predict, such as Hydra's.

    Args:
        setup: training setup.
        guesses: function that yields the predicted and the true features of each level.
        loss_decay: ratio of the weight of a level's loss to the weight of the loss of the level before.
    """
    options, table, embedding = setup.options, setup.lm_head_rows, setup.teacher.embedding
    net = build_seeded(options.seed, lambda: registry.heads()[options.method].build(table.shape[1], vars(options)))

    def predict(
        batch: AnswerBatch, generator: torch.Generator, places: int | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        ids, features, _, answer = batch
        n_positions = int(answer_continues(answer, 1).sum())
        sample = None if places is None else sample_indices(n_positions, places, generator)
        for guess, truth in guesses(net, embedding, ids, features, answer, sample):
            yield guess, F.linear(guess, table), truth

    return train_levels(setup, net, net.blocks, predict, "head", lambda level: loss_decay**level)


def guesses(
    net: SequentialHeads, embedding: Tensor, ids: Tensor, features: Tensor, answer: Tensor, sample: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each head, the features that it predicts and the true features, at positions within one answer.

    Args:
        net: the heads.
        embedding: the target's embedding of V tokens in width D, [V, D].
        ids: B padded dialogues of n tokens, int64 [B, n].
        features: the target's features, [B, n, D].
        answer: positions whose feature predicts a token of the answer, bool [B, n].
        sample: indices into the positions that have a next answer token to predict; None: all.
    """
    rows, positions = predicting_positions(answer, sample)
    states, token_inputs = net.head_inputs(features.float())[rows, positions], []
    for block in range(net.blocks):
        token_inputs.append(net.project(embedding[shift_left(ids, block + 1)[rows, positions]]))
        in_answer = answer_continues(answer, block + 1)[rows, positions]
        guess = net(states, torch.cat(token_inputs, 1), block)
        if in_answer.any():
            yield guess[in_answer], shift_left(features, block + 1)[rows, positions][in_answer].float()
