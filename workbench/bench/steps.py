"""Progress of a comparison, step by step, for display and for clients in other processes.

Each run is sent once, when it has ended. A trace is sent when the race (a replay of all lanes) selects it. So the
receiver has all finished runs at any time, even if the connection breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from workbench.bench.comparison_figures import partial_figures, race
from workbench.bench.sample import sample_from_wire
from workbench.core.errors import WorkbenchError
from workbench.trace.events import Trace

if TYPE_CHECKING:
    from workbench.bench.comparison import Comparison

NUMBERS = ("done", "total", "text", "waiting", "left_s", "lane", "tokens", "limit", "prompt", "last")


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a comparison.

    Attributes:
        done: finished runs, warm-up included.
        total: number of all runs, warm-up included.
        text: current action, for display.
        waiting: reason for waiting; empty while a run is active.
        left_s: estimated seconds left, from the runs so far; None before the first run has ended.
        comparison: results so far, after each run; complete in the last step of a comparison that was not stopped.
        last: whether this is the last step.
        lane: name of the current lane (method with settings); empty between runs.
        tokens: tokens of the current run so far.
        limit: length limit of the current run.
        prompt: index of the current prompt.
    """

    done: int
    total: int
    text: str
    waiting: str = ""
    left_s: float | None = None
    comparison: Comparison | None = None
    last: bool = False
    lane: str = ""
    tokens: int = 0
    limit: int = 0
    prompt: int = 0

    @property
    def numbers(self) -> dict[str, Any]:
        """Return the progress of a comparison as plain JSON, without the comparison's results."""
        return {name: getattr(self, name) for name in NUMBERS}

    def to_wire(self) -> dict[str, Any]:
        """Return the progress of a comparison as plain JSON for the page, with the metrics so far.

        It also contains the race (replay of all lanes) on the current prompt; the last step contains the whole
        comparison.
        """
        comparison = self.comparison
        if comparison is None:
            return self.numbers | {"comparison": None}
        if self.last:
            return self.numbers | {"comparison": comparison.to_wire()}
        data, plain, i = partial_figures(comparison), comparison.reference, self.prompt
        for lane, wire in zip(comparison.lanes, data["lanes"], strict=True):
            wire["race"] = {str(i): race(lane, i, plain)} if i in lane.traces else {}
        return self.numbers | {"comparison": data}


class StepEncoder:
    """Converts a comparison's progress steps into messages for another process; one instance per receiver."""

    def __init__(self) -> None:
        self._sent_runs: set[tuple[int, int, int]] = set()
        self._sent_traces: dict[tuple[int, int], Trace] = {}

    def message(self, step: Step) -> dict[str, Any]:
        """Return a comparison's progress as plain JSON, with runs and traces that are new since the last message."""
        comparison = step.comparison
        if comparison is None:
            return step.numbers | {"news": None}
        runs, traces = [], []
        for i, lane in enumerate(comparison.lanes):
            for (prompt, repeat), sample in sorted(lane.samples.items()):
                if (i, prompt, repeat) not in self._sent_runs:
                    self._sent_runs.add((i, prompt, repeat))
                    runs.append({"lane": i, "sample": asdict(sample)})
            for prompt, trace in lane.traces.items():
                if self._sent_traces.get((i, prompt)) is not trace:
                    self._sent_traces[i, prompt] = trace
                    keys = {"lane": i, "prompt": prompt, "repeat": lane.selected_repeat.get(prompt)}
                    traces.append({**keys, "trace": trace.to_wire()})
        state = {
            "complete": comparison.complete,
            "machine": comparison.machine,
            "errors": [lane.error for lane in comparison.lanes],
        }
        return step.numbers | {"news": {**state, "runs": runs, "traces": traces}}


class StepDecoder:
    """Converts messages from another process into progress steps, and rebuilds the comparison measured there.

    Args:
        comparison: the comparison, prepared like the original, without any run.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def step(self, message: Mapping[str, Any]) -> Step:
        """Return the progress step that a message of `StepEncoder` describes, with the comparison rebuilt so far.

        Raises:
            WorkbenchError: the message comes from another version of the workbench.
        """
        if "news" not in message:
            raise WorkbenchError(
                "The connected app sends comparison results in the format of another version.",
                "Use the same version of the workbench here and in the connected app.",
            )
        news = message["news"]
        if news is not None:
            self._apply_update(news)
        comparison = self.comparison if news is not None else None
        return Step(comparison=comparison, **{name: message[name] for name in NUMBERS if name in message})

    def _apply_update(self, news: Mapping[str, Any]) -> None:
        comparison = self.comparison
        comparison.complete, comparison.machine = news["complete"], news["machine"]
        for lane, error in zip(comparison.lanes, news["errors"], strict=True):
            lane.error = error
        for run in news["runs"]:
            sample = sample_from_wire(run["sample"])
            comparison.lanes[run["lane"]].samples[sample.prompt, sample.repeat] = sample
        for entry in news["traces"]:
            lane, prompt = comparison.lanes[entry["lane"]], entry["prompt"]
            lane.traces[prompt] = Trace.from_wire(entry["trace"])
            if entry["repeat"] is not None:
                lane.selected_repeat[prompt] = entry["repeat"]
