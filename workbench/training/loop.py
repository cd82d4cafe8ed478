"""The training loop of all recipes: learning-rate schedule by the clock, checkpoints, resuming, progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from threading import Event
from typing import Any

import torch
from torch import nn

from workbench.core.errors import ParameterError, WorkbenchError
from workbench.trace.files import replace_atomically
from workbench.training.clock import RunClock, trapezoid
from workbench.training.models import WEIGHT_DECAY, build_optimizers, scale_rates
from workbench.training.monitor import OnPolicyEvaluation, TrainingMonitor
from workbench.training.resuming import set_aside
from workbench.training.stopping import StoppedError, stop_on_sigterm

Report = Callable[[str], None]


@dataclass
class RunOptions:
    """Options of all training recipes: length, resuming, learning rates. Each recipe has its own defaults.

    Attributes:
        checkpoint: Checkpoint file; none: no checkpoints.
        minutes: Length of the run in minutes.
        steps: Length of the run in optimizer steps; overrides `minutes`.
        resume: Continue from the checkpoint.
        matrix_rate: Peak learning rate of Muon.
        other_rate: Peak learning rate of AdamW.
        seed: Seed of initial weights, batches and noise.
        threads: Number of CPU threads.
        checkpoint_seconds: Seconds between checkpoints.
        curves: Folder for training curves as TensorBoard event files; none: no curves.
    """

    checkpoint: Path | None = None
    minutes: float | None = None
    steps: int | None = None
    resume: bool = False
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    seed: int = 0
    threads: int = 1
    checkpoint_seconds: float = 120.0
    curves: Path | None = None

    def loop(self, name: str, decay: float = 0.4) -> LoopOptions:
        """Return the options of the training loop for this run, and start the run's clock.

        Args:
            name: name of the run in its progress lines.
            decay: share of the run, at its end, in which the learning rate decreases.
        """
        clock = RunClock(self.minutes, self.steps)
        return LoopOptions(
            name, clock, self.checkpoint, self.resume, self.checkpoint_seconds, decay=decay, curves=self.curves
        )

    def optimizers(self, module: nn.Module, weight_decay: float = WEIGHT_DECAY) -> list[torch.optim.Optimizer]:
        """Return the optimizers of a module, with the learning rates of this training run."""
        return build_optimizers(module, self.matrix_rate, self.other_rate, weight_decay=weight_decay)


@dataclass
class LoopOptions:
    """Options of the training loop.

    Attributes:
        name: Name of the run in its progress lines.
        clock: Clock with the length of the run.
        checkpoint: Checkpoint file; None: no checkpoints.
        resume: Continue from the checkpoint if there is one.
        every_seconds: Seconds between checkpoints.
        log_every: Steps between progress lines.
        clip: Largest gradient norm; larger gradients are scaled down.
        decay: Share of the run, at its end, in which the learning rate decreases.
        curves: Folder for training curves as TensorBoard event files; None: no curves.
        on_policy: Function that returns on-policy metrics of the last saved net, by curve. It is called at each
            checkpoint if there are curves; the run's clock does not count its time.
    """

    name: str
    clock: RunClock
    checkpoint: Path | None = None
    resume: bool = False
    every_seconds: float = 300.0
    log_every: int = 20
    clip: float = 1.0
    decay: float = 0.4
    curves: Path | None = None
    on_policy: OnPolicyEvaluation | None = None


@dataclass
class RunResult:
    """Measured metrics of a training run.

    Attributes:
        steps: Number of optimizer steps.
        tokens: Number of tokens read.
        seconds: Training time in seconds, including the time before the run was resumed.
        losses: Smoothed training losses by name.
        held: Metrics on held-out text at the last checkpoint, by name.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)


