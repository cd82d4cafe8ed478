"""Interleaved measuring: on each prompt, all contenders run several times, in changing order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from workbench.bench.interleaving import interleave
from workbench.bench.memory import growth
from workbench.bench.sample import Contender, ContenderFailedError, Sample

Progress = Callable[[int, int, str], None]
"""Called before each run with (finished runs, total runs, name of the current run)."""

OnFailure = Callable[[Contender, ContenderFailedError], None]
"""Called once with a contender that failed, and the error."""

WARM_UP_RUNS = 2


def measure(
    contenders: Sequence[Contender],
    prompts: Sequence[Any],
    repeats: int = 3,
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
    warm_up: int = WARM_UP_RUNS,
) -> tuple[list[Sample], bool]:
    """Run every contender on every prompt, `repeats` times.

    The order is that of `workbench.bench.interleaving`.

    Args:
        contenders: contenders; the first is the baseline.
        prompts: token ids, or other inputs of the contenders.
        repeats: repetitions of each pair.
        progress: called before every run.
        on_failure: called with every contender that failed; its samples are dropped and the others continue. Without it
            the error is raised.
        warm_up: runs of every contender before anything is timed.

    Returns:
        The samples, and whether the plan was completed. Ctrl-C ends the measurement: the samples of finished prompts
        are returned without those of the current prompt, so that every contender has the same prompts.
    """
    total = (len(prompts) * repeats + warm_up) * len(contenders)
    samples: list[Sample] = []
    current = 0
    done = 0
    collecting = gc.isenabled()
    failed: set[str] = set()

    def run(contender: Contender, prompt: int, repeat: int) -> Sample | None:
        if contender.name in failed:
            return None
        try:
            return contender.run(prompts[prompt], prompt=prompt, repeat=repeat)
        except ContenderFailedError as error:
            if on_failure is None:
                raise
            failed.add(contender.name)
            samples[:] = [s for s in samples if s.contender != contender.name]
            on_failure(contender, error)
            return None

    try:
        for _ in range(warm_up):
            for contender in contenders:
                _report_progress(progress, done, total, f"warm-up · {contender.name}")
                run(contender, 0, 0)
                done += 1
        for index, repeat, contender in interleave(contenders, len(prompts), repeats):
            if index != current or not samples:
                current = index
                gc.enable()
                gc.collect()  # between prompts, so that no run pays for it
                gc.disable()
            _report_progress(progress, done, total, f"prompt {index + 1}/{len(prompts)} · {contender.name}")
            with growth() as grown:
                sample = run(contender, index, repeat)
            done += 1
            if sample is not None:
                sample.growth_bytes = grown[0]
                samples.append(sample)
    except KeyboardInterrupt:
        return [s for s in samples if s.prompt < current], False
    finally:
        if collecting:
            gc.enable()
    _report_progress(progress, total, total, "done")
    return samples, True


def _report_progress(progress: Progress | None, done: int, total: int, what: str) -> None:
    if progress is not None:
        progress(done, total, what)
