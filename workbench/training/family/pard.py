"""How PARD's drafter learns: from laws alone, in drafts of masks behind the places of a text, most of them dropped.

The mask i places behind a pair is one more token to run, so whole drafts behind every place would cost as many passes
as they have tokens. What is dropped of a step is dropped of all later ones (the conditional drop of tokens): a mask
that stays sees all the masks that it will see in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.drafters.pard import PARDNet
from workbench.training.family.drafter import Curve
from workbench.training.family.lesson import Course, begun, keeping, on, some_of, still
from workbench.training.family.unrolled import Batch, train_drafts
from workbench.training.heads.trainer import begin_at
from workbench.training.loop import RunResult

GOES_ON = True
"""From a finished layer of EAGLE's: it is the same one, to which the mask is new, as PARD makes of a draft model."""
RETAINED, LEAST = 0.7, 0.2
"""Of the drafts, the share that have one more mask than those before, and the least share, as released."""


def train(course: Course) -> tuple[RunResult, Curve]:
    """Train layer and mask in drafts of `ahead` tokens. Each place that stays weighs the same, of whatever step it is.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.2 (conditional drop of tokens; it begins with a trained drafter).
    """
    options, teacher = course.options, course.teacher
    table = course.table

    def fresh() -> PARDNet:
        if course.finished is not None:
            net = PARDNet(**course.finished.sizes)
            net.load_state_dict(net.state_dict() | course.finished.state_dict())
            return net
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        begin_at(net, teacher.last_norm)
        return net

    net = begun(options.seed, fresh)

    def drafts(batch: Batch, generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        follows = [still(on(batch.answer, 1), step)[:, :-1] for step in range(options.ahead)]
        columns = retained([follow.any(0) for follow in follows], generator)
        states = net.drafts(on(batch.embeds, 1)[:, :-1], batch.features[:, :-1].float(), columns)
        for step, (state, asked) in enumerate(zip(states, columns, strict=True)):
            use = follows[step][:, asked]
            yield state[use], on(batch.places, step + 1)[:, :-1][:, asked][use]

    shares = [max(RETAINED**step, LEAST) for step in range(options.ahead)]
    return train_drafts(
        course,
        net,
        drafts,
        lambda state: F.linear(net.said(state), table),
        [share / sum(shares) for share in shares],
        vocab_size=len(teacher.head),
        **keeping(course.kept, teacher),
    )


def retained(follows: Sequence[Bool[Tensor, " n"]], generator: torch.Generator | None) -> list[Int[Tensor, " _"]]:
    """Behind which pairs of a text each step of a draft is asked for: step 0 behind all, later ones behind ever fewer.

    Args:
        follows: of each step, behind which pairs it has a token to guess. What has none is dropped first: behind the
            end nothing is right, and the released code's last places come out at the text's beginning.
        generator: drops by chance; None: no more is dropped.
    """
    columns = [torch.arange(len(follows[0]), device=follows[0].device)]
    for step, follow in enumerate(follows[1:], 1):
        there = columns[-1][follow[columns[-1]]]
        if generator is not None:
            most = round(int(follows[0].sum()) * max(RETAINED**step, LEAST))
            there = there[some_of(len(there), most, generator)].sort().values
        columns.append(there)
    return columns
