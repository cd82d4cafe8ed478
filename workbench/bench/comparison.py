"""A comparison with its figures, as plain data for display and transfer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from workbench.bench.comparison_figures import full_figures, partial_figures
from workbench.bench.comparison_runs import ComparisonRuns, LaneRuns, Plan
from workbench.bench.lanes import Lane
from workbench.bench.prompts import BenchPrompt
from workbench.bench.sample import Sample
from workbench.trace.events import Trace


class Comparison(ComparisonRuns):
    """Lanes of a comparison with all figures computed from their runs."""

    __slots__ = ()

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Figures by the lane's name: speedup, tokens_per_second, tau, acceptance_rate, ms_per_token and counts."""
        return {lane["name"]: lane["figures"] for lane in partial_figures(self)["lanes"]}

    @property
    def traces(self) -> dict[str, Trace]:
        """Traces of the first prompt by the lane's name, from the repeat that the race replays."""
        return {lane.name: lane.traces[0] for lane in self.lanes if 0 in lane.traces}

    def to_wire(self, traces: bool = False) -> dict[str, Any]:
        """Return the comparison with its figures as plain JSON; with `traces`, all data that `from_wire` needs."""
        data = full_figures(self)
        for lane, wire in zip(self.lanes, data["lanes"], strict=True):
            wire["runs"] = [asdict(sample) for _, sample in sorted(lane.samples.items())]
            if traces:
                wire["traces"] = {str(i): trace.to_wire() for i, trace in lane.traces.items()}
        data["settings"]["images"] = list(self.plan.images)
        return data

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Comparison:
        """Return a comparison from `to_wire`'s data; without traces, races and texts are lost."""
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
            samples = [Sample(**run | {"depths": [tuple(d) for d in run["depths"]]}) for run in wire["runs"]]
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
        """Return one row per run, for CSV and Parquet."""
        entries = []
        for lane in self.lanes:
            for (prompt, repeat), sample in sorted(lane.samples.items()):
                setting = {"lane": lane.name, "setting": str(lane.lane), "prompt": self.prompts[prompt].name}
                timed = {"tokens": len(sample.token_ids), "rounds": sample.rounds, "seconds": sample.seconds}
                entries.append(setting | {"repeat": repeat} | timed | sample.figures)
        return entries
