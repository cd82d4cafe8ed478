"""Training of Falcon's drafter: on features and distributions, with some of the answers shown as inputs (glancing).

The later positions of a block cannot see its earlier tokens, so one prediction cannot be right for all of these. So
each text is processed twice. The first pass counts wrong predictions. In the second, some blocks get at their start the
answer in place of their input, as context for the rest of the block. Their number is a share of the wrong predictions;
the share decreases during training, since drafting has no such answers.

    input        f(s), e(s + 1)            f(s + 1), e(s + 2)     …
    glancing     f(s + k), e(s + k + 1)    f(s + 1), e(s + 2)     …        and f̂(s + k) has no loss
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.drafters.falcon import FalconNet
from workbench.training.family.drafter import Curve
from workbench.training.family.head_training import TrainingSetup, begun, keeping, on
from workbench.training.family.unrolled import Batch, train_drafts
from workbench.training.heads.trainer import begin_at
from workbench.training.loop import RunResult

FALLS_TO = 0.10 / 0.45
"""Glancing share at the end of training relative to its start, as in the released code."""


def train(course: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the layer and its LSTM on texts that are cut into blocks, at other positions in every step.

    Noise on the input features is EAGLE's: in drafting they are predictions from the second block of a draft on.

    Source: Gao et al. 2024, Falcon, arXiv:2412.12639, §3 (coupled sequential glancing distillation).
    """
    options, teacher = course.options, course.teacher
    table, progress = course.table, 0.0

    def fresh() -> FalconNet:
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        begin_at(net, teacher.last_norm)
        return net

    net = begun(options.seed, fresh)
    k = net.block

    def logits(state: Tensor) -> Tensor:
        return F.linear(net.lm_head_input(state), table)

    def on_progress(share: float) -> None:
        nonlocal progress
        progress = share

    def drafts(batch: Batch, generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        features, cut = batch.features.float(), 0
        if generator is not None:
            cut = int(torch.randint(k, (), generator=generator))
            features = features + noise(features, options.noise, generator)
        n = features.shape[1] - 1 - cut  # number of pairs; blocks are counted from the last
        places = torch.arange(n, device=features.device)
        entering, ahead = ((on(batch.embeds, 1 + far)[:, :n], on(features, far)[:, :n]) for far in (0, k))
        use = (on(batch.answer, k) & on(batch.answer, k - 1))[:, :n]  # its first token was the target's own
        at = k - 1 - (n - 1 - places) % k  # position in its block, from 0
        if generator is not None and options.glance:
            with torch.no_grad():
                wrong = use.clone()
                said = course.kept[logits(net(net.pairs(*entering), places)[use]).argmax(-1)]
                wrong[use] = said != on(batch.ids, k + 1)[:, :n][use]
            is_shown = shown(wrong, use & (at == 0), options.glance * (1 - progress * (1 - FALLS_TO)), generator)
            entering = [torch.where(is_shown.unsqueeze(-1), *both) for both in zip(ahead, entering, strict=True)]
            use = use & ~is_shown
        states, decided = net(net.pairs(*entering), places), on(batch.places, k)[:, :n]
        for place in range(k):
            asked = use & (at == place)
            yield states[asked], decided[asked]

    shares = [1 / k] * k
    facts = {"vocab_size": len(teacher.head)} | keeping(course.kept, teacher)
    return train_drafts(course, net, drafts, logits, shares, on_progress, **facts)


def noise(features: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return uniform noise, up to a share of the features' standard deviation."""
    chance = torch.rand(features.shape, generator=generator).to(features.device)
    return (2 * chance - 1) * share * features.std()


def shown(
    wrong: Bool[Tensor, "B n"], starts: Bool[Tensor, "B n"], share: float, generator: torch.Generator
) -> Bool[Tensor, "B n"]:
    """Choose the positions that get their answer as input: per text, a share of the number of wrong predictions.

    At most the same share of the candidates is chosen; otherwise none of them would have a loss while all predictions
    are wrong.

    Args:
        wrong: positions with wrong predictions.
        starts: candidates to sample from: starts of blocks.
        share: λ.
        generator: random generator.
    """
    chance = torch.rand(wrong.shape, generator=generator).to(wrong.device).masked_fill(~starts, -1.0)
    order = chance.argsort(1, descending=True).argsort(1)
    most = torch.minimum(wrong.sum(1, keepdim=True), starts.sum(1, keepdim=True))
    return starts & (order < (share * most).round())
