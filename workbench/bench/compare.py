"""Side by side: two to four lanes on the same prompts, alone on the device, interleaved and repeated.

`measure` asks a backend for one run after the other, so that one implementation serves the library, the command line,
the API and the app. What the numbers say is in `workbench.bench.paired`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from workbench.bench.lanes import BASELINE, Lane
from workbench.bench.machine import machine_facts
from workbench.bench.paired import figures_of, replayed, so_far
from workbench.bench.prompts import BenchPrompt
from workbench.bench.sample import Sample, sample_of
from workbench.bench.steps import Step
from workbench.bench.waiting import Asking
from workbench.core.errors import CapacityError, ParameterError, PromptError, WorkbenchError
from workbench.methods import known
from workbench.trace.events import STOPPED, Trace

LANES, PROMPTS, REPEATS = 4, 32, 21
"""The most of each in one comparison."""
RUNS = 400
"""The most runs in one comparison, warm-up included."""
WARM_UP_TOKENS = 24
POLL_S = 0.2


@runtime_checkable
class Host(Protocol):
    """A backend."""

    @property
    def start(self) -> Callable[..., Any]:
        """Start a generation, see `workbench.service.Backend.start`; `alone=True` gives it the device to itself."""
        ...

    def forget(self, run: Any) -> None:
        """Keep an ended run no longer."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How lanes are compared; what they have in common.

    Attributes:
        target: by default the backend's.
        max_new_tokens: length limit of every run.
        seed: of every run, so that repetitions do the same work.
        sampling: temperature and filters, the same for all.
        stop: strings that end a text.
        repeats: repetitions of every lane and prompt.
        images: pictures as data-URLs, for a target that reads them; every prompt is then a question about all of them.
    """

    target: str | None = None
    max_new_tokens: int = 64
    seed: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    repeats: int = 3
    images: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether every lane takes the likeliest token."""
        return not float(self.sampling.get("temperature", 0) or 0) > 0


@dataclass(slots=True)
class Measured:
    """What a lane did.

    Attributes:
        lane: what ran.
        name: for people, different for each lane of a comparison.
        added: it is plain decoding that nobody asked for, measured as the reference.
        samples: figures of each run by (prompt, repetition).
        traces: by prompt, the run that the race replays (`paired.replayed`).
        shown: by prompt, the repeat that this run is of.
        error: why it was left out from some point on; empty: it ran to the end.
    """

    lane: Lane
    name: str
    added: bool = False
    samples: dict[tuple[int, int], Sample] = field(default_factory=dict)
    traces: dict[int, Trace] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)
    error: str = ""
    _runs: dict[tuple[int, int], Trace] = field(default_factory=dict)

    def take(self, prompt: int, repeat: int, trace: Trace, seconds: float) -> None:
        """Keep the figures of a run, and its trace as long as it may become the one that is shown."""
        self.samples[prompt, repeat] = sample_of(trace, self.name, prompt, repeat, seconds)
        self._runs[prompt, repeat] = trace
        self.show(prompt, self.shown.get(prompt, repeat))

    def show(self, prompt: int, repeat: int) -> None:
        """Let the race replay a repeat; where this lane has failed in it, its run before stays."""
        if (prompt, repeat) in self._runs:
            self.traces[prompt], self.shown[prompt] = self._runs[prompt, repeat], repeat

    def settle(self, prompt: int) -> None:
        """A prompt is done: of its traces one is kept."""
        self._runs = {key: trace for key, trace in self._runs.items() if key[0] != prompt}


