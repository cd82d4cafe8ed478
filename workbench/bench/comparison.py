"""What lanes are compared on, and what they did: plain data, over the wire and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.bench.lanes import Lane
from workbench.bench.paired import figures_of, so_far
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
