"""Recommend a method for a user's prompts, by measurements on a backend shared with other users.

Every run is a background run of the backend, alone on its device. Runs of other users have priority: they interrupt the
current run, which starts again when the device is free. The budget is measuring time; waiting does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from workbench.bench.backend_run import BackendRun, StopError
from workbench.bench.bounds import LONGEST_S, PROMPTS, SHORTEST_S
from workbench.bench.candidate_runs import (
    WARM_UP,
    Candidate,
    CandidateRuns,
    RunGenerator,
    is_candidate,
    measuring_params,
)
from workbench.bench.compare import format_prompt
from workbench.bench.comparison import Plan
from workbench.bench.lanes import BASELINE
from workbench.bench.pairing import SharedBackend as Hosting
from workbench.bench.prompts import BenchPrompt
from workbench.bench.sample import sample_of
from workbench.core.errors import MethodUnavailableError, ParameterError, PromptError, WorkbenchError
from workbench.methods import method_info
from workbench.models.machine import machine_facts
from workbench.trace.events import Trace

LOADING_PROMPT = "a"
"""Prompt of a run that only loads the models, since chat templates are not available before loading."""


@runtime_checkable
class AdvisingBackend(Hosting, Protocol):
    """Protocol of a backend that reports whether other runs are active on it."""

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """Return a dict for each method: its parameters, and the reason if it cannot run with these models."""
        ...

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets of the backend as {"name", "title", "kind", "detail"}, the default one first."""
        ...


@dataclass(frozen=True, slots=True)
class Advice:
    """Progress of the measurement behind a recommendation: plain data, which is sent to clients unchanged.

    Attributes:
        spent: seconds of measuring so far.
        seconds: budget of measuring time, in seconds.
        done: number of finished runs.
        text: current action, for display.
        waiting: reason for waiting; empty while a run is active.
        found: results so far, a `Recommendation` as plain JSON; None before the first results.
        last: whether this is the last progress message.
    """

    spent: float
    seconds: float
    done: int = 0
    text: str = ""
    waiting: str = ""
    found: dict[str, Any] | None = None
    last: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return the progress of the recommendation as plain JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def advise(
    backend: AdvisingBackend,
    prompts: Sequence[str | BenchPrompt | tuple[str, list[int]]],
    *,
    seconds: float = 60.0,
    target: str | None = None,
    drafter: str | None = None,
    max_new_tokens: int = 64,
    methods: Sequence[str] = (),
    user: str = "local",
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Advice]:
    """Measure drafting methods on a user's prompts; yield the progress and the recommendation so far.

    Arguments are those of `workbench.client.protocol.Client.stream_recommendation`.

    Raises:
        WorkbenchError: the request is invalid (raised before the first step), or plain decoding fails on a prompt.
    """
    if not 1 <= len(prompts) <= PROMPTS:
        raise PromptError(f"The number of prompts, {len(prompts)}, is out of range.", f"Give 1 to {PROMPTS} prompts.")
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise ParameterError(
            f"A time limit of {seconds:g} seconds is out of range.", f"Give {SHORTEST_S} to {LONGEST_S:,} seconds."
        )
    texts = [p if isinstance(p, BenchPrompt | tuple) else BenchPrompt(f"prompt {i + 1}", p, chat=True)
             for i, p in enumerate(prompts)]  # fmt: skip
    for i, text in enumerate(texts):
        if not (text[1] if isinstance(text, tuple) else text.prompt.strip()):
            raise PromptError(f"Prompt {i + 1} is empty.", "Write at least one word, or remove the prompt.")
    entries = {m["name"]: m for m in backend.methods(target, drafter)}
    for name in methods:
        if name in entries and not entries[name]["available"]:
            raise MethodUnavailableError(
                f"{name} cannot run: {entries[name]['reason']}", "Remove this method from the request."
            )
    candidates = [method_info.get(name) for name in methods or entries if methods or entries[name]["available"]]
    candidates = [method for method in candidates if is_candidate(method)]
    if not candidates:
        raise MethodUnavailableError("No speculative method can run on this target.", "Choose another target.")
    target_name = target or str(backend.targets()[0]["name"])
    return _steps(backend, texts, candidates, seconds, target_name, drafter, max_new_tokens, user, stopped)


