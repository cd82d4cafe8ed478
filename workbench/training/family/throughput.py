"""Training throughput of a head: tokens per second, and FLOP/s relative to this machine's peak.

The FLOPs of a step are counted in its forward and backward passes, including the target's LM head. The time of a step
includes everything, also the optimizers. The peak is measured on a product of large matrices, with the number format
and the threads of the training.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from workbench.core.errors import ParameterError
from workbench.kernels.bandwidth import matmul_rate
from workbench.methods.common.trained_net import TrainedNet
from workbench.methods.eagle import train as eagle
from workbench.models.machine import describe, machine_facts
from workbench.training.family.head_training import StepLosses, TrainingSetup
from workbench.training.family.heads import prepare_training
from workbench.training.family.options import (
    ChatHeadOptions,
    chat_head_kinds,
    choose_chat_head_options,
    combine_options,
    get_training_module,
    options_class,
)
from workbench.training.loop import LoopOptions, Report, RunResult, descend
from workbench.training.trainer import Curve

WARM_UP, SHOWN = 3, 8
"""Number of warm-up steps before the timed training steps, and number of most expensive operations in the report."""


DEFAULT_KIND = "eagle-3"
"""Kind of head whose training is timed by default."""
TIMED = """Options of the `throughput` recipe: those of `chat-heads`. No files are written.

Attributes:
    timed: Number of steps to time.
"""


def choose_throughput_options(values: Mapping[str, Any]) -> type:
    """Return the options class for timing the kind of head in `values`: training options, and number of steps."""
    return _with_timing(choose_chat_head_options({"method": values.get("method") or DEFAULT_KIND}))


def throughput_options() -> type:
    """Return the options class of the throughput recipe: training options of all kinds of heads, number of steps."""
    options = combine_options(ChatHeadOptions, {kind: options_class(kind) for kind in chat_head_kinds()})
    return _with_timing(options, DEFAULT_KIND)


def _with_timing(options: Any, method: str = "") -> type:
    """Return a dataclass with a kind of head's training options and the options of the throughput recipe.

    Args:
        options: options class of a kind of head.
        method: default kind of head; empty: the kind of `options`.
    """
    fields = {
        "method": (str, method or options.method),
        "target": (str, "text-target"),
        "checkpoint": (Path | None, None),
        "timed": (int, 12),
    }
    return dataclasses.make_dataclass(
        "ThroughputOptions",
        [(name, kind, field(default=default)) for name, (kind, default) in fields.items()],
        bases=(options,),
        namespace={"__doc__": TIMED},
    )


@dataclass(frozen=True)
class TimedSetup(TrainingSetup):
    """Training setup of a head whose training steps are timed, without a full training run."""

    figures: dict[str, Any] = field(default_factory=dict[str, Any])

    def run(
        self,
        net: TrainedNet,
        step_losses: StepLosses,
        measure: Callable[[], dict[str, float]],
        on_progress: Callable[[float], None] = lambda _: None,
        **facts: Any,
    ) -> tuple[RunResult, Curve]:
        options = self.options
        optimizers = options.optimizers(net.to(self.device), weight_decay=0.0)
        step, parameters = self.make_train_step(step_losses), [p for p in net.parameters() if p.requires_grad]
        learn = partial(descend, parameters, optimizers, LoopOptions.clip)
        on_progress(0.5)
        for number in range(WARM_UP):
            step(number)
            learn()
        seconds, tokens, work = [], [], []
        for number in range(options.timed):
            start = time.perf_counter()
            tokens.append(step(number)[0])
            learn()
            seconds.append(time.perf_counter() - start)
        for number in range(options.timed):  # counting slows the steps
            with FlopCounterMode(display=False) as counter:
                step(number)
            work.append(counter.get_total_flops())
            learn()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            step(0)
            learn()
        events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
        total = sum(event.self_cpu_time_total for event in events) or 1.0
        shares = {event.key: round(event.self_cpu_time_total / total, 3) for event in events[:SHOWN]}
        self.figures.update(
            tokens_a_second=sum(tokens) / sum(seconds), seconds_a_step=median(seconds),
            gflop_a_step=sum(work) / len(work) / 1e9, gflops=sum(work) / sum(seconds) / 1e9, shares=shares,
            parameters=sum(p.numel() for p in net.parameters()),
        )  # fmt: skip
        return RunResult(), Curve(None)


def measure_throughput(options: Any, report: Report) -> dict[str, Any]:
    """Time the training steps of a head; return the throughput metrics.

    Raises:
        ParameterError: heads of this kind have their own training loop, or the options do not suit them.
    """
    if get_training_module(options.method) is eagle:
        raise ParameterError(
            "The training throughput of this kind of head cannot be timed, because it uses a separate "
            "training loop, which also trains heads of vision targets.",
            "Choose another kind of head, such as mtp.",
        )
    module, setup, _ = prepare_training(options, report)
    timed_setup = TimedSetup(**{f.name: getattr(setup, f.name) for f in dataclasses.fields(setup)})
    module.train(timed_setup)
    peak_gflops = matmul_rate("cpu", torch.bfloat16 if options.half else torch.float32) / 1e9
    figures = timed_setup.figures | {
        "peak_gflops": peak_gflops,
        "share": timed_setup.figures["gflops"] / peak_gflops,
        "machine": machine_facts(),
    }
    report(
        f"{options.method}: {figures['parameters']:,} parameters, {options.rows} answers per step: "
        f"{figures['tokens_a_second']:,.0f} tokens/s, {figures['gflops']:.0f} GFLOP/s, which is "
        f"{figures['share']:.0%} of this machine's peak of {peak_gflops:.0f} GFLOP/s with {options.threads} "
        f"threads. {describe(figures['machine'])}"
    )
    report(
        "share of a training step's time by phase: "
        + ", ".join(f"{name} {share:.0%}" for name, share in figures["shares"].items())
    )
    return figures