@dataclass(slots=True)
class Comparison:
    """Lanes, side by side.

    Attributes:
        plan: what they have in common.
        prompts: what they continued.
        lanes: in the order given; plain decoding comes first where it was added.
        machine: what it was measured on.
        complete: every run of the plan was done.
    """

    plan: Plan
    prompts: list[BenchPrompt]
    lanes: list[Measured]
    machine: dict[str, Any]
    complete: bool = False

    def __getitem__(self, name: str) -> Measured:
        """A lane by its name or its method.

        Raises:
            KeyError: there is none.
        """
        for lane in self.lanes:
            if name in (lane.name, lane.lane.method):
                return lane
        raise KeyError(name)

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Figures by the lane's name: speedup, tokens_per_second, tau, acceptance_rate, ms_per_token and counts."""
        return {lane["name"]: lane["figures"] for lane in so_far(self)["lanes"]}

    @property
    def reference(self) -> Measured | None:
        """Plain decoding, which the others are compared with."""
        return next((lane for lane in self.lanes if lane.lane.is_plain and lane.samples), None)

    @property
    def traces(self) -> dict[str, Trace]:
        """The trace of the first prompt by the lane's name: of the repeat that the race replays."""
        return {lane.name: lane.traces[0] for lane in self.lanes if 0 in lane.traces}

    def to_wire(self, traces: bool = False) -> dict[str, Any]:
        """Everything the page shows, as plain JSON; with `traces`, all that `from_wire` needs."""
        found = figures_of(self)
        for lane, wire in zip(self.lanes, found["lanes"], strict=True):
            wire["runs"] = [asdict(sample) for _, sample in sorted(lane.samples.items())]
            if traces:
                wire["traces"] = {str(i): trace.to_wire() for i, trace in lane.traces.items()}
        found["settings"]["images"] = list(self.plan.images)
        return found

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Comparison:
        """The inverse of `to_wire`; without traces, races and texts cannot be told again."""
        given = data["settings"]
        plan = Plan(
            given["target"],
            given["max_new_tokens"],
            given["seed"],
            given["sampling"],
            tuple(given["stop"]),
            given["repeats"],
            tuple(given.get("images", ())),
        )
        prompts = [BenchPrompt(p["name"], p["text"], p["group"], p["chat"]) for p in data["prompts"]]
        lanes = []
        for wire in data["lanes"]:
            samples = [Sample(**run | {"depths": [tuple(d) for d in run["depths"]]}) for run in wire["runs"]]
            lanes.append(
                Measured(
                    Lane(wire["method"], wire["params"], wire["drafter"]), wire["name"], wire["added"],
                    {(s.prompt, s.repeat): s for s in samples},
                    {int(i): Trace.from_wire(trace) for i, trace in wire.get("traces", {}).items()},
                    {i: race["repeat"] for i, race in enumerate(wire["race"]) if race and race["repeat"] is not None},
                    wire["error"],
                )
            )  # fmt: skip
        return cls(plan, prompts, lanes, data["machine"], data["complete"])

    def rows(self) -> list[dict[str, Any]]:
        """One row a run, for CSV and Parquet."""
        found = []
        for lane in self.lanes:
            for (prompt, repeat), sample in sorted(lane.samples.items()):
                setting = {"lane": lane.name, "setting": str(lane.lane), "prompt": self.prompts[prompt].name}
                timed = {"tokens": len(sample.token_ids), "rounds": sample.rounds, "seconds": sample.seconds}
                found.append(setting | {"repeat": repeat} | timed | sample.figures)
        return found


