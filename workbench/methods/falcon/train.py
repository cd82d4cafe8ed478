"""Training of Falcon's drafter: on features and distributions, with some correct tokens as inputs (glancing).

The tokens of a predicted block are not known when the block is predicted, so the prediction of a later token cannot
depend on them. Therefore each text is processed twice. The first pass counts wrong predictions. In the second pass,
some blocks get the correct answer as their first input: the pair of feature and token that this position should
predict. It is context for the rest of the block. The number of these blocks is a share of the number of wrong
predictions. The share decreases during training, because the answers are not available in drafting.

    input        f(s), e(s + 1)            f(s + 1), e(s + 2)     …
    glancing     f(s + k), e(s + k + 1)    f(s + 1), e(s + 2)     …        and f̂(s + k) has no loss
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.falcon.drafter import FalconNet
from workbench.training.family.head_training import TrainingSetup, build_seeded, draft_vocabulary_config, shift_left
from workbench.training.family.options import LayerOptions
from workbench.training.family.unrolled import Batch, train_drafts
from workbench.training.heads.trainer import init_weights
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve

FINAL_GLANCE_RATIO = 0.10 / 0.45
"""Glancing rate at the end of training, divided by the rate at the start, as in Falcon's released code. Glancing
gives some blocks the correct answer as their first input."""


@dataclass
class Options(LayerOptions):
    """Options for training Falcon's drafter.

    Attributes:
        cond: State size of the LSTM; 0: a third of the target's hidden size.
        block: Block size in positions.
        glance: Glancing rate: number of randomly chosen blocks that get the correct answer as their first
            input, relative to the number of wrong predictions. It decreases to 2/9 of this value during training.
        noise: Uniform noise on the input features, as a share of their standard deviation.
    """

    method: str = FalconNet.kind
    loss: str = "smooth_l1:10+forward_kl:0.9+ce_hard:0.1"
    cond: int = 0
    block: int = 2
    glance: float = 0.45
    noise: float = 0.1


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train Falcon's layer and its LSTM on texts that are cut into blocks, at different positions in every step.

    Noise is added to the input features, as in EAGLE, because from the second block of a draft on these are
    predictions.

    Source: Gao et al. 2024, Falcon, arXiv:2412.12639, §3 (coupled sequential glancing distillation).
    """
    options, teacher = setup.options, setup.teacher
    table, progress = setup.lm_head_rows, 0.0

    def build_untrained() -> FalconNet:
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        init_weights(net, teacher.last_norm)
        return net

    net = build_seeded(options.seed, build_untrained)
    block_size = net.block

    def logits(state: Tensor) -> Tensor:
        return F.linear(net.lm_head_input(state), table)

    def on_progress(share: float) -> None:
        nonlocal progress
        progress = share

    def drafts(batch: Batch, generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        features, offset = batch.features.float(), 0
        if generator is not None:
            offset = int(torch.randint(block_size, (), generator=generator))
            features = features + noise(features, options.noise, generator)
        n = features.shape[1] - 1 - offset  # number of pairs; blocks are counted from the last
        positions = torch.arange(n, device=features.device)
        inputs, ahead = (
            (shift_left(batch.embeds, 1 + far)[:, :n], shift_left(features, far)[:, :n]) for far in (0, block_size)
        )
        # without the first token of an answer, which is the target's own
        is_used = (shift_left(batch.answer, block_size) & shift_left(batch.answer, block_size - 1))[:, :n]
        block_offset = block_size - 1 - (n - 1 - positions) % block_size  # position in its block, from 0
        if generator is not None and options.glance:
            with torch.no_grad():
                wrong = is_used.clone()
                tokens = setup.draft_vocabulary[logits(net(net.make_pairs(*inputs), positions)[is_used]).argmax(-1)]
                wrong[is_used] = tokens != shift_left(batch.ids, block_size + 1)[:, :n][is_used]
            has_answer = sample_glanced(
                wrong,
                is_used & (block_offset == 0),
                options.glance * (1 - progress * (1 - FINAL_GLANCE_RATIO)),
                generator,
            )
            inputs = [torch.where(has_answer.unsqueeze(-1), *pair) for pair in zip(ahead, inputs, strict=True)]
            is_used = is_used & ~has_answer
        states, target_index = net(net.make_pairs(*inputs), positions), shift_left(batch.flat_index, block_size)[:, :n]
        for j in range(block_size):
            mask = is_used & (block_offset == j)
            yield states[mask], target_index[mask]

    shares = [1 / block_size] * block_size
    facts = {"vocab_size": len(teacher.lm_head)} | draft_vocabulary_config(setup.draft_vocabulary, teacher)
    return train_drafts(setup, net, drafts, logits, shares, on_progress, **facts)


def noise(features: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return uniform noise in the shape of the features, at most ± `share` times their standard deviation."""
    values = torch.rand(features.shape, generator=generator).to(features.device)
    return (2 * values - 1) * share * features.std()


def sample_glanced(
    wrong: Bool[Tensor, "B n"], starts: Bool[Tensor, "B n"], share: float, generator: torch.Generator
) -> Bool[Tensor, "B n"]:
    """Return a mask of the positions, sampled from the starts of blocks, that get the correct answer as input.

    Their number per text is `share` times the number of wrong predictions, but at most `share` times the number of
    candidates. Otherwise, while all predictions are wrong, every candidate would be chosen and none would have a loss.

    Args:
        wrong: mask of the positions with wrong predictions.
        starts: mask of the candidates: starts of blocks that have a loss.
        share: glancing rate λ.
        generator: random generator.
    """
    scores = torch.rand(wrong.shape, generator=generator).to(wrong.device).masked_fill(~starts, -1.0)
    order = scores.argsort(1, descending=True).argsort(1)
    limit = torch.minimum(wrong.sum(1, keepdim=True), starts.sum(1, keepdim=True))
    return starts & (order < (share * limit).round())
