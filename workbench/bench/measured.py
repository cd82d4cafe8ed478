"""What lanes are compared on, and the runs that were measured: nothing is computed from them here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workbench.bench.lanes import Lane
from workbench.bench.prompts import BenchPrompt
from workbench.bench.sample import Sample, sample_of
from workbench.trace.events import Trace


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

    def settle(self, before: int) -> None:
        """The prompts before this one are done: of the traces of each one is kept."""
        self._runs = {key: trace for key, trace in self._runs.items() if key[0] >= before}


@dataclass(slots=True)
class SideBySide:
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
    def reference(self) -> Measured | None:
        """Plain decoding, which the others are compared with."""
        return next((lane for lane in self.lanes if lane.lane.is_plain and lane.samples), None)
