"""Training of Clover: each level on the target's feature and distribution, with the true tokens before it as input."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from workbench.methods.clover.drafter import CloverHeads
from workbench.methods.hydra.train import train_sequential_heads
from workbench.training.family.head_training import TrainingSetup, answer_continues, predicting_positions, shift_left
from workbench.training.family.options import ChatHeadOptions
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve

LOSS_DECAY = 0.7
"""Weight of a draft level's loss, relative to the loss of the previous level; from Clover-2's released code."""


@dataclass
class Options(ChatHeadOptions):
    """Options for training Clover's levels.

    Attributes:
        blocks: Number of levels.
        cond: Internal width of the layers.
        ffn: Width of the augmenting block's gated MLPs.
        augmenting: Layers of the augmenting block: 1 in Clover, 2 in Clover-2.
        mixes: Feed the newest token into the augmenting block, as Clover-2 does.
    """

    method: str = CloverHeads.kind
    loss: str = "smooth_l1:10+ce_soft:1"
    blocks: int = 5
    cond: int = 64
    ffn: int = 1024
    augmenting: int = 1
    mixes: bool = True


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train Clover's augmenting block, gates and recurrent step. The loss of level k has the weight 0.7^(k − 1).

    Source: Xiao et al. 2024, Clover-2, arXiv:2408.00264, §3 (knowledge distillation).
    """
    return train_sequential_heads(setup, guesses, LOSS_DECAY)


def guesses(
    net: CloverHeads, embedding: Tensor, ids: Tensor, features: Tensor, answer: Tensor, sample: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each draft level, the predicted and the true features at positions of answers.

    Args:
        net: Clover's net.
        embedding: the target's embedding of V tokens in width D, [V, D].
        ids: B padded dialogues of n tokens, int64 [B, n].
        features: the target's features, [B, n, D].
        answer: mask of the positions whose feature predicts a token of an answer, bool [B, n].
        sample: indices into the positions with at least one token to predict; None: all of these positions.
    """
    rows, positions = predicting_positions(answer, sample)
    state = net.head_inputs(features.float(), net.project(embedding[shift_left(ids, 1)]))[rows, positions]
    for level in range(net.blocks):
        token_inputs = net.project(embedding[shift_left(ids, level + 1)[rows, positions]])
        state, guess = net.step(state, token_inputs) if level else net.begin(state, token_inputs)
        in_answer = answer_continues(answer, level + 1)[rows, positions]
        if in_answer.any():
            yield guess[in_answer], shift_left(features, level + 1)[rows, positions][in_answer].float()
