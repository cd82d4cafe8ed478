"""The trainer of all recipes: a recipe declares its net, loss, evaluation and files; the trainer runs the loop.

each step        loss of the step → gradients → one optimizer step (`run_loop`)
each checkpoint  state for resuming → metrics on held-out data → learning curve → files of the model
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.trace.files import write_atomically
from workbench.training.loop import Report, RunOptions, RunResult, run_loop
from workbench.training.models import WEIGHT_DECAY

SEED_FACTOR = 1_000_003
"""The random generator of training step n has the seed `SEED_FACTOR` · (seed of the run) + n."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step: its number, the progress of the run, and a random generator.

    Attributes:
        number: number of the step, from 0.
        progress: finished share of the run, from 0 to 1.
        generator: random generator that depends on the run's seed and on `number` alone, so that a resumed run
            continues as if it had not been interrupted.
    """

    number: int
    progress: float
    generator: torch.Generator


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Loss of a training step, or of a part of the step.

    Attributes:
        loss: the loss to minimise; without a gradient if nothing in the batch is supervised.
        tokens: number of tokens that the step reads.
        figures: metrics to report, by name; None: only the loss, with the name "loss".
    """

    loss: Tensor
    tokens: int
    figures: Mapping[str, float] | None = None


Losses = Callable[[Step], StepLoss | Iterable[StepLoss]]
"""Type of a function that yields the losses of a training step. Gradients are computed after each loss and added up;
metrics of the same name are added up, too."""


def step_generator(seed: int, number: int) -> torch.Generator:
    """Return the random generator of a training step, seeded by the run's seed and the step's number."""
    return torch.Generator().manual_seed(seed * SEED_FACTOR + number)


def propagate(losses: StepLoss | Iterable[StepLoss]) -> tuple[int, dict[str, float]]:
    """Compute the gradients of a step's losses; return the number of tokens read, and the metrics to report."""
    tokens, figures = 0, dict[str, float]()
    for part in [losses] if isinstance(losses, StepLoss) else losses:
        if part.loss.requires_grad:
            part.loss.backward()
        tokens += part.tokens
        for name, value in ({"loss": float(part.loss.detach())} if part.figures is None else part.figures).items():
            figures[name] = figures.get(name, 0.0) + value
    return tokens, figures


@dataclass
class Curve:
    """Learning curve of a run, stored beside the run's checkpoint, so that a resumed run continues the curve.

    Attributes:
        path: file of the curve; None: the curve is not stored.
        points: pairs of the number of tokens read and the held-out metric.
    """

    path: Path | None
    points: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def of(cls, options: Any) -> Curve:
        """Return the learning curve of the training run with these options, with the points stored so far."""
        path = options.checkpoint.with_suffix(".curve.json") if options.checkpoint else None
        points = json.loads(path.read_text()) if path and options.resume and path.exists() else []
        return cls(path, [(tokens, value) for tokens, value in points])

    def add(self, tokens: int, value: float) -> None:
        """Add a point to the learning curve; if a finished run was started again, the point replaces the last one."""
        if self.points and self.points[-1][0] == tokens:
            self.points.pop()
        self.points.append((tokens, round(value, 4)))
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(self.points).encode())


@dataclass
class Trainer:
    """Training of one net to the end of a run, with checkpoints and progress lines.

    Attributes:
        name: name of the run in its progress lines.
        options: length, checkpoint, learning rates and seed of the run.
        net: the net; its state is in the checkpoints.
        losses: function that computes the loss of a step.
        report: function that receives progress lines.
        evaluate: function that returns metrics on held-out data, with the net in evaluation mode; None: no evaluation.
        save: function that writes the model, called after `evaluate`; None: the caller writes the model at the end.
        optimizers: optimizers of the net; empty: the optimizers that `options` defines.
        weight_decay: weight decay of the optimizers that `options` defines.
        decay: share of the run, at its end, in which the learning rate decreases.
        curve: learning curve of the first metric that `evaluate` returns; None: no curve.
    """

    name: str
    options: RunOptions
    net: nn.Module
    losses: Losses
    report: Report
    evaluate: Callable[[], dict[str, float]] | None = None
    save: Callable[[], object] | None = None
    optimizers: Sequence[torch.optim.Optimizer] = ()
    weight_decay: float = WEIGHT_DECAY
    decay: float = 0.4
    curve: Curve | None = None

    def run(self) -> RunResult:
        """Train the net until the run's length is reached; return the measured metrics."""
        options, loop = self.options, self.options.loop(self.name, self.decay)
        self.report(f"{self.name}: {count_parameters(self.net):,} parameters")

        def step(number: int) -> tuple[int, dict[str, float]]:
            generator = step_generator(options.seed, number)
            return propagate(self.losses(Step(number, loop.clock.progress(number), generator)))

        on_checkpoint = self._checkpoint if self.evaluate or self.save else None
        optimizers = self.optimizers or options.optimizers(self.net, self.weight_decay)
        return run_loop(loop, self.net, optimizers, step, self.report, on_checkpoint)

    def _checkpoint(self, result: RunResult) -> str:
        """Evaluate and save the net at a checkpoint; return a progress line."""
        was_training = self.net.training
        self.net.eval()
        if self.evaluate:
            result.held = self.evaluate()
        if self.curve:
            self.curve.add(result.tokens, next(iter(result.held.values())))
        if self.save:
            self.save()
        self.net.train(was_training)
        figures = " ".join(f"{name} {value:.3f}" for name, value in result.held.items())
        return f"{self.name}: held-out {figures}" if figures else f"{self.name}: saved at step {result.steps}"


def count_parameters(net: nn.Module) -> int:
    """Return the number of parameters of a net."""
    return sum(parameter.numel() for parameter in net.parameters())
