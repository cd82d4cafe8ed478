"""Training of block diffusion drafters: on the target's distributions, in blocks that begin at positions of answers.

Each time an answer is used, new positions are sampled in it. At each sampled position begins a block of masked tokens.
In some blocks a part of the tokens stays visible, as when drafting takes several steps.
"""

# pyright: basic
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.block_diffusion.drafter import LONGEST, BlockNet
from workbench.training.family.fusing import check_capture_layers, choose_capture_layers, load_fusion_batch
from workbench.training.family.head_training import (
    TrainingSetup,
    answer_continues,
    build_seeded,
    draft_vocabulary_config,
)
from workbench.training.family.options import LayerOptions
from workbench.training.family.unrolled import Batch, train_drafts
from workbench.training.heads.trainer import init_weights
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve

DECAY = 4.0
"""Number of positions after which the weight of a token's loss has dropped to 1/e of the first token's. A block has 8
positions by default. The weights decrease because all drafted tokens after a wrong one are rejected."""
ANCHORS = 16
"""Maximum number of blocks sampled from a training answer each time it is used. The DFlash paper samples 512, from
texts of thousands of tokens."""
EVAL_ANCHORS = 48
PARTLY_VISIBLE_SHARE = 0.25
"""Share of the training blocks in which more tokens than the first are visible."""


@dataclass
class Options(LayerOptions):
    """Options for training block diffusion drafters.

    Attributes:
        block: Block size in positions, including the known token.
        layers: Number of the drafter's layers.
        taps: Target layers whose outputs are fused, counted from 1; none: a low, a middle and a high layer.
        cond: Width of the bottleneck (rank) of the linear map that fuses the target layers' outputs.
    """

    method: str = BlockNet.kind
    loss: str = "ce_soft:1"
    block: int = LONGEST
    layers: int = 2
    taps: tuple[int, ...] = ()
    cond: int = 64

    def capture_layers(self, layers: int) -> tuple[int, ...]:
        return choose_capture_layers(self, layers)


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train a block diffusion drafter on blocks that begin at sampled positions of answers.

    Source: Chen et al. 2026, DFlash, arXiv:2602.06036, §3 (from memory): blocks from sampled positions, and the
    decay of the weights within a block; partly visible blocks are from block diffusion (Arriola et al. 2025,
    arXiv:2503.09573, §3).

    Raises:
        ParameterError: the training data lacks the hidden states of a layer that the drafter is to fuse.
    """
    options, teacher = setup.options, setup.teacher
    taps, table = check_capture_layers(setup), setup.lm_head_rows

    def build_untrained() -> BlockNet:
        net = registry.heads()[options.method].build(table.shape[1], vars(options) | {"taps": taps})
        init_weights(net, teacher.last_norm)
        return net

    net = build_seeded(options.seed, build_untrained)

    def drafts(batch: Batch, generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        anchors, is_there = sample_anchors(batch.answer, generator)
        is_known = sample_visible(anchors.shape, net.block, generator).to(anchors.device)
        states = net.forward_blocks(load_fusion_batch(setup, batch.rows, taps), batch.embeds, anchors, is_known)
        for offset in range(1, net.block):
            mask = is_there & answer_continues(batch.answer, offset - 1).gather(1, anchors) & ~is_known[..., offset]
            yield states[:, :, offset][mask], predicting_positions(batch.flat_index, anchors + offset)[mask]

    weights = [math.exp(-offset / DECAY) for offset in range(net.block - 1)]
    return train_drafts(
        setup,
        net,
        drafts,
        lambda state: F.linear(state, table),
        [weight / sum(weights) for weight in weights],
        vocab_size=len(teacher.lm_head),
        **draft_vocabulary_config(setup.draft_vocabulary, teacher),
    )


def sample_anchors(
    answer: Bool[Tensor, "B n"], generator: torch.Generator | None
) -> tuple[Int[Tensor, "B A"], Bool[Tensor, "B A"]]:
    """Sample for each of B texts the A positions at which blocks begin.

    Args:
        answer: mask of the positions that may be sampled: those whose feature predicts a token of the answer.
        generator: random generator; None: the same positions at every call, for evaluation.

    Returns:
        The positions, and a mask of the valid ones. A text with fewer than A allowed positions has invalid entries.
    """
    limit = EVAL_ANCHORS if generator is None else ANCHORS
    noise = torch.rand(answer.shape, generator=generator or torch.Generator().manual_seed(0)).to(answer.device)
    top = noise.masked_fill(~answer, -1.0).topk(min(limit, int(answer.sum(1).max())), dim=1)
    return top.indices, top.values >= 0


def sample_visible(shape: Any, block: int, generator: torch.Generator | None) -> Bool[Tensor, "B A m"]:
    """Return a mask of the visible tokens of blocks: the first token, and in some blocks a share of the later ones.

    Args:
        shape: number of texts B and of blocks per text A.
        block: number m of positions per block.
        generator: random generator; None: only the first tokens are visible.
    """
    is_known = torch.zeros(*shape, block, dtype=torch.bool)
    if generator is not None:
        share = torch.rand(*shape, 1, generator=generator)
        has_more = torch.rand(*shape, 1, generator=generator) < PARTLY_VISIBLE_SHARE
        is_known = has_more & (torch.rand(is_known.shape, generator=generator) < share)
    is_known[..., 0] = True
    return is_known


def predicting_positions(flat_index: Int[Tensor, "B n"], positions: Int[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Return, for each token position, the index of the position before it, whose feature predicts the token.

    Args:
        flat_index: index of each position among the features of the batch.
        positions: positions of the tokens in their texts.
    """
    return flat_index.gather(1, (positions - 1).clamp_max(flat_index.shape[1] - 1))