def prepare(
    prompts: Sequence[str | BenchPrompt], lanes: Sequence[Lane | str | dict[str, Any]], plan: Plan
) -> Comparison:
    """A comparison before its first run: everything that can be wrong with it is wrong here.

    Raises:
        WorkbenchError: with what to do.
    """
    wanted = [Lane.of(lane) for lane in lanes]
    if len(wanted) > LANES:
        raise ParameterError(f"{len(wanted)} lanes cannot be compared.", f"Give 1 to {LANES}; plain decoding is added.")
    twice = next((lane for i, lane in enumerate(wanted) if lane in wanted[:i]), None)
    if twice is not None:
        raise ParameterError(f"{twice.title} is there twice.", "Change a parameter of one, or leave it out.")
    if not 1 <= len(prompts) <= PROMPTS:
        raise PromptError(f"{len(prompts)} prompts cannot be compared on.", f"Give 1 to {PROMPTS}.")
    if not 1 <= plan.repeats <= REPEATS:
        raise ParameterError(f"repeats={plan.repeats} is out of range.", f"Use 1 to {REPEATS}.")
    specs = known.sampling()
    for name, value in plan.sampling.items():
        if name not in specs:
            raise ParameterError(
                f"{name} is no parameter of sampling.",
                f"Give {', '.join(specs)} for all lanes, the rest with its lane.",
            )
        specs[name].parse(value)
    if plan.images:
        from workbench.service.pictures import decode_all  # brings PIL, which texts need not

        decode_all(plan.images)
    added = not any(lane.is_plain for lane in wanted)
    wanted = [Lane(BASELINE), *wanted] if added else wanted
    runs = len(wanted) * (len(prompts) * plan.repeats + 1)
    if runs > RUNS:
        raise CapacityError(f"This comparison has {runs} runs; {RUNS} is the limit.", "Use fewer prompts or repeats.")
    texts = [p if isinstance(p, BenchPrompt) else BenchPrompt(f"prompt {i + 1}", p) for i, p in enumerate(prompts)]
    if not all(isinstance(p.prompt, str) and p.prompt.strip() for p in texts):
        raise PromptError("A prompt is empty.", "Write at least one word for the model to continue.")
    measured = [Measured(lane, lane.title, added and i == 0) for i, lane in enumerate(wanted)]
    return Comparison(plan, texts, measured, machine_facts())


