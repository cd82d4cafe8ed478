"""Measure the time T(n) of a forward pass over n tokens on this machine once, in seconds, and cache it on disk."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from bisect import bisect_left
from dataclasses import dataclass

import torch

from workbench.kernels import disk_cache
from workbench.kernels.device_clock import synchronise
from workbench.kernels.segment import Segment
from workbench.models.loading import Models
from workbench.models.runner import Runner

FACTS = "pass-costs.json"
"""Name of the file in the cache folder that stores the measured times of forward passes."""
SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured durations of forward passes of a target and its draft model.

    Attributes:
        target_s: number of tokens n → seconds of a target forward pass over n tokens.
        draft_s: seconds of one single-token forward pass of the draft model; 0 without a draft model.
    """

    target_s: dict[int, float]
    draft_s: float

    def verify_s(self, n: int) -> float:
        """Return the seconds of a target forward pass over n tokens (root included), from times of measured sizes."""
        sizes = sorted(self.target_s)
        if n >= sizes[-1]:
            return self.target_s[sizes[-1]] * n / sizes[-1]
        hi = bisect_left(sizes, n)
        if sizes[hi] == n:
            return self.target_s[n]
        a, b = sizes[hi - 1], sizes[hi]
        return self.target_s[a] + (self.target_s[b] - self.target_s[a]) * (n - a) / (b - a)


def costs_of(models: Models, fresh: bool = False) -> Costs:
    """Return the times of forward passes of target and draft model on this machine, measured once and then cached.

    Args:
        models: loaded models, idle or between rounds; a slot of the KV cache is opened temporarily.
        fresh: whether to measure again.
    """
    key = _key(models)
    if key in models.shared and not fresh:
        return models.shared[key]
    facts = disk_cache.read(FACTS)
    if key in facts and not fresh:
        costs = Costs({int(n): s for n, s in facts[key]["target_s"].items()}, facts[key]["draft_s"])
    else:
        costs = measure(models)
        facts[key] = {"target_s": {str(n): s for n, s in costs.target_s.items()}, "draft_s": costs.draft_s}
        disk_cache.write(FACTS, facts)
    models.shared[key] = costs
    return costs


def measure(models: Models, context: int = 128, repeats: int = 6) -> Costs:
    """Measure the shortest times of forward passes over 1 … 64 tokens after `context` tokens.

    Other load on the machine can only lengthen a measured time, and the results are cached permanently. So the result
    is the minimum of several repeats, with the sizes interleaved. The time for n tokens is never larger than the time
    for more tokens.

    Args:
        models: target and draft model.
        context: number of tokens before the measured ones.
        repeats: number of measurements of each size.
    """
    target = _time(models.target, SIZES, context, repeats)
    draft = _time(models.draft_model, (1,), context, repeats)[1] if models.draft_model is not None else 0.0
    return Costs(target, draft)


def _time(runner: Runner, sizes: tuple[int, ...], context: int, repeats: int) -> dict[int, float]:
    slot = runner.open()
    try:
        context = min(context, runner.context // 2)
        runner.prefill(slot, [1] * context)
        fitting_sizes = [n for n in sizes if n <= max(1, runner.context - context)]
        times: dict[int, list[float]] = {n: [] for n in fitting_sizes}
        for _ in range(repeats):
            for n in fitting_sizes:
                tokens = torch.ones(n, dtype=torch.long, device=runner.device)
                synchronise(runner.device)
                start = time.perf_counter()
                runner.forward([Segment(slot, tokens)])
                synchronise(runner.device)
                times[n].append(time.perf_counter() - start)
                runner.rewind(slot, context)
        return {n: min(min(times[m]) for m in fitting_sizes if m >= n) for n in fitting_sizes}
    finally:
        runner.close(slot)


def _key(models: Models) -> str:
    """Return the key of cached forward-pass times, made of machine, models' names, dtypes and configurations.

    Configurations are included because two folders may have the same name.
    """
    runners = [runner for runner in (models.target, models.draft_model) if runner is not None]
    shapes = hashlib.sha256("\n".join(runner.model.config.to_json_string() for runner in runners).encode())
    parts = [
        platform.node(), platform.machine(), str(os.cpu_count()), str(torch.get_num_threads()), torch.__version__,
        models.target_name, str(models.draft_model_name), *(str(runner.weight_dtype) for runner in runners),
        str(models.target.device), shapes.hexdigest()[:16],
    ]  # fmt: skip
    return "|".join(parts)
