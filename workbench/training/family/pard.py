"""How PARD learns: all places of a draft at once, of which later ones are read ever more seldom."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.methods.drafters.medusa import RANKS
from workbench.methods.drafters.pard import PardNet
from workbench.training.family.drafter import Curve, Teacher, together
from workbench.training.family.lesson import HELD_ROWS, Course, begun, keeping, on, some_of, still
from workbench.training.heads.losses import Places, Weighted
from workbench.training.heads.trainer import begin_at
from workbench.training.loop import RunResult
from workbench.training.models import half_precision

RATE, LEAST = 0.7, 0.2
"""Of the columns that have a mask so many have the next one, too, but never fewer than this share of all."""


def train(course: Course) -> tuple[RunResult, Curve]:
    """Train layer and mask; the loss is the mean over all places that are read, whichever mask they are.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.2 (the loss), §3.3 (conditional drop).
    """
    options, teacher = course.options, course.teacher
    table, loss = teacher.head[course.kept], Weighted.parse(options.loss)
    net = begun(options.seed, lambda: fresh(options, table.shape[1]))

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = together(course.readings, rows)
        named, total, count = dict[str, Tensor](), torch.zeros(()), 0
        with half_precision(options.half):
            kept = dropped(columns_of(answer), net.blocks - 1, generator)
            for step, (guess, truth) in enumerate(guesses(net, teacher, ids, features, answer, kept)):
                some = some_of(len(guess), options.places, generator)
                if not len(some):
                    break
                with torch.no_grad():
                    wanted = F.linear(truth[some].float(), table)
                logits = F.linear(guess[some], table)
                found, _ = loss(Places(guess[some].float(), truth[some].float(), logits.float(), wanted.float()))
                named[f"token {step + 1}"] = found
                total, count = total + len(guess) * found, count + len(guess)
        return int(answer.sum()), named, total / max(count, 1)

    def measure() -> dict[str, float]:
        net.accuracy = tuple(map(tuple, hit_rates(net, course, table)))
        return {f"agreement {place + 1}": row[0] for place, row in enumerate(net.accuracy)}

    return course.run(net, step_losses, measure, vocab_size=len(teacher.head), **keeping(course.kept, teacher))


def fresh(options: Any, width: int) -> PardNet:
    """A net for a target's hidden size."""
    net = PardNet(width, options.blocks, ffn=options.ffn)
    begin_at(net, None)
    return net


def columns_of(answer: Bool[Tensor, "B n"]) -> Int[Tensor, " m"]:
    """Columns behind whose pair a token of some answer is to be guessed."""
    return on(answer, 1)[:, :-1].any(0).nonzero().flatten()


def dropped(
    columns: Int[Tensor, " m"], masks: int, generator: torch.Generator, rate: float = RATE, least: float = LEAST
) -> list[Tensor]:
    """Conditional drop: of each mask the columns where it is read [k], a random part of those of the one before it.

    So that whatever is read finds all that it sees; nothing is taken from one end of a text to the other.

    Args:
        columns: that have a pair.
        masks: behind each, at most.
        generator: of the chance.
        rate: share of the columns that go on.
        least: but never fewer than this share of all.
    """
    found: list[Tensor] = []
    for i in range(1, masks + 1):
        n = int(len(columns) * max(rate**i, least))
        last = found[-1] if found else columns
        found.append(last[torch.randperm(len(last), generator=generator)[:n]].sort().values)
    return found


def guesses(
    net: PardNet, teacher: Teacher, ids: Tensor, features: Tensor, answer: Tensor, kept: list[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Of the pairs and of each mask its guesses at features and the true ones, [N, D], where these decide a token.

    The guess of the i-th mask behind the pair at s is of the feature at s + 1 + i, which decides the token behind it.
    """
    following = teacher.embedding[on(ids, 1)[:, :-1]]
    pairs = net.pairs(following, features[:, :-1].float())
    found: list[tuple[Tensor, Tensor]] = []
    everywhere = torch.arange(pairs.shape[1], device=ids.device)
    for step, guess in enumerate(net.unroll(pairs, kept)):
        columns = everywhere if step == 0 else kept[step - 1]
        use = still(on(answer, 1), step)[:, columns]
        found.append((guess[use], on(features, step + 1)[:, columns][use]))
    return found


@torch.inference_mode()
def hit_rates(net: PardNet, course: Course, table: Tensor) -> list[list[float]]:
    """How often the r-th best token of each place is what the target finds likeliest, r = 1 … 10: [K, 10]."""
    hits, total = torch.zeros(net.blocks, RANKS), torch.zeros(net.blocks)
    for start in range(0, len(course.held), HELD_ROWS):
        ids, features, _, answer = together(course.readings, course.held[start : start + HELD_ROWS])
        with half_precision():
            every = [columns_of(answer)] * (net.blocks - 1)
            for place, (guess, truth) in enumerate(guesses(net, course.teacher, ids, features, answer, every)):
                theirs = torch.cat([course.teacher.logits(part).argmax(-1) for part in truth.split(512)])
                best = course.kept[F.linear(guess, table).topk(RANKS, dim=-1).indices]
                hits[place] += (best == theirs[:, None]).float().sum(0)
                total[place] += len(theirs)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
