"""Interleaved measurement: on each prompt, all contenders run several times, in changing order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.bench.memory import growth
from workbench.bench.sample import Contender, ContenderFailedError, Sample
from workbench.bench.study import BEGIN, FAIL, Run, Store, Study, in_turn, interleaved_runs

Progress = Callable[[int, int, str], None]
"""Type of a function that is called before each run with (finished runs, total runs, name of the current run)."""

OnFailure = Callable[[Contender, ContenderFailedError], None]
"""Type of a function that is called once with a contender that failed, and the error."""

WARM_UP_RUNS = 2


def measure(
    contenders: Sequence[Contender],
    prompts: Sequence[Any],
    repeats: int = 3,
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
    warm_up: int = WARM_UP_RUNS,
    store: Store[Run, Sample] | None = None,
    warm_up_contenders: Sequence[Contender] = (),
) -> tuple[list[Sample], bool]:
    """Run every contender on every prompt, `repeats` times.

    Runs are ordered as in `interleaved_runs`.

    Args:
        contenders: contenders with different names; the first is the baseline.
        prompts: token ids, or other inputs of the contenders.
        repeats: number of runs of each contender on each prompt.
        progress: function that is called before every run.
        on_failure: function that is called with every contender that failed; the samples of this contender are dropped
            and the other contenders continue. None: the error is raised.
        warm_up: warm-up runs of every contender, before the timed runs.
        store: store of the samples, with which a stopped measurement can continue. If the sample of one contender is
            missing in a repetition, all contenders run again in this repetition, since ratios are taken within it.
        warm_up_contenders: contenders with the same names that do the warm-up runs, for example with fewer tokens.

    Returns:
        The samples, and whether the plan was completed. Ctrl-C ends the measurement: the samples of finished prompts
        are returned, but no samples of the current prompt, so that every contender has the same prompts.
    """
    by_name = {contender.name: contender for contender in contenders}
    for_warm_up = by_name | {contender.name: contender for contender in warm_up_contenders}
    runs = interleaved_runs(list(by_name), len(prompts), repeats, warm_up)
    turns = None if store is None else _WholeTurns(store, list(by_name))
    if turns is not None and all(run.is_warm_up or turns.load(run) is not None for run in runs):
        runs = [run for run in runs if not run.is_warm_up]
    current, previous, collecting = 0, -1, gc.isenabled()

    def run_once(run: Run) -> Sample:
        nonlocal previous
        if run.is_warm_up:
            return for_warm_up[run.contender].run(prompts[0])
        if run.prompt != previous:
            previous = run.prompt
            gc.enable()
            gc.collect()  # between prompts, so that no run pays for it
            gc.disable()
        with growth() as grown:
            sample = by_name[run.contender].run(prompts[run.prompt], prompt=run.prompt, repeat=run.repeat)
        sample.growth_bytes = grown[0]
        return sample

    runner = in_turn(run_once, ContenderFailedError if on_failure is not None else ())
    study = Study[Run, Sample](runs, runner, turns, contender=lambda run: run.contender)
    is_stopped = False
    try:
        for kind, run, payload in study.run():
            current = run.prompt
            if kind == BEGIN and progress is not None:
                text = "warm-up" if run.is_warm_up else f"prompt {run.prompt + 1}/{len(prompts)}"
                progress(len(runs) - (study.total or 0) + study.done, len(runs), f"{text} · {run.contender}")
            elif kind == FAIL and on_failure is not None:
                on_failure(by_name[run.contender], payload)
    except KeyboardInterrupt:
        is_stopped = True
    finally:
        if collecting:
            gc.enable()
    samples = [
        study.results[run]
        for run in runs
        if run in study.results and not run.is_warm_up and run.contender not in study.failures
        if not (is_stopped and run.prompt >= current)
    ]
    if progress is not None and not is_stopped:
        progress(len(runs), len(runs), "done")
    return samples, not is_stopped


@dataclass(frozen=True, slots=True)
class _WholeTurns:
    """Store that returns only samples of repetitions that every contender completed; it stores no warm-up runs."""

    store: Store[Run, Sample]
    contenders: Sequence[str]

    def load(self, cell: Run) -> Sample | None:
        """Return the stored sample of a timed run; None if another contender has no sample in the same repetition."""
        turn = [self.store.load(replace(cell, contender=name)) for name in self.contenders]
        return None if cell.is_warm_up or None in turn else self.store.load(cell)

    def save(self, cell: Run, result: Sample) -> Sample:
        """Store the sample of a timed run."""
        return result if cell.is_warm_up else self.store.save(cell, result)
