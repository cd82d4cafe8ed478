"""The GPU suite: targets of common shapes, created on the device, compared with transformers' own `generate`.

The suite needs no files and no Hub. The targets are random, since only speed is measured. Speed depends on the shapes
and on the acceptance rate, which is forced. The device's copy rate is also reported: a forward pass can hardly be
faster than reading the model's weights once.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Sequence
from functools import partial

import torch

from workbench.bench.damped_targets import SHAPES, Shape, damp_to, random_ids, random_pair, weights_bytes
from workbench.bench.interleaved_measurement import Progress
from workbench.bench.prompts import BenchPrompt, load_prompts
from workbench.bench.report import BenchReport
from workbench.bench.rows import BASELINE, HF_BASELINE, BenchRow
from workbench.bench.study import FAIL, Study, in_turn
from workbench.bench.suites import Plan, bench_methods
from workbench.core.errors import WorkbenchError, is_out_of_memory
from workbench.decoders import ConfiguredMethod
from workbench.engine import Models
from workbench.kernels.bandwidth import bytes_read, copy_bandwidth
from workbench.kernels.device_clock import empty_cache
from workbench.methods import registry
from workbench.models.machine import machine_facts

SUITE = "gpu"
LEVELS = (0.6, 0.9)
"""Shares of the target's tokens that the drafter should predict: as for average and for good draft models."""
HEADLINE = (BASELINE, "draft-model", HF_BASELINE, "hf-assisted")
"""Rows of the first table of the GPU suite: plain decoding and a draft model, in the workbench and in transformers."""
PROMPTS, PROMPT_TOKENS = 4, 200
PER_GROUP = 2
"""Number of bundled prompts of each group that are run on a real target."""
ROOM_BYTES = 2 * 2**30
"""Free memory required in addition to a target's weights, for KV caches and for transformers' temporary tensors."""