def run_loop(
    options: LoopOptions,
    module: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    step_losses: Callable[[int], tuple[int, dict[str, float]]],
    report: Report,
    on_checkpoint: Callable[[RunResult], str] | None = None,
) -> RunResult:
    """Train a module until the run's length is reached, with checkpoints and progress lines.

    Args:
        options: Options of the loop.
        module: Module whose parameters the optimizers hold; its state is in the checkpoint.
        optimizers: Optimizers; each group stores its peak learning rate as `peak`.
        step_losses: Function (step number) → (tokens read, losses to report), which also computes the gradients.
        report: Function that receives progress lines.
        on_checkpoint: Function that is called at each checkpoint and at the end, for example to evaluate; it returns a
            progress line.

    Returns:
        The measured metrics of the run, with smoothed losses.
    """
    result = RunResult()
    if options.resume and options.checkpoint and options.checkpoint.exists():
        _restore(options, module, optimizers, result)
        report(f"{options.name}: resumed at step {result.steps} from {options.checkpoint}")
    elif options.checkpoint and options.checkpoint.exists():
        report(f"{options.name}: starts from the beginning; the earlier checkpoint is {set_aside(options.checkpoint)}")
    clock = options.clock
    watch = TrainingMonitor.of(options.name, clock, options.curves, options.on_policy, result.steps)
    parameters = [p for p in module.parameters() if p.requires_grad]
    saved_at, logged_at, logged_tokens = clock.seconds, clock.seconds, result.tokens
    measured_at = -1
    with stop_on_sigterm() if options.checkpoint else nullcontext(Event()) as stop:  # else SIGTERM ends the process
        while (progress := clock.progress(result.steps)) < 1.0:
            scale_rates(optimizers, trapezoid(progress, decay=options.decay))
            tokens, losses = step_losses(result.steps)
            _check_numbers(options.name, result.steps + 1, losses)
            descend(parameters, optimizers, options.clip)
            result.steps += 1
            result.tokens += tokens
            for name, value in losses.items():
                result.losses[name] = 0.95 * result.losses.get(name, value) + 0.05 * value
            watch.record_losses(result.steps, losses)
            if result.steps % options.log_every == 0 or result.steps == 1:
                rate = (result.tokens - logged_tokens) / max(clock.seconds - logged_at, 1e-6)
                logged_at, logged_tokens = clock.seconds, result.tokens
                values = " ".join(f"{name} {value:.3f}" for name, value in result.losses.items())
                report(
                    f"{options.name}: step {result.steps} {values} · {result.tokens / 1e6:.2f} M tokens · {rate:,.0f}/s"
                    f" · {clock.format_time_left(result.steps)} left"
                )
            if options.checkpoint and clock.seconds - saved_at > options.every_seconds:
                _save(options, module, optimizers, result)
                if on_checkpoint:
                    report(on_checkpoint(result))
                watch.record_evaluation(result.steps, result.held, report)
                saved_at, measured_at = clock.seconds, result.steps
            if stop.is_set():
                _save(options, module, optimizers, result)
                raise StoppedError(
                    f"{options.name}: stopped at step {result.steps}.", "Run the same command to continue."
                )
    result.seconds = clock.seconds
    if options.checkpoint:
        _save(options, module, optimizers, result)
    if measured_at != result.steps:
        if on_checkpoint:
            report(on_checkpoint(result))
        watch.record_evaluation(result.steps, result.held, report)
    return result


def descend(parameters: Sequence[nn.Parameter], optimizers: Sequence[torch.optim.Optimizer], clip: float) -> None:
    """Do one optimizer step with the gradient norm clipped to `clip`, and clear the gradients."""
    nn.utils.clip_grad_norm_(parameters, clip)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _check_numbers(name: str, step: int, losses: Mapping[str, float]) -> None:
    """Stop a diverging training run, before infinite or undefined values reach the weights.

    Raises:
        WorkbenchError: a loss is not finite.
    """
    not_finite = [loss for loss, value in losses.items() if not math.isfinite(value)]
    if not_finite:
        raise WorkbenchError(
            f"{name}: {', '.join(not_finite)} is infinite or NaN at step {step}: the training has diverged.",
            "Use lower learning rates (matrix_rate, other_rate) or another loss. Saved files were not changed.",
        )


def _save(
    options: LoopOptions, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], result: RunResult
) -> None:
    path = options.checkpoint
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "model": module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "steps": result.steps,
        "tokens": result.tokens,
        "seconds": options.clock.seconds,
        "losses": result.losses,
    }
    with replace_atomically(path) as part:
        torch.save(state, part)


def _state(checkpoint: Path | None) -> dict[str, Any]:
    """Read a training checkpoint.

    Raises:
        ParameterError: the checkpoint is damaged.
    """
    try:
        state: Any = torch.load(str(checkpoint), weights_only=True, map_location="cpu")
        if isinstance(state, dict) and {"model", "optimizers", "steps", "tokens", "seconds", "losses"} <= set(state):
            return state
    except (RuntimeError, EOFError, ValueError, KeyError, UnpicklingError):
        pass
    raise ParameterError(
        f"The checkpoint {checkpoint} is damaged: it cannot be read.",
        "Start again with --set resume=false, which moves the checkpoint aside. A finished head in the same "
        "folder is kept until the new one is saved.",
    )


def _restore(
    options: LoopOptions, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], result: RunResult
) -> None:
    state = _state(options.checkpoint)
    try:
        module.load_state_dict(state["model"])
        for optimizer, optimizer_state in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(optimizer_state)
    except (RuntimeError, ValueError) as error:
        raise ParameterError(
            f"The checkpoint {options.checkpoint} belongs to a different network, or was written by another version.",
            "Start again with --set resume=false, which moves the old checkpoint aside.",
        ) from error
    result.steps, result.tokens, result.losses = state["steps"], state["tokens"], dict(state["losses"])
    options.clock.earlier_seconds = state["seconds"]