def measure(
    host: Host,
    prompts: str | Sequence[str | BenchPrompt],
    lanes: Sequence[Lane | str | dict[str, Any]],
    *,
    user: str = "local",
    stopped: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Iterator[Step]:
    """Compare, step by step.

    All lanes run on a prompt before the next prompt begins, so that a slow minute of the machine falls on all of them;
    the order rotates from repetition to repetition, so that none always runs first. Each has the device to itself
    while it runs. A lane that fails is left out from there on, and says why. Closing the iterator ends what runs.

    Args:
        host: the backend.
        prompts: a text, several, or prompts with names and groups.
        lanes: up to four; plain decoding is added where it is missing.
        user: opaque key for limits and fairness.
        stopped: asked often; once it says yes, what was measured is the result.
        settings: what the lanes have in common, see `Plan`.

    Yields:
        where it is; the last one holds the comparison.

    Raises:
        WorkbenchError: the request is wrong, before the first step.
    """
    texts = [prompts] if isinstance(prompts, str) else prompts
    comparison = prepare(texts, lanes, Plan(**settings))
    return _steps(host, comparison, user, stopped)


def _steps(host: Host, made: Comparison, user: str, stopped: Callable[[], bool]) -> Iterator[Step]:
    total, done, begun = len(made.lanes) * (len(made.prompts) * made.plan.repeats + 1), 0, time.monotonic()
    try:
        yield Step(0, total, "begins", comparison=made)
        for lane in made.lanes:
            for step in _run(host, made, lane, 0, None, user, stopped):
                yield _with(step, done, total, begun)
            done += 1
        begun, timed = time.monotonic(), done
        for prompt in range(len(made.prompts)):
            for repeat in range(made.plan.repeats):
                shift = (prompt + repeat) % len(made.lanes)
                for lane in [*made.lanes[shift:], *made.lanes[:shift]]:
                    for step in _run(host, made, lane, prompt, repeat, user, stopped):
                        yield _with(step, done, total, begun, timed)
                    done += 1
                    for each in made.lanes:
                        each.show(prompt, replayed(made, prompt))
                    measured = Step(0, 0, "measured", comparison=made, prompt=prompt)
                    yield _with(measured, done, total, begun, timed)
            for lane in made.lanes:
                lane.settle(prompt)
        made.complete = True
    except (_StopError, KeyboardInterrupt):  # what was measured is kept
        pass
    yield Step(done, total, "done" if made.complete else "stopped", comparison=made, last=True)


class _StopError(Exception):
    """The user has seen enough."""


def _with(step: Step, done: int, total: int, begun: float, first: int | None = None) -> Step:
    """The step with its numbers: the time to go is told from the timed runs."""
    left = None
    if first is not None and done > first:
        left = (time.monotonic() - begun) / (done - first) * (total - done)
    return replace(step, done=done, total=total, left_s=left)


def _run(
    host: Host,
    made: Comparison,
    lane: Measured,
    prompt: int,
    repeat: int | None,
    user: str,
    stopped: Callable[[], bool],
) -> Iterator[Step]:
    """One run of one lane, repeat None being the warm-up."""
    if lane.error:
        return
    plan, asked = made.plan, made.prompts[prompt]
    what = f"prompt {prompt + 1} of {len(made.prompts)}, repeat {(repeat or 0) + 1} of {plan.repeats} · {lane.name}"
    what = f"warm-up · {lane.name}" if repeat is None else what
    tokens = plan.max_new_tokens if repeat is not None else min(plan.max_new_tokens, WARM_UP_TOKENS)
    if stopped():
        raise _StopError
    now = Step(0, 0, what, lane=lane.name, limit=tokens, prompt=prompt)
    yield now
    run = None
    try:
        asking = Asking(partial(
            host.start, host_prompt(host, asked, plan), lane.lane.method, params={**lane.lane.params, **plan.sampling},
            target=plan.target, drafter=lane.lane.drafter, max_new_tokens=tokens, seed=plan.seed, stop=plan.stop,
            user=user, alone=True, **({"images": plan.images} if plan.images else {}),
        ))  # fmt: skip
        while (run := asking.once()) is None:
            yield replace(now, waiting=asking.said)
            if stopped():
                raise _StopError
            time.sleep(POLL_S)
        while not run.ended:
            with contextlib.suppress(TimeoutError):
                run.wait(POLL_S)
            if stopped():
                raise _StopError
            if not run.ended:
                yield replace(now, waiting=waiting_for(run), tokens=emitted(run))
        trace = run.wait()
        if trace.footer.reason in STOPPED:
            raise WorkbenchError(run.message or "The run was cancelled.")
    except WorkbenchError as error:
        lane.error = str(error)
        return
    finally:
        if run is not None:
            run.cancel()
            host.forget(run)
    if repeat is not None:
        lane.take(prompt, repeat, trace, trace.header.prefill_s + trace.footer.seconds)


def finish(steps: Iterator[Step], progress: Callable[[Step], None] | None = None) -> Comparison:
    """Go through all steps and return what was measured. Ctrl-C ends the comparison, not the result."""
    found = None
    try:
        for step in steps:
            found = step.comparison or found
            if progress is not None:
                progress(step)
    except KeyboardInterrupt:  # it came between two steps; one within a step is answered with a last step
        getattr(steps, "close", lambda: None)()
        if found is None:
            raise
    assert found is not None, "the last step holds it"
    return found


def host_prompt(host: Any, prompt: BenchPrompt, plan: Plan) -> str | list[int]:
    """A prompt as the host takes it; a message is put into the target's chat format where it has one.

    A question about pictures is always a message.

    Raises:
        WorkbenchError: the target cannot be loaded.
    """
    if plan.images:  # as token ids: what looks like a marker in a question stays text
        parts = [*[{"type": "image"}] * len(plan.images), {"type": "text", "text": prompt.prompt}]
        return host.chat_prompt([{"role": "user", "content": parts}], plan.target)
    if not prompt.chat:
        return prompt.prompt
    try:
        return host.chat_prompt([{"role": "user", "content": prompt.prompt}], plan.target)
    except PromptError:
        return prompt.prompt


def emitted(run: Any) -> int:
    """Tokens that a run has by now."""
    return 0 if run.trace is None else sum(len(r.emitted) for r in list(run.trace.rounds))


def waiting_for(run: Any) -> str:
    """Why a run has not begun, in words; empty once it has."""
    if run.state == "loading":
        return run.message or "loading the models"
    if run.state != "queued":
        return ""
    queue = run.since(0).get("queue")
    place = f": number {queue['position']} of {queue['of']} in line" if queue else ""
    return f"waiting for the device{place}"
