"""Training of PARD's drafter: on distributions alone, in drafts of mask tokens, most of which are dropped.

Drafts of mask tokens follow the positions of a text. Each mask is one more token to process, so full drafts after every
position would multiply the cost by the draft length. If a step's mask is dropped, the masks of all later steps of the
draft are dropped, too (conditional drop of tokens). So each remaining mask attends to all masks to which it will attend
in drafting.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.pard.drafter import PARDNet
from workbench.training.family.head_training import (
    TrainingSetup,
    answer_continues,
    build_seeded,
    draft_vocabulary_config,
    sample_indices,
    shift_left,
)
from workbench.training.family.options import LayerOptions
from workbench.training.family.unrolled import Batch, train_drafts
from workbench.training.heads.trainer import init_weights
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve


@dataclass
class Options(LayerOptions):
    """Options for training PARD's drafter.

    Attributes:
        ahead: Number of tokens per draft.
    """

    method: str = PARDNet.kind
    loss: str = "ce_soft:1"
    ahead: int = 6
    starts_from_eagle: ClassVar[bool] = True
    """Whether training may start from a trained EAGLE layer: yes, because PARD's layer has the same shape. Only the
    mask embedding is new."""


RETENTION, MIN_RETENTION = 0.7, 0.2
"""Share of the drafts in which the mask token of the next step is retained, and minimum of the share over all steps,
as in PARD's released code."""


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train PARD's layer and mask embedding in drafts of `ahead` tokens. Each retained position has the same weight.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.2 (conditional drop of tokens; start from a trained drafter).
    """
    options, teacher = setup.options, setup.teacher
    table = setup.lm_head_rows

    def build_untrained() -> PARDNet:
        if setup.start_layer is not None:
            net = PARDNet(**setup.start_layer.sizes)
            net.load_state_dict(net.state_dict() | setup.start_layer.state_dict())
            return net
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        init_weights(net, teacher.last_norm)
        return net

    net = build_seeded(options.seed, build_untrained)

    def drafts(batch: Batch, generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        follows = [answer_continues(shift_left(batch.answer, 1), step)[:, :-1] for step in range(options.ahead)]
        columns = sample_retained([follow.any(0) for follow in follows], generator)
        states = net.forward_drafts(shift_left(batch.embeds, 1)[:, :-1], batch.features[:, :-1].float(), columns)
        for step, (state, pairs) in enumerate(zip(states, columns, strict=True)):
            mask = follows[step][:, pairs]
            yield state[mask], shift_left(batch.flat_index, step + 1)[:, :-1][:, pairs][mask]

    shares = [max(RETENTION**step, MIN_RETENTION) for step in range(options.ahead)]
    return train_drafts(
        setup,
        net,
        drafts,
        lambda state: F.linear(net.lm_head_input(state), table),
        [share / sum(shares) for share in shares],
        vocab_size=len(teacher.lm_head),
        **draft_vocabulary_config(setup.draft_vocabulary, teacher),
    )


def sample_retained(
    follows: Sequence[Bool[Tensor, " n"]], generator: torch.Generator | None
) -> list[Int[Tensor, " _"]]:
    """Choose the pairs of a text after which each draft step is computed in training: all pairs for step 0, then fewer.

    Args:
        follows: for each step, whether a pair has a token to predict in that step. Pairs without such a token are
            dropped first, because after the end of a text no token is correct. The released code wraps around to the
            start of the text instead.
        generator: random generator that draws further pairs to drop; None: no further pairs are dropped.
    """
    columns = [torch.arange(len(follows[0]), device=follows[0].device)]
    for step, follow in enumerate(follows[1:], 1):
        remaining = columns[-1][follow[columns[-1]]]
        if generator is not None:
            limit = round(int(follows[0].sum()) * max(RETENTION**step, MIN_RETENTION))
            remaining = remaining[sample_indices(len(remaining), limit, generator)].sort().values
        columns.append(remaining)
    return columns
