"""Training of drafters on drafts of several steps, as in real drafting, with the target's distributions as labels.

A draft of several steps starts after each position of an answer. The distribution of each step is compared with the
target's distribution of the same token. A layer that reads its own states is unrolled: from the second step on its
inputs are its states of the step before, with the embeddings of the true tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.common.trained_net import TrainedNet
from workbench.methods.common.training_time_test import unroll
from workbench.training.family.drafter import load_batch, pad_and_stack
from workbench.training.family.head_training import (
    EVAL_BATCH_SIZE,
    TrainingSetup,
    answer_continues,
    sample_indices,
    shift_left,
)
from workbench.training.heads.losses import LossInputs, WeightedLoss
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve

LayerInputFunction = Callable[[list[int], Tensor], Tensor]
"""Type of a function (indices of stored answers, features [B, n, D]) that returns a drafting layer's input from the
target at each position, float32 [B, n, F]."""


class Batch(NamedTuple):
    """Padded answers, with the data for drafts after their positions.

    Attributes:
        rows: indices of the stored answers, B numbers.
        ids: token ids, int64 [B, n].
        embeds: the target's input embeddings of the tokens, float [B, n, D].
        features: the target's features at the tokens, float [B, n, D].
        answer: positions whose feature predicts a token of the answer, bool [B, n].
        target_tokens: the target's most probable next token at the positions of `answer`, −1 elsewhere, int64 [B, n].
    """

    rows: list[int]
    ids: Int[Tensor, "B n"]
    embeds: Float[Tensor, "B n D"]
    features: Float[Tensor, "B n D"]
    answer: Bool[Tensor, "B n"]
    target_tokens: Int[Tensor, "B n"]

    @property
    def flat_index(self) -> Int[Tensor, "B n"]:
        """Return the index of each position, counted through all answers of the batch one after the other, [B, n]."""
        return torch.arange(self.ids.numel(), device=self.ids.device).view_as(self.ids)


DraftFunction = Callable[[Batch, torch.Generator | None], Iterable[tuple[Tensor, Tensor]]]
"""Type of a function (answers, random generator) that drafts after positions of answers. For each draft step it yields
the drafter's states [N, D], and the indices [N] of the positions at which the target predicts the same tokens.
Without a generator (None), it drafts after all positions, for an evaluation."""


def train_unrolled(
    setup: TrainingSetup,
    net: FeatureNet,
    layer_input: LayerInputFunction,
    logits: Callable[[Tensor], Tensor],
    shares: list[float],
    **facts: Any,
) -> tuple[RunResult, Curve]:
    """Train a layer that reads its own states, with as many draft steps as `shares` has entries.

    Args:
        setup: target, data and options.
        net: layer to train.
        layer_input: function that returns the target's input to the layer.
        logits: function that computes logits over the draft vocabulary from the layer's states.
        shares: weight of each step's loss.
        facts: further entries of the configuration.
    """

    def drafts(batch: Batch, _: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        inputs = layer_input(batch.rows, batch.features)
        for step, (state, mask) in enumerate(unroll_steps(net, batch.embeds, inputs, batch.answer, len(shares))):
            yield state[mask], shift_left(batch.flat_index, step + 1)[:, :-1][mask]

    return train_drafts(setup, net, drafts, logits, shares, **facts)


def train_drafts(
    setup: TrainingSetup,
    net: TrainedNet,
    drafts: DraftFunction,
    logits: Callable[[Tensor], Tensor],
    shares: list[float],
    on_progress: Callable[[float], None] = lambda _: None,
    **facts: Any,
) -> tuple[RunResult, Curve]:
    """Train a drafter on drafts after the positions of answers.

    A position counts if the target's most probable token is in the draft vocabulary. The loss is the mean over the
    positions that count, so that the number of positions does not change the effective learning rate.

    Args:
        setup: target, data and options.
        net: drafter to train.
        drafts: function that yields for each draft step the drafter's states, and the positions whose target
            distributions they should match.
        logits: function that computes logits over the draft vocabulary from the drafter's states.
        shares: weight of each step's loss.
        on_progress: function that is called before each training step with the finished share of the run.
        facts: further entries of the configuration.
    """
    options, teacher, loss = setup.options, setup.teacher, WeightedLoss.parse(setup.options.loss)

    def read(rows: list[int]) -> Batch:
        ids, features, _, answer = load_batch(setup.readings, rows)
        return Batch(
            rows,
            ids,
            teacher.embedding[ids],
            features,
            answer,
            pad_and_stack([setup.target_tokens(row) for row in rows]),
        )

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        batch, losses, total = read(rows), dict[str, Tensor](), torch.zeros((), device=setup.device)
        with half_precision(options.half):
            for step, (state, index) in enumerate(drafts(batch, generator)):
                sample = sample_indices(len(state), options.places, generator)
                sample = sample[
                    torch.isin(batch.target_tokens.flatten()[index[sample]], setup.draft_vocabulary).to(sample.device)
                ]
                if len(sample):
                    guess, truth = state[sample], batch.features.flatten(0, 1)[index[sample]].float()
                    target_logits = teacher.logits(truth, setup.lm_head_rows)
                    step_loss, _ = loss(LossInputs(guess.float(), truth, logits(guess).float(), target_logits))
                    losses[f"step {step + 1}"] = step_loss
                    total = total + shares[step] * step_loss
        return int(batch.answer.sum()), losses, total

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        matches, count = torch.zeros(2, len(shares), device=setup.device)
        for start in range(0, len(setup.held_out), EVAL_BATCH_SIZE):
            batch = read(setup.held_out[start : start + EVAL_BATCH_SIZE])
            with half_precision(options.half):
                for step, (state, index) in enumerate(drafts(batch, None)):
                    matches[step] += (
                        setup.draft_vocabulary[logits(state).argmax(-1)] == batch.target_tokens.flatten()[index]
                    ).sum()
                    count[step] += len(index)
        return {f"agreement {i + 1}": share for i, share in enumerate((matches / count.clamp_min(1)).tolist())}

    return setup.run(net, step_losses, measure, on_progress, **facts)


def unroll_steps(
    net: FeatureNet,
    embeds: Float[Tensor, "B n D"],
    layer_inputs: Float[Tensor, "B n F"],
    answer: Bool[Tensor, "B n"],
    n: int,
) -> Iterator[tuple[Float[Tensor, "B m D"], Bool[Tensor, "B m"]]]:
    """Yield for each draft step the layer's states, and whether each state predicts a token of an answer.

    There are m = n − 1 states per text. The input of step 0 at position s is a pair: the layer input at s, and the
    embedding of the token at s + 1. The state of step i at s predicts the token at s + 2 + i, as the target's feature
    at s + 1 + i does.
    """
    for step, state in enumerate(
        unroll(net, lambda step: shift_left(embeds, step + 1)[:, :-1], layer_inputs[:, :-1], n)
    ):
        yield state, answer_continues(shift_left(answer, 1), step)[:, :-1]