def bench_gpu(
    device: torch.device,
    plan: Plan,
    shapes: Sequence[Shape] = SHAPES,
    levels: Sequence[float] = LEVELS,
    methods: Sequence[ConfiguredMethod] = (),
    real: Callable[[], Models] | None = None,
    real_prompts: Sequence[BenchPrompt] = (),
    depth: int = 5,
    dtype: torch.dtype = torch.bfloat16,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure methods on random targets, and on a real one if given, each together with transformers' `generate`.

    Args:
        device: device of all models.
        plan: measuring plan; `against_hf` is always on.
        shapes: shapes of the random targets; one that does not fit into memory is left out, and the report says so.
        levels: acceptance rates of the drafters; the report has a table for each.
        methods: methods to measure; by default those that declare an entry of this suite, which draft `depth` tokens,
            and on the real target all methods that can run on it.
        real: function that loads a real target; it is called after the random targets are done.
        real_prompts: prompts for the real target; by default the bundled prompts, `PER_GROUP` of each group.
        depth: draft length of the default methods.
        dtype: dtype of the random targets.
        progress: function that is called before every run.

    Returns:
        A report with a group for each target and level. Its settings have for each target the bytes that a forward
        pass reads, the time to read them at the copy rate, and the measured time of a plain pass (`limit`).
    """
    plan = dataclasses.replace(plan, against_hf=True, suite=SUITE)
    rate = copy_bandwidth(device)
    report, left_out = BenchReport({}, machine_facts(), [], {}), []
    parts = [
        (shape.name, partial(_bench_shape, shape, levels, methods or _methods(shape, depth), plan, device, dtype, rate,
                             progress, report), _too_large(shape, device, dtype))
        for shape in shapes
    ]  # fmt: skip
    if real is not None:
        prompts = real_prompts or load_prompts()
        parts.append(
            ("the real target", partial(_bench_real, real, methods, plan, prompts, rate, progress, report), "")
        )

    def measure(part: tuple[str, Callable[[], None], str]) -> None:
        _, function, why_not = part
        _tidy()  # free the previous target
        if why_not:
            raise WorkbenchError(why_not)
        if report.complete:
            function()

    runner = in_turn(measure, (RuntimeError, MemoryError, WorkbenchError))
    try:
        for kind, (name, _, _), error in Study(parts, runner, key=lambda part: part[0]).run():
            if kind == FAIL:
                message = (str(error).strip() or type(error).__name__).splitlines()[0]
                left_out.append(f"{name}: {'out of memory' if is_out_of_memory(error) else message}")
    except KeyboardInterrupt:  # while a target was created: earlier results stay
        report.complete = False
    _tidy()
    report.settings |= {
        "suite": SUITE,
        "target": "; ".join(report.groups),
        "device": str(device),
        "dtype of the targets with random weights": str(dtype).removeprefix("torch."),
        "repeats": plan.repeats,
        "new tokens at most": plan.max_new_tokens,
        "temperature": plan.sampling.temperature,
        "draft length on the targets with random weights": None if methods else depth,
        "copy": f"{_gigabytes(rate)}/s, bytes read plus bytes written",
        "left out": "; ".join(left_out) or None,
    }
    return report


def describe_bandwidth_limit(models: Models, rows: Sequence[BenchRow], rate: float) -> str:
    """Compare a plain forward pass with the device's limit, in words: bytes read, time at the copy rate, measured time.

    Args:
        models: models with the target.
        rows: rows of the measurement on the target, including plain decoding.
        rate: bytes per second (`copy_bandwidth`).
    """
    n_bytes = bytes_read(models.target.model)
    at_rate = 1e3 * n_bytes / rate
    measured_ms = next((row.verify_ms_per_round for row in rows if row.method == BASELINE), None)
    measured = (
        ""
        if not measured_ms
        else (
            f"; the forward pass took {measured_ms:.3g} ms, so it reads at {at_rate / measured_ms:.0%} of the copy rate"
        )
    )
    kernels = "by Triton kernels" if models.target.runs_kernels else "by transformers' own layers"
    return (
        f"{kernels}, a plain forward pass reads {_gigabytes(n_bytes)}, which takes {at_rate:.3g} ms at the "
        f"copy rate{measured}"
    )


def _bench_shape(
    shape: Shape,
    levels: Sequence[float],
    methods: Sequence[ConfiguredMethod],
    plan: Plan,
    device: torch.device,
    dtype: torch.dtype,
    rate: float,
    progress: Progress | None,
    combined_report: BenchReport,
) -> None:
    """Measure the methods on one random target at each acceptance rate, and add the results to the report.

    For each rate, the outputs of the target's upper layers are scaled down until the desired rate is reached.
    """
    models = random_pair(shape, device, dtype, PROMPT_TOKENS + plan.max_new_tokens)
    for level in levels:
        reached = damp_to(models, shape.draft_layers, level)
        name = f"{shape.name}, acceptance {level:g}"
        drafter = (
            f"the target's first {shape.draft_layers} of {shape.layers} layers, which agree with the target on "
            f"{reached:.0%} of tokens"
        )
        pair = dataclasses.replace(models, target_name=name, drafter_name=drafter, shared={})
        report = bench_methods(pair, methods, _prompts(shape), plan, _named(progress, name))
        _add(combined_report, pair, report, rate)
        if not report.complete:
            return


def _bench_real(
    load: Callable[[], Models],
    methods: Sequence[ConfiguredMethod],
    plan: Plan,
    prompts: Sequence[BenchPrompt],
    rate: float,
    progress: Progress | None,
    combined_report: BenchReport,
) -> None:
    """Load a real target, measure the methods on it, and add the results to the report."""
    models = load()
    runs = [m.with_params() for m in registry.methods() if m.promise != "simulation"]
    runnable = [c for c in methods or runs if not models.unsupported_reason(c.method.needs)]
    reduced_plan = dataclasses.replace(plan, per_group=plan.per_group or PER_GROUP)
    _add(
        combined_report,
        models,
        bench_methods(models, runnable, prompts, reduced_plan, _named(progress, models.target_name)),
        rate,
    )


def _prompts(shape: Shape) -> list[BenchPrompt]:
    """Return prompts of random tokens, so that drafters that copy from the text find nothing."""
    texts = [random_ids(shape.vocabulary, PROMPT_TOKENS, seed) for seed in range(1, PROMPTS + 1)]
    return [BenchPrompt(f"random-{i}", " ".join(map(str, ids))) for i, ids in enumerate(texts, 1)]


def _methods(shape: Shape, depth: int) -> list[ConfiguredMethod]:
    configured = []
    for method in registry.methods():
        for setting in method.suites.get(SUITE, ()):
            values = {"depth": depth, "exit_layer": shape.draft_layers, **setting.params}
            configured.append(method.with_params(**{n: v for n, v in values.items() if n in method.params}))
    return configured


# -- the report -------------------------------------------------------------------------------------------------------


def _add(combined_report: BenchReport, models: Models, report: BenchReport, rate: float) -> None:
    """Add the report on one target to the combined report, and compare its plain forward pass with the memory limit."""
    name = models.target_name
    combined_report.settings[f"drafter of {name}:"] = models.drafter_name
    combined_report.settings[f"forward pass of {name}"] = describe_bandwidth_limit(models, report.rows, rate)
    combined_report.groups[name] = report.rows
    combined_report.rows += [
        dataclasses.replace(r, method=f"{r.method} @ {name}") for r in report.rows if r.method in HEADLINE
    ]
    first = max((run["prompt"] for run in combined_report.runs), default=-1) + 1
    combined_report.runs += [run | {"prompt": first + run["prompt"], "name": f"{name}, {run['name']}", "group": name}
                  for run in report.runs]  # fmt: skip
    combined_report.left_out |= {f"{name}, {why}": n for why, n in report.left_out.items()}
    combined_report.complete = report.complete


def _named(progress: Progress | None, name: str) -> Progress | None:
    return progress and (lambda done, total, what: progress(done, total, f"{name} · {what}"))


def _too_large(shape: Shape, device: torch.device, dtype: torch.dtype) -> str:
    """Return the reason why a target does not fit into a GPU's memory; empty if it fits.

    Main memory is not checked: an allocation that does not fit raises an error.
    """
    n_bytes = weights_bytes(shape, dtype)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    if free is None or n_bytes + ROOM_BYTES <= free:
        return ""
    return f"{_gigabytes(n_bytes)} of weights do not fit into {_gigabytes(free)} of free GPU memory"


def _gigabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.3g} GB" if n_bytes < 1e12 else f"{n_bytes / 1e9:,.0f} GB"


def _tidy() -> None:
    """Free a target's memory before the next target is created."""
    gc.collect()
    empty_cache()
