"""Code shared by the training modules of drafting heads that are trained on readings (the target's hidden states).

Each kind of head has a training module, `train.py` in its method's folder, with a dataclass `Options` (see
`workbench.training.family.options`) and a function `train`. A kind without this module is trained like EAGLE's layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.kernels.reduced_vocabulary import KEY
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.common.trained_net import TrainedNet
from workbench.models.fingerprint import WEIGHTS
from workbench.training.family.drafter import Teacher
from workbench.training.family.readings import Readings, batches
from workbench.training.heads.artefact import save_net
from workbench.training.loop import Report, RunResult
from workbench.training.trainer import Curve, Step, StepLoss, Trainer, count_parameters, propagate, step_generator

_Net = TypeVar("_Net", bound=TrainedNet)
StepLosses = Callable[[list[int], torch.Generator], tuple[int, dict[str, Tensor], Tensor]]
"""Type of a function (indices of stored answers, random generator) that computes the losses of a training step.

It returns the number of tokens read, the losses to report, and the loss to minimise.
"""
EVAL_BATCH_SIZE = 16
"""Number of held-out dialogues per batch when a head is evaluated."""


@dataclass(frozen=True)
class TrainingSetup:
    """Setup for training a drafting head: target, data and options.

    Attributes:
        options: options of the kind of head, from the class `Options` of its training module.
        teacher: parts of the target that the training uses.
        readings: stored hidden states of the target over its own answers.
        draft_vocabulary: tokens that the heads can propose, int64 [W].
        held_out: indices of the readings held out for evaluation.
        report: function that receives progress lines.
        start_layer: an EAGLE layer with whose weights the training starts; None: random initial weights.
    """

    options: Any
    teacher: Teacher
    readings: Readings
    draft_vocabulary: Int[Tensor, " W"]
    held_out: list[int]
    report: Report
    start_layer: FeatureNet | None = None

    @property
    def device(self) -> torch.device:
        """Return the device of the training, on which the target's weights are."""
        return self.teacher.lm_head.device

    @cached_property
    def lm_head_rows(self) -> Float[Tensor, "W D"]:
        """Return the rows of the target's LM head for the tokens of the draft vocabulary."""
        return self.teacher.lm_head[self.draft_vocabulary]

    def target_tokens(self, row: int) -> Int[Tensor, " n"]:
        """Return the target's most probable token at each position that predicts a token of an answer, −1 elsewhere.

        A run uses the same positions many times, so the result is cached.
        """
        if row not in self._target_tokens:
            dialogue = self.readings.dialogue(row)
            span = slice(dialogue.n_prompt - 1, len(dialogue.ids) - 1)
            self._target_tokens[row] = torch.full_like(dialogue.ids, -1)
            self._target_tokens[row][span] = self.teacher.greedy_tokens(dialogue.features[span])
        return self._target_tokens[row]

    @cached_property
    def _target_tokens(self) -> dict[int, Tensor]:
        return {}

    def facts(self, net: TrainedNet) -> dict[str, Any]:
        """Return `config.json` entries that every trained head has: target weights, number of parameters and loss."""
        return {
            WEIGHTS: self.teacher.weights,
            "parameters": count_parameters(net),
            "loss": self.options.loss,
        }

    def losses(self, step_losses: StepLosses) -> Callable[[Step], StepLoss]:
        """Return the function that computes the loss of a training step on the step's batch of stored answers."""
        options = self.options
        rows = batches(self.readings, self.readings.split_indices(held_out=False), options.rows, options.seed)

        def loss(step: Step) -> StepLoss:
            tokens, losses, total = step_losses(rows(step.number), step.generator)
            return StepLoss(total, tokens, {name: float(loss.detach()) for name, loss in losses.items()})

        return loss

    def make_train_step(self, step_losses: StepLosses) -> Callable[[int], tuple[int, dict[str, float]]]:
        """Return a function (number of a step) → (tokens read, losses by name), which also computes the gradients."""
        loss, seed = self.losses(step_losses), self.options.seed
        return lambda number: propagate(loss(Step(number, 0.5, step_generator(seed, number))))

    def run(
        self,
        net: TrainedNet,
        step_losses: StepLosses,
        measure: Callable[[], dict[str, float]],
        on_progress: Callable[[float], None] = lambda _: None,
        **facts: Any,
    ) -> tuple[RunResult, Curve]:
        """Train the head's net, and write its files at each checkpoint; return the metrics and the learning curve.

        The learning curve consists of the first metric that `measure` returns.

        Args:
            net: the net to train.
            step_losses: function that computes the losses of a step (`StepLosses`).
            measure: function that returns metrics on held-out answers, by name.
            on_progress: function that is called before each step with the finished share of the run.
            facts: further entries of the head's `config.json`.
        """
        options, facts = self.options, self.facts(net.to(self.device)) | facts
        loss, curve = self.losses(step_losses), Curve.of(options)

        def step_loss(step: Step) -> StepLoss:
            on_progress(step.progress)
            return loss(step)

        trainer = Trainer(
            options.method,
            options,
            net,
            step_loss,
            self.report,
            evaluate=measure,
            save=lambda: save_net(net, options.folder, self.teacher.name, **facts),
            weight_decay=0.0,
            curve=curve,
        )
        return trainer.run(), curve


def draft_vocabulary_config(draft_vocabulary: Tensor, teacher: Teacher) -> dict[str, Any]:
    """Return the `config.json` entry with the draft vocabulary's tokens; empty if it is the whole vocabulary."""
    return {KEY: draft_vocabulary.tolist()} if len(draft_vocabulary) < len(teacher.lm_head) else {}


def answer_continues(answer: Bool[Tensor, "B n"], steps: int) -> Bool[Tensor, "B n"]:
    """Return a mask of the answer positions that have at least `steps` later answer positions."""
    return F.pad(answer, (0, steps))[:, steps:] & answer


def predicting_positions(
    answer: Bool[Tensor, "B n"], sample: Int[Tensor, " S"] | None
) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
    """Return the text index and the position of each answer position that is followed by another answer position.

    Args:
        answer: mask of the positions whose feature predicts a token of an answer.
        sample: which of these positions to return, as indices into the list of all; None: all.
    """
    indices = answer_continues(answer, 1).nonzero()
    rows, positions = (indices if sample is None else indices[sample]).unbind(1)
    return rows, positions


def shift_left(stream: Float[Tensor, "B n *d"], steps: int) -> Float[Tensor, "B n *d"]:
    """Return the sequences moved left by `steps` positions, so that position i has the value of position i + steps.

    The last `steps` positions are filled with zeros; no position there has a loss.
    """
    shifted = stream.roll(-steps, 1)
    shifted[:, stream.shape[1] - steps :] = 0
    return shifted


def sum_losses(losses: Iterable[Tensor]) -> Float[Tensor, ""]:
    """Return the sum of the losses; a constant 0 if there are none, because no position of the batch has a loss."""
    terms = list(losses)
    return torch.stack(terms).sum() if terms else torch.zeros(())


def sample_indices(n: int, limit: int, generator: torch.Generator) -> Int[Tensor, " m"]:
    """Return a random choice of `limit` different indices below n, or all of these indices if there are fewer."""
    return torch.randperm(n, generator=generator)[:limit]


def build_seeded(seed: int, make: Callable[[], _Net]) -> _Net:
    """Return the net that `make` builds, with initial weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
