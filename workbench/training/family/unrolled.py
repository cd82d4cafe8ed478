"""How a layer learns from the target's laws, in drafts as it will meet them.

Behind the places of an answer drafts of some steps are made; the law of each step is held against the target's at the
place that it speaks of. A layer that reads its own states has them unrolled, with the true tokens in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.methods.drafters.feature_net import FeatureNet
from workbench.methods.drafters.trained import TrainedNet
from workbench.methods.drafters.unrolled import unroll
from workbench.training.family.drafter import Curve, beside, together
from workbench.training.family.lesson import HELD_ROWS, Course, on, some_of, still
from workbench.training.heads.losses import Places, Weighted
from workbench.training.loop import RunResult
from workbench.training.models import half_precision

Entering = Callable[[list[int], Tensor], Tensor]
"""(rows, features [B, n, D]) → what the target gives the layer at each place, float32 [B, n, F]."""


class Batch(NamedTuple):
    """Answers side by side, as drafts behind their places are made of them.

    Attributes:
        rows: which readings.
        ids: their tokens.
        embeds: of the target's input, at each token.
        features: the target's, at each token.
        answer: places whose feature decides a token of the answer.
        said: the target's likeliest token behind each of these places; −1 at others.
    """

    rows: list[int]
    ids: Int[Tensor, "B n"]
    embeds: Float[Tensor, "B n D"]
    features: Float[Tensor, "B n D"]
    answer: Bool[Tensor, "B n"]
    said: Int[Tensor, "B n"]

    @property
    def places(self) -> Int[Tensor, "B n"]:
        """The number of each place, counted through all answers."""
        return torch.arange(self.ids.numel(), device=self.ids.device).view_as(self.ids)


Drafts = Callable[[Batch, torch.Generator | None], Iterable[tuple[Tensor, Tensor]]]
"""(answers, chance, or None where all that there is is measured) → of each step of the drafts behind their places the
states [N, D], and the numbers [N] of the places where the target says what they are to say."""


def train_unrolled(
    course: Course,
    net: FeatureNet,
    entering: Entering,
    logits: Callable[[Tensor], Tensor],
    shares: list[float],
    **facts: Any,
) -> tuple[RunResult, Curve]:
    """Train a layer that reads its own states by as many steps of a draft as there are shares.

    Args:
        course: who is taught by whom, and on what.
        net: the layer.
        entering: what the target gives it.
        logits: of the tokens that it can draft, behind its states.
        shares: weight of each step's loss.
        facts: more for the configuration.
    """

    def drafts(batch: Batch, _: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        given = entering(batch.rows, batch.features)
        for step, (state, use) in enumerate(steps(net, batch.embeds, given, batch.answer, len(shares))):
            yield state[use], on(batch.places, step + 1)[:, :-1][use]

    return train_drafts(course, net, drafts, logits, shares, **facts)


def train_drafts(
    course: Course,
    net: TrainedNet,
    drafts: Drafts,
    logits: Callable[[Tensor], Tensor],
    shares: list[float],
    on_progress: Callable[[float], None] = lambda _: None,
    **facts: Any,
) -> tuple[RunResult, Curve]:
    """Train a drafter by drafts behind the places of answers.

    A place counts where the target's likeliest token is one that can be drafted; the mean is over those that count, so
    that how many they are does not change how fast it learns.

    Args:
        course: who is taught by whom, and on what.
        net: the drafter.
        drafts: its states, and what they are held against.
        logits: of the tokens that it can draft, behind its states.
        shares: weight of each step's loss.
        on_progress: is told before each step of training what share of the run is over.
        facts: more for the configuration.
    """
    options, teacher, loss = course.options, course.teacher, Weighted.parse(course.options.loss)

    def read(rows: list[int]) -> Batch:
        ids, features, _, answer = together(course.readings, rows)
        return Batch(rows, ids, teacher.embedding[ids], features, answer, beside([course.said(row) for row in rows]))

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        batch, named, total = read(rows), dict[str, Tensor](), torch.zeros((), device=course.device)
        with half_precision(options.half):
            for step, (state, at) in enumerate(drafts(batch, generator)):
                some = some_of(len(state), options.places, generator)
                some = some[torch.isin(batch.said.flatten()[at[some]], course.kept).to(some.device)]
                if len(some):
                    guess, truth = state[some], batch.features.flatten(0, 1)[at[some]].float()
                    wanted = teacher.logits(truth, course.table)
                    found, _ = loss(Places(guess.float(), truth, logits(guess).float(), wanted))
                    named[f"step {step + 1}"] = found
                    total = total + shares[step] * found
        return int(batch.answer.sum()), named, total

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        right, count = torch.zeros(2, len(shares), device=course.device)
        for start in range(0, len(course.held), HELD_ROWS):
            batch = read(course.held[start : start + HELD_ROWS])
            with half_precision(options.half):
                for step, (state, at) in enumerate(drafts(batch, None)):
                    right[step] += (course.kept[logits(state).argmax(-1)] == batch.said.flatten()[at]).sum()
                    count[step] += len(at)
        return {f"agreement {i + 1}": share for i, share in enumerate((right / count.clamp_min(1)).tolist())}

    return course.run(net, step_losses, measure, on_progress, **facts)


def steps(
    net: FeatureNet, embeds: Float[Tensor, "B n D"], given: Float[Tensor, "B n F"], answer: Bool[Tensor, "B n"], n: int
) -> Iterator[tuple[Float[Tensor, "B m D"], Bool[Tensor, "B m"]]]:
    """Of each step of a draft the states behind all pairs, m = n − 1, and where a token of an answer follows.

    The state of step i behind the pair at s guesses the token at s + 2 + i, which the feature at s + 1 + i decides.
    """
    for step, state in enumerate(unroll(net, lambda step: on(embeds, step + 1)[:, :-1], given[:, :-1], n)):
        yield state, still(on(answer, 1), step)[:, :-1]
