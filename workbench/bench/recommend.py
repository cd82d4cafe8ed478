"""Recommendation of a method for a user's prompts, target and machine, measured within a time budget.

All methods that run on the target take turns on the prompts, pass by pass; see `workbench.bench.candidate_runs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.bench.candidate_runs import (
    WARM_UP,
    Candidate,
    CandidateRuns,
    RunGenerator,
    is_candidate,
    measuring_params,
)
from workbench.bench.contenders import EngineContender
from workbench.bench.recommendation import Recommendation
from workbench.bench.rows import BASELINE
from workbench.core.errors import PromptError, WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Models
from workbench.methods import registry
from workbench.methods.method_info import MethodInfo
from workbench.models.machine import machine_facts
from workbench.trace.store import RunStore

Progress = Callable[[float, int, str], None]
"""Type of a function that is called before each run with seconds spent, number of finished runs, and current run."""


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Type of a prompt: (name, token ids)."""

    name: str
    ids: list[int]


def candidates(models: Models, names: Sequence[str] = ()) -> list[ConfiguredMethod]:
    """Return the exact methods that run on these models, configured to plan drafts by measured costs where possible.

    Args:
        models: the target, and its drafters.
        names: registry names; by default all methods.

    Raises:
        UnknownNameError: a method does not exist.
    """
    selected = [registry.get(name) for name in names] or registry.methods()
    runnable = [(m, MethodInfo.of(m)) for m in selected if not models.unsupported_reason(m.needs)]
    return [method.with_params(**measuring_params(known)) for method, known in runnable if is_candidate(known)]


def saved_run_prompts(target: str, last: int) -> list[PromptIds]:
    """Return the prompts of the newest saved runs of a target, without images and without duplicates.

    Args:
        target: name of the target.
        last: largest number of prompts.

    Raises:
        PromptError: no run of this target is saved.
    """
    store, prompts = RunStore(None), dict[tuple[int, ...], PromptIds]()
    for run in store.find(target=target).select("id").head(4 * last).collect()["id"].to_list():
        header = store.load(run).header
        if not header.pictures and header.prompt_tokens and len(prompts) < last:
            prompts.setdefault(tuple(header.prompt_tokens), PromptIds(run, list(header.prompt_tokens)))
    if not prompts:
        raise PromptError(
            f"There is no saved run of {target}.",
            "Save a run (on the Live page, or with `workbench generate --keep`), or give prompts.",
        )
    return list(prompts.values())


def recommend(
    models: Models,
    prompts: Sequence[PromptIds],
    seconds: float,
    *,
    methods: Sequence[ConfiguredMethod] = (),
    max_new_tokens: int = 64,
    progress: Progress = lambda *_: None,
    stopped: Callable[[], bool] = lambda: False,
    now: Callable[[], float] = time.monotonic,
) -> Recommendation:
    """Measure methods until the time is up, Ctrl-C is pressed, or one method is left; return the recommendation.

    The time is checked between runs, so the last run may exceed the budget. All finished runs count.

    Args:
        models: the target, and its drafters.
        prompts: the user's prompts.
        seconds: time budget in seconds, warm-up included.
        methods: methods to measure besides plain decoding; by default all `candidates`.
        max_new_tokens: length limit of every run.
        progress: function that is called before every run.
        stopped: function that is called between runs; once it returns True, the runs so far are the result.
        now: a clock, in seconds.

    Raises:
        PromptError: there is no prompt.
        WorkbenchError: no method runs on this target.
    """
    if not prompts:
        raise PromptError(
            "The recommendation has no prompt to measure on.", "Give --prompts FILE, or save runs and give --last N."
        )
    selected = list(methods) or candidates(models)
    if not selected:
        raise WorkbenchError(
            "No speculative method can run on this target.", "`workbench methods` says why each method cannot run."
        )
    engine, start, complete = Engine(models, record=False), now(), True

    def candidate(one: ConfiguredMethod) -> Candidate:
        lane = EngineContender(engine, one, SamplingParams(temperature=0.0), max_new_tokens)
        short = lane.shortened(WARM_UP)

        def write(prompt: int, repeat: int | None) -> RunGenerator:
            yield from ()  # a run in this process never waits
            return (short if repeat is None else lane).run(prompts[prompt].ids, prompt=prompt, repeat=repeat or 0)

        return Candidate(lane.name, lane.title, lane.changed_parameters, write)

    runs = CandidateRuns(
        [candidate(m) for m in (registry.get(BASELINE).with_params(), *selected)], len(prompts), max_new_tokens
    )
    try:
        for label, _ in runs.run(lambda: now() - start >= seconds or stopped(), lambda: start + seconds - now()):
            progress(now() - start, runs.done, label)
        complete = not stopped()
    except KeyboardInterrupt:
        complete = False
    names, ids = [source.name for source in prompts], {i: source.ids for i, source in enumerate(prompts)}
    return runs.recommendation(models.target_name, names, ids, now() - start, complete, machine_facts())
