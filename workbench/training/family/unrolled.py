"""Training on the target's distributions in multi-step drafts, as in real drafting.

Drafts of some steps are computed after the positions of an answer; the distribution of each step is compared with the
target's for the same token. A layer that reads its own states is unrolled over them, with the true tokens as input.
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
from workbench.training.family.head_training import HELD_ROWS, TrainingSetup, on, some_of, still
from workbench.training.heads.losses import Places, Weighted
from workbench.training.loop import RunResult
from workbench.training.models import half_precision

Entering = Callable[[list[int], Tensor], Tensor]
"""(rows, features [B, n, D]) → the target's input to the layer at each position, float32 [B, n, F]."""


class Batch(NamedTuple):
    """Padded answers, the data for drafts after their positions.

    Attributes:
        rows: indices of the readings.
        ids: token ids.
        embeds: the target's input embeddings of the tokens.
        features: the target's features at the tokens.
        answer: positions whose feature predicts a token of the answer.
        said: the target's most probable next token at each of these positions; −1 at others.
    """

    rows: list[int]
    ids: Int[Tensor, "B n"]
    embeds: Float[Tensor, "B n D"]
    features: Float[Tensor, "B n D"]
    answer: Bool[Tensor, "B n"]
    said: Int[Tensor, "B n"]

    @property
    def places(self) -> Int[Tensor, "B n"]:
        """Index of each position, counted through all answers."""
        return torch.arange(self.ids.numel(), device=self.ids.device).view_as(self.ids)


Drafts = Callable[[Batch, torch.Generator | None], Iterable[tuple[Tensor, Tensor]]]
"""(answers, random generator, or None to use all positions for measuring) → per step of the drafts the states [N, D],
and the indices [N] of the positions with the target's distribution for the same tokens."""


def train_unrolled(
    course: TrainingSetup,
    net: FeatureNet,
    entering: Entering,
    logits: Callable[[Tensor], Tensor],
    shares: list[float],
    **facts: Any,
) -> tuple[RunResult, Curve]:
    """Train a layer that reads its own states over as many draft steps as there are shares.

    Args:
        course: training setup.
        net: the layer.
        entering: returns the target's input to the layer.
        logits: computes logits over the draft vocabulary from the layer's states.
        shares: weight of each step's loss.
        facts: further entries of the configuration.
    """

    def drafts(batch: Batch, _: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        inputs = entering(batch.rows, batch.features)
        for step, (state, mask) in enumerate(steps(net, batch.embeds, inputs, batch.answer, len(shares))):
            yield state[mask], on(batch.places, step + 1)[:, :-1][mask]

    return train_drafts(course, net, drafts, logits, shares, **facts)


def train_drafts(
    course: TrainingSetup,
    net: TrainedNet,
    drafts: Drafts,
    logits: Callable[[Tensor], Tensor],
    shares: list[float],
    on_progress: Callable[[float], None] = lambda _: None,
    **facts: Any,
) -> tuple[RunResult, Curve]:
    """Train a drafter on drafts after the positions of answers.

    Positions count if the target's most probable token is in the draft vocabulary. The loss is the mean over those
    that count, so that their number does not change the effective learning rate.

    Args:
        course: training setup.
        net: the drafter.
        drafts: yields its states, and the positions to compare them with.
        logits: computes logits over the draft vocabulary from its states.
        shares: weight of each step's loss.
        on_progress: called before each training step with the finished share of the run.
        facts: further entries of the configuration.
    """
    options, teacher, loss = course.options, course.teacher, Weighted.parse(course.options.loss)

    def read(rows: list[int]) -> Batch:
        ids, features, _, answer = together(course.readings, rows)
        return Batch(rows, ids, teacher.embedding[ids], features, answer, beside([course.said(row) for row in rows]))

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        batch, losses, total = read(rows), dict[str, Tensor](), torch.zeros((), device=course.device)
        with half_precision(options.half):
            for step, (state, index) in enumerate(drafts(batch, generator)):
                sample = some_of(len(state), options.places, generator)
                sample = sample[torch.isin(batch.said.flatten()[index[sample]], course.kept).to(sample.device)]
                if len(sample):
                    guess, truth = state[sample], batch.features.flatten(0, 1)[index[sample]].float()
                    target_logits = teacher.logits(truth, course.table)
                    step_loss, _ = loss(Places(guess.float(), truth, logits(guess).float(), target_logits))
                    losses[f"step {step + 1}"] = step_loss
                    total = total + shares[step] * step_loss
        return int(batch.answer.sum()), losses, total

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        matches, count = torch.zeros(2, len(shares), device=course.device)
        for start in range(0, len(course.held), HELD_ROWS):
            batch = read(course.held[start : start + HELD_ROWS])
            with half_precision(options.half):
                for step, (state, index) in enumerate(drafts(batch, None)):
                    matches[step] += (course.kept[logits(state).argmax(-1)] == batch.said.flatten()[index]).sum()
                    count[step] += len(index)
        return {f"agreement {i + 1}": share for i, share in enumerate((matches / count.clamp_min(1)).tolist())}

    return course.run(net, step_losses, measure, on_progress, **facts)


def steps(
    net: FeatureNet, embeds: Float[Tensor, "B n D"], given: Float[Tensor, "B n F"], answer: Bool[Tensor, "B n"], n: int
) -> Iterator[tuple[Float[Tensor, "B m D"], Bool[Tensor, "B m"]]]:
    """Yield per draft step the states after all pairs, m = n − 1, and whether a token of an answer follows.

    The state of step i after the pair at s predicts the token at s + 2 + i, as the feature at s + 1 + i does.
    """
    for step, state in enumerate(unroll(net, lambda step: on(embeds, step + 1)[:, :-1], given[:, :-1], n)):
        yield state, still(on(answer, 1), step)[:, :-1]
