"""Comparison of two to four lanes (methods with settings) on the same prompts: interleaved, repeated, timed runs.

No other run uses the device at the same time.

`measure` requests one run after the other from a backend, so that one implementation serves the library, the command
line, the API and the app. `workbench.bench.comparison_figures` computes the results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from workbench.bench.backend_run import WARM_UP_TOKENS, BackendRun, RunBackend, StopError
from workbench.bench.bounds import LANES, PROMPTS, REPEATS, RUNS
from workbench.bench.comparison import Comparison, LaneRuns, Plan
from workbench.bench.comparison_figures import most_typical_repeat
from workbench.bench.lanes import BASELINE, Lane
from workbench.bench.prompts import BenchPrompt
from workbench.bench.steps import Step
from workbench.bench.study import END, FAIL, STEP, Run, Study, in_turn, interleaved_runs
from workbench.core.errors import CapacityError, ParameterError, PromptError, WorkbenchError
from workbench.methods import method_info
from workbench.models.machine import machine_facts
from workbench.trace.events import Trace


def prepare(
    prompts: Sequence[str | BenchPrompt], lanes: Sequence[Lane | str | dict[str, Any]], plan: Plan
) -> Comparison:
    """Check the request for a comparison, and return the comparison before its first run.

    Raises:
        WorkbenchError: the request is invalid; the error says what to do.
    """
    parsed = [Lane.of(lane) for lane in lanes]
    if len(parsed) > LANES:
        raise ParameterError(
            f"{len(parsed)} lanes (compared methods) cannot be compared at once.",
            f"Give 1 to {LANES} lanes; plain decoding is added automatically.",
        )
    repeated = next((lane for i, lane in enumerate(parsed) if lane in parsed[:i]), None)
    if repeated is not None:
        raise ParameterError(
            f"{repeated.title} is listed twice.", "Change a parameter of one lane, or remove the lane."
        )
    if not 1 <= len(prompts) <= PROMPTS:
        raise PromptError(f"The number of prompts, {len(prompts)}, is out of range.", f"Give 1 to {PROMPTS} prompts.")
    if not 1 <= plan.repeats <= REPEATS:
        raise ParameterError(f"The number of repeats, {plan.repeats}, is out of range.", f"Use 1 to {REPEATS}.")
    specs = method_info.sampling()
    for name, value in plan.sampling.items():
        if name not in specs:
            raise ParameterError(
                f"{name} is not a sampling parameter.",
                f"Sampling parameters of all lanes: {', '.join(specs)}. Set other parameters in each lane.",
            )
        specs[name].parse(value)
    added = not any(lane.is_plain for lane in parsed)
    parsed = [Lane(BASELINE), *parsed] if added else parsed
    runs = len(parsed) * (len(prompts) * plan.repeats + 1)
    if runs > RUNS:
        raise CapacityError(
            f"This comparison would need {runs} runs; the limit is {RUNS}.", "Use fewer prompts or repeats."
        )
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
    """Compare methods, and yield the progress step by step.

    Runs are ordered as in `study.interleaved_runs`. Each lane has the device to itself while it runs. A lane that fails
    is left out from then on, and the comparison has the reason. Closing the iterator ends the current run.

    Args:
        backend: backend that runs the lanes.
        prompts: one text, several texts, or prompts with names and groups.
        lanes: up to four; plain decoding is added if it is missing.
        user: opaque key of the user, for limits and for turns between users.
        stopped: function that is called often; once it returns True, the runs so far are the result.
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
    plan, lanes = comparison.plan, comparison.lanes
    runs = interleaved_runs(range(len(lanes)), len(comparison.prompts), plan.repeats, warm_up=1)
    runner = in_turn(partial(_run, backend, comparison, user, stopped), WorkbenchError)
    study = Study[Run, Trace | None](runs, runner, contender=lambda run: run.contender)
    is_warm = False
    try:
        yield Step(0, len(runs), "begins", comparison=comparison)
        with contextlib.closing(study.run(stopped)) as events:
            for kind, run, payload in events:
                if not run.is_warm_up and not is_warm:
                    is_warm = True
                    study.restart_clock()
                if kind == STEP:
                    yield replace(payload, done=study.done, total=len(runs), left_s=study.left_s if is_warm else None)
                if kind not in (END, FAIL):
                    continue
                lane = lanes[run.contender]
                lane.error = str(payload) if kind == FAIL else lane.error
                if run.is_warm_up:
                    continue
                if kind == END and payload is not None:
                    lane.add_run(run.prompt, run.repeat, payload, payload.header.prefill_s + payload.footer.seconds)
                for each in lanes:
                    each.select_repeat(run.prompt, most_typical_repeat(comparison, run.prompt))
                    each.drop_unselected_traces(before=run.prompt)
                yield Step(
                    study.done, len(runs), "measured", "", study.left_s, comparison=comparison, prompt=run.prompt
                )
        if study.is_complete:
            for lane in lanes:
                lane.drop_unselected_traces(before=len(comparison.prompts))
            comparison.complete = True
    except (StopError, KeyboardInterrupt):  # the runs so far are the result
        pass
    yield Step(study.done, len(runs), "done" if comparison.complete else "stopped", comparison=comparison, last=True)


def _run(
    backend: RunBackend, comparison: Comparison, user: str, stopped: Callable[[], bool], run: Run
) -> Generator[Step, None, Trace | None]:
    """Run a lane (a method with its settings) once on a prompt; yield the progress, and return the run's trace."""
    plan, source, lane = comparison.plan, comparison.prompts[run.prompt], comparison.lanes[run.contender]
    label = f"prompt {run.prompt + 1} of {len(comparison.prompts)}, repeat {run.repeat + 1} of {plan.repeats}"
    label = f"{'warm-up' if run.is_warm_up else label} · {lane.name}"
    tokens = min(plan.max_new_tokens, WARM_UP_TOKENS) if run.is_warm_up else plan.max_new_tokens
    now = Step(0, 0, label, lane=lane.name, limit=tokens, prompt=run.prompt)
    yield now
    backend_run = BackendRun(
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
    with contextlib.closing(backend_run.follow()) as reasons:
        for reason in reasons:
            yield replace(now, waiting=reason, tokens=backend_run.tokens)
    return backend_run.trace


def finish(steps: Iterator[Step], progress: Callable[[Step], None] | None = None) -> Comparison:
    """Run a comparison to its end and return it. Ctrl-C ends the measurement; the results so far are returned."""
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
    assert comparison is not None, "the last step of a comparison contains its result"
    return comparison


def format_prompt(backend: Any, prompt: BenchPrompt, plan: Plan) -> str | list[int]:
    """Return a prompt as the backend's input: a user's message gets the target's chat template if there is one.

    A question about images is always a user's message.

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
