"""A comparison of lanes (methods with settings): plan, recorded runs and metrics, as plain data for display."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.bench.comparison_figures import full_figures, partial_figures
from workbench.bench.lanes import Lane
from workbench.bench.prompts import BenchPrompt
from workbench.bench.sample import Sample, sample_from_wire, sample_of
from workbench.trace.events import Trace


@dataclass(frozen=True, slots=True)
class Plan:
    """Common settings of the lanes of a comparison.

    Attributes:
        target: name of the target; by default the target of the backend.
        max_new_tokens: length limit of every run.
        seed: seed of every run, so that repetitions do the same work.
        sampling: temperature and filters, the same for all lanes.
        stop: strings that end a text.
        repeats: repetitions of every lane and prompt.
        images: images as data URLs, for a target that reads them; every prompt is then a question about all of them.
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
        """Return whether all compared methods decode greedily, at temperature 0."""
        return not float(self.sampling.get("temperature", 0) or 0) > 0


@dataclass(slots=True)
class LaneRuns:
    """Runs of one lane of a comparison: a method with its settings.

    Attributes:
        lane: method with its settings.
        name: name for display, unique in a comparison.
        added: whether the lane is plain decoding that was added automatically as the reference.
        samples: metrics of each run by (prompt, repetition).
        traces: by prompt, the trace of the run that the race (a replay of all lanes side by side) shows; see
            `comparison_figures.most_typical_repeat`.
        selected_repeat: by prompt, the number of the repetition whose run the race shows.
        error: reason why the lane was left out from some point on; empty if all its runs finished.
    """

    lane: Lane
    name: str
    added: bool = False
    samples: dict[tuple[int, int], Sample] = field(default_factory=dict)
    traces: dict[int, Trace] = field(default_factory=dict)
    selected_repeat: dict[int, int] = field(default_factory=dict)
    error: str = ""
    _runs: dict[tuple[int, int], Trace] = field(default_factory=dict)

    def add_run(self, prompt: int, repeat: int, trace: Trace, seconds: float) -> None:
        """Store the metrics of a run of this lane (method with settings), and for now its trace.

        The race, a replay of all lanes, may still select any repetition; traces that are not selected are discarded
        later.
        """
        self.samples[prompt, repeat] = sample_of(trace, self.name, prompt, repeat, seconds)
        self._runs[prompt, repeat] = trace
        self.select_repeat(prompt, self.selected_repeat.get(prompt, repeat))

    def select_repeat(self, prompt: int, repeat: int) -> None:
        """Select the repetition of a prompt that the race (a replay of all lanes) shows.

        If this lane failed in that repetition, the earlier selection stays.
        """
        if (prompt, repeat) in self._runs:
            self.traces[prompt], self.selected_repeat[prompt] = self._runs[prompt, repeat], repeat

    def drop_unselected_traces(self, before: int) -> None:
        """Discard the traces of prompts before index `before`, except one per prompt that the replay shows."""
        self._runs = {key: trace for key, trace in self._runs.items() if key[0] >= before}


@dataclass(slots=True)
class Comparison:
    """Comparison of lanes (methods with settings) on prompts; all metrics are computed from the recorded runs.

    Attributes:
        plan: common settings of the lanes.
        prompts: prompts of all lanes.
        lanes: runs of each lane, in the order of the request; plain decoding is first if it was added.
        machine: description of the machine.
        complete: whether every run of the plan was done.
    """

    plan: Plan
    prompts: list[BenchPrompt]
    lanes: list[LaneRuns]
    machine: dict[str, Any]
    complete: bool = False

    def __getitem__(self, name: str) -> LaneRuns:
        """Return a lane (method with settings) of the comparison by its name or its method.

        Raises:
            KeyError: no lane has this name or method.
        """
        for lane in self.lanes:
            if name in (lane.name, lane.lane.method):
                return lane
        raise KeyError(name)

    @property
    def reference(self) -> LaneRuns | None:
        """Return the lane (method) of plain decoding, the reference of all speed-ups."""
        return next((lane for lane in self.lanes if lane.lane.is_plain and lane.samples), None)

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Return each lane's metrics: speedup, tokens_per_second, tau, acceptance_rate, ms_per_token, counts."""
        return {lane["name"]: lane["figures"] for lane in partial_figures(self)["lanes"]}

    @property
    def traces(self) -> dict[str, Trace]:
        """Return each method's trace of the first prompt, by lane name, from the repetition that the race replays."""
        return {lane.name: lane.traces[0] for lane in self.lanes if 0 in lane.traces}

    def to_wire(self, traces: bool = False) -> dict[str, Any]:
        """Return the comparison with its runs and metrics as plain JSON.

        Args:
            traces: whether to include the traces that the race (a replay of all lanes) shows.
        """
        data = full_figures(self)
        for lane, wire in zip(self.lanes, data["lanes"], strict=True):
            wire["runs"] = [asdict(sample) for _, sample in sorted(lane.samples.items())]
            if traces:
                wire["traces"] = {str(i): trace.to_wire() for i, trace in lane.traces.items()}
        data["settings"]["images"] = list(self.plan.images)
        return data

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Comparison:
        """Rebuild a comparison from the plain JSON of `to_wire`; without traces it has no texts and no replays."""
        settings = data["settings"]
        plan = Plan(
            settings["target"],
            settings["max_new_tokens"],
            settings["seed"],
            settings["sampling"],
            tuple(settings["stop"]),
            settings["repeats"],
            tuple(settings.get("images", ())),
        )
        prompts = [BenchPrompt(p["name"], p["text"], p["group"], p["chat"]) for p in data["prompts"]]
        lanes = []
        for wire in data["lanes"]:
            samples = [sample_from_wire(run) for run in wire["runs"]]
            lanes.append(
                LaneRuns(
                    Lane(wire["method"], wire["params"], wire["drafter"]), wire["name"], wire["added"],
                    {(s.prompt, s.repeat): s for s in samples},
                    {int(i): Trace.from_wire(trace) for i, trace in wire.get("traces", {}).items()},
                    {i: race["repeat"] for i, race in enumerate(wire["race"]) if race and race["repeat"] is not None},
                    wire["error"],
                )
            )  # fmt: skip
        return cls(plan, prompts, lanes, data["machine"], data["complete"])

    def rows(self) -> list[dict[str, Any]]:
        """Return a table with one row per run of the comparison, for CSV and Parquet."""
        entries = []
        for lane in self.lanes:
            for (prompt, repeat), sample in sorted(lane.samples.items()):
                setting = {"lane": lane.name, "setting": str(lane.lane), "prompt": self.prompts[prompt].name}
                timed = {"tokens": len(sample.token_ids), "rounds": sample.rounds, "seconds": sample.seconds}
                entries.append(setting | {"repeat": repeat} | timed | sample.figures)
        return entries