def _steps(
    backend: AdvisingBackend,
    texts: Sequence[BenchPrompt | tuple[str, list[int]]],
    chosen: Sequence[method_info.MethodInfo],
    seconds: float,
    target: str,
    drafter: str | None,
    max_new_tokens: int,
    user: str,
    stopped: Callable[[], bool],
) -> Iterator[Advice]:
    spent, names = 0.0, [each[0] if isinstance(each, tuple) else each.name for each in texts]
    prompts: list[str | list[int]] = []
    ids = dict[int, list[int]]()

    def alone(prompt: str | list[int], method: str, tokens: int, params: dict[str, Any]) -> Generator[str, None, Trace]:
        """Do one run alone on the device; yield the reasons for waiting, and return the run's trace.

        A run that another user's run interrupts is started again.
        """
        nonlocal spent
        start = partial(
            backend.start, prompt, method, params={**params, "temperature": 0.0}, target=target, drafter=drafter,
            max_new_tokens=tokens, user=user, is_timed=True,
        )  # fmt: skip
        while True:
            run = BackendRun(backend, start, stopped, backend.has_other_runs)
            with contextlib.closing(run.follow()) as reasons:
                yield from reasons
            if run.trace is not None:
                spent += run.seconds
                return run.trace

    def candidate(method: method_info.MethodInfo) -> Candidate:
        method_params = measuring_params(method)

        def write(prompt: int, repeat: int | None) -> RunGenerator:
            tokens = max_new_tokens if repeat is not None else min(WARM_UP, max_new_tokens)
            trace = yield from alone(prompts[prompt], method.name, tokens, method_params)
            ids.setdefault(prompt, list(trace.header.prompt_tokens))
            total_s = trace.header.prefill_s + trace.footer.seconds
            return sample_of(trace, method.name, prompt, repeat or 0, total_s)

        return Candidate(method.name, method.title, method_params, write)

    plain, machine = candidate(method_info.get(BASELINE)), machine_facts()
    runs, complete = CandidateRuns([plain, *map(candidate, chosen)], len(texts), max_new_tokens), True
    result, n_reported = None, 0

    def now(text: str, waiting: str = "", last: bool = False) -> Advice:
        nonlocal result, n_reported
        if last or runs.done != n_reported:
            latest = runs.recommendation(target, names, ids, spent, complete, machine)
            result = latest.to_wire() if latest.ranking or latest.refused else result
        n_reported = runs.done
        return Advice(spent, seconds, runs.done, text, waiting, result, last)

    yield now("loading the models")
    try:
        with contextlib.closing(alone(LOADING_PROMPT, BASELINE, 1, {})) as loading:  # reports its progress
            for reason in loading:
                yield now("loading the models", reason)
        for i, each in enumerate(texts):  # a prompt that is too long fails before anything is measured
            try:
                prompts.append(
                    each[1] if isinstance(each, tuple) else format_prompt(backend, each, Plan(target=target))
                )
                writing = plain.run(i, None)
                with contextlib.closing(writing):
                    for reason in writing:
                        yield now(f"prompt {i + 1} of {len(texts)}", reason)
            except WorkbenchError as error:  # noqa: PERF203  # the message names the prompt
                message = f"{names[i]}: {error.message}" if len(texts) > 1 else error.message
                raise type(error)(message, error.remedy) from error
        for text, reason in runs.run(lambda: spent >= seconds or stopped(), lambda: seconds - spent):
            yield now(text, reason)
        complete = not stopped()
    except StopError:
        complete = False
    yield now("done" if complete else "stopped", last=True)
