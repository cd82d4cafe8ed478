"""Comparison: two to four lanes on the same prompts, alone on the device, interleaved and repeated.

`measure` requests one run after the other from a backend, so that one implementation serves the library, the command
line, the API and the app. `workbench.bench.comparison_figures` computes the results.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from workbench.bench.backend_run import WARM_UP_TOKENS, BackendRun, RunBackend, StopError
from workbench.bench.bounds import LANES, PROMPTS, REPEATS, RUNS
from workbench.bench.comparison import Comparison
from workbench.bench.comparison_figures import most_typical_repeat
from workbench.bench.comparison_runs import LaneRuns, Plan
from workbench.bench.interleaving import interleave
from workbench.bench.lanes import BASELINE, Lane
from workbench.bench.prompts import BenchPrompt
from workbench.bench.steps import Step
from workbench.core.errors import CapacityError, ParameterError, PromptError, WorkbenchError
from workbench.methods import method_info
from workbench.models.machine import machine_facts


def prepare(
    prompts: Sequence[str | BenchPrompt], lanes: Sequence[Lane | str | dict[str, Any]], plan: Plan
) -> Comparison:
    """Return a comparison before its first run; all errors in a request are raised here.

    Raises:
        WorkbenchError: the request is invalid; the error says what to do.
    """
    parsed = [Lane.of(lane) for lane in lanes]
    if len(parsed) > LANES:
        raise ParameterError(f"{len(parsed)} lanes cannot be compared.", f"Give 1 to {LANES}; plain decoding is added.")
    repeated = next((lane for i, lane in enumerate(parsed) if lane in parsed[:i]), None)
    if repeated is not None:
        raise ParameterError(f"{repeated.title} is listed twice.", "Change a parameter of one, or remove it.")
    if not 1 <= len(prompts) <= PROMPTS:
        raise PromptError(f"A comparison on {len(prompts)} prompts is not possible.", f"Give 1 to {PROMPTS}.")
    if not 1 <= plan.repeats <= REPEATS:
        raise ParameterError(f"repeats={plan.repeats} is out of range.", f"Use 1 to {REPEATS}.")
    specs = method_info.sampling()
    for name, value in plan.sampling.items():
        if name not in specs:
            raise ParameterError(
                f"{name} is not a sampling parameter.",
                f"Give {', '.join(specs)} for all lanes, and other parameters with their lane.",
            )
        specs[name].parse(value)
    added = not any(lane.is_plain for lane in parsed)
    parsed = [Lane(BASELINE), *parsed] if added else parsed
    runs = len(parsed) * (len(prompts) * plan.repeats + 1)
    if runs > RUNS:
        raise CapacityError(f"This comparison has {runs} runs; {RUNS} is the limit.", "Use fewer prompts or repeats.")
    texts = [p if isinstance(p, BenchPrompt) else BenchPrompt(f"prompt {i + 1}", p) for i, p in enumerate(prompts)]
    if not all(isinstance(p.prompt, str) and p.prompt.strip() for p in texts):
        raise PromptError("A prompt is empty.", "Write at least one word for the model to continue.")
    measured = [LaneRuns(lane, lane.title, added and i == 0) for i, lane in enumerate(parsed)]
    return Comparison(plan, texts, measured, machine_facts())


def measure(
    backend: RunBackend,
    prompts: str | Sequence[str | BenchPrompt],
    lanes: Sequence[Lane | str | dict[str, Any]],
    *,
    user: str = "local",
    stopped: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Iterator[Step]:
    """Compare, step by step.

    The order is that of `workbench.bench.interleaving`. Each lane has the device to itself while it runs. A lane that
    fails is left out from there on, with the reason. Closing the iterator ends the current run.

    Args:
        backend: the backend.
        prompts: a text, several, or prompts with names and groups.
        lanes: up to four; plain decoding is added if it is missing.
        user: opaque key for limits and fairness.
        stopped: called often; once it returns True, the runs so far are the result.
        settings: common settings of the lanes, see `Plan`.

    Yields:
        progress; the last one holds the comparison.

    Raises:
        WorkbenchError: the request is invalid (raised before the first step).
    """
    texts = [prompts] if isinstance(prompts, str) else prompts
    comparison = prepare(texts, lanes, Plan(**settings))
    return _steps(backend, comparison, user, stopped)


def _steps(backend: RunBackend, comparison: Comparison, user: str, stopped: Callable[[], bool]) -> Iterator[Step]:
    total, done, start = (
        len(comparison.lanes) * (len(comparison.prompts) * comparison.plan.repeats + 1),
        0,
        time.monotonic(),
    )
    try:
        yield Step(0, total, "begins", comparison=comparison)
        for lane in comparison.lanes:
            for step in _run(backend, comparison, lane, 0, None, user, stopped):
                yield _with_progress(step, done, total, start)
            done += 1
        start, timed = time.monotonic(), done
        for prompt, repeat, lane in interleave(comparison.lanes, len(comparison.prompts), comparison.plan.repeats):
            for step in _run(backend, comparison, lane, prompt, repeat, user, stopped):
                yield _with_progress(step, done, total, start, timed)
            done += 1
            for each in comparison.lanes:
                each.select_repeat(prompt, most_typical_repeat(comparison, prompt))
                each.drop_unselected_traces(before=prompt)
            yield _with_progress(
                Step(0, 0, "measured", comparison=comparison, prompt=prompt), done, total, start, timed
            )
        for lane in comparison.lanes:
            lane.drop_unselected_traces(before=len(comparison.prompts))
        comparison.complete = True
    except (StopError, KeyboardInterrupt):  # the runs so far are the result
        pass
    yield Step(done, total, "done" if comparison.complete else "stopped", comparison=comparison, last=True)


def _with_progress(step: Step, done: int, total: int, start: float, first_timed: int | None = None) -> Step:
    """Return the step with its counts and the remaining time, estimated from the timed runs."""
    left_s = None
    if first_timed is not None and done > first_timed:
        left_s = (time.monotonic() - start) / (done - first_timed) * (total - done)
    return replace(step, done=done, total=total, left_s=left_s)


def _run(
    backend: RunBackend,
    comparison: Comparison,
    lane: LaneRuns,
    prompt: int,
    repeat: int | None,
    user: str,
    stopped: Callable[[], bool],
) -> Iterator[Step]:
    """Do one run of a lane; repeat None is the warm-up."""
    if lane.error:
        return
    plan, source = comparison.plan, comparison.prompts[prompt]
    label = (
        f"prompt {prompt + 1} of {len(comparison.prompts)}, repeat {(repeat or 0) + 1} of {plan.repeats} · {lane.name}"
    )
    label = f"warm-up · {lane.name}" if repeat is None else label
    tokens = plan.max_new_tokens if repeat is not None else min(plan.max_new_tokens, WARM_UP_TOKENS)
    if stopped():
        raise StopError
    now = Step(0, 0, label, lane=lane.name, limit=tokens, prompt=prompt)
    yield now
    try:
        run = BackendRun(
            backend,
            partial(
                backend.start,
                format_prompt(backend, source, plan),
                lane.lane.method,
                params={**lane.lane.params, **plan.sampling},
                target=plan.target,
                drafter=lane.lane.drafter,
                max_new_tokens=tokens,
                seed=plan.seed,
                stop=plan.stop,
                user=user,
                is_timed=True,
                **({"images": plan.images} if plan.images else {}),
            ),
            stopped,
        )
        with contextlib.closing(run.follow()) as reasons:
            for reason in reasons:
                yield replace(now, waiting=reason, tokens=run.tokens)
    except WorkbenchError as error:
        lane.error = str(error)
        return
    trace = run.trace
    if repeat is not None and trace is not None:
        lane.add_run(prompt, repeat, trace, trace.header.prefill_s + trace.footer.seconds)


def finish(steps: Iterator[Step], progress: Callable[[Step], None] | None = None) -> Comparison:
    """Run all steps and return the comparison. Ctrl-C ends the measurement; its results so far are returned."""
    comparison = None
    try:
        for step in steps:
            comparison = step.comparison or comparison
            if progress is not None:
                progress(step)
    except KeyboardInterrupt:  # between two steps; within a step, `_steps` catches it and yields a last step
        getattr(steps, "close", lambda: None)()
        if comparison is None:
            raise
    assert comparison is not None, "the last step holds it"
    return comparison


def format_prompt(backend: Any, prompt: BenchPrompt, plan: Plan) -> str | list[int]:
    """Return a prompt in the host's format; apply the target's chat template to a message if it has one.

    A question about images is always a message.

    Raises:
        WorkbenchError: the target cannot be loaded.
    """
    if plan.images:  # as token ids: marker-like text in a question stays text
        parts = [*[{"type": "image"}] * len(plan.images), {"type": "text", "text": prompt.prompt}]
        return backend.chat_prompt([{"role": "user", "content": parts}], plan.target)
    if not prompt.chat:
        return prompt.prompt
    try:
        return backend.chat_prompt([{"role": "user", "content": prompt.prompt}], plan.target)
    except PromptError:
        return prompt.prompt
