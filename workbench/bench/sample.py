"""Data of one timed generation, and the protocol of contenders in a bench. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from workbench.core.errors import WorkbenchError
from workbench.trace.events import Trace
from workbench.trace.metrics import acceptance_by_depth, summary


@dataclass(slots=True)
class Sample:
    """Data of one timed generation of a contender.

    Attributes:
        contender: name of the contender.
        prompt: index of the prompt.
        repeat: number of the repetition, from 0.
        token_ids: ids of the generated tokens.
        seconds: duration of the whole call, prefill included.
        decode_seconds: time from the end of prefill to the last token; None if unknown.
        rounds: verification passes of the target.
        figures: sums for the rows: accepted, tested, drafted, draft_s, verify_s,
            decode_s and overhead_s, as `workbench.trace.metrics` defines them.
        warnings: warnings of the run's self-tests.
        steps: tokens that each round emitted, including corrected and bonus tokens; [] if the engine reports none.
        depths: (depth, rounds that tested a token there, rounds that accepted one), as in
            `metrics.acceptance_by_depth`.
        growth_bytes: rise of memory during the run; None if it cannot be measured.
    """

    contender: str
    prompt: int
    repeat: int
    token_ids: list[int]
    seconds: float
    decode_seconds: float | None
    rounds: int
    figures: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    depths: list[tuple[int, int, int]] = field(default_factory=list)
    growth_bytes: int | None = None

    @property
    def call_rate(self) -> float:
        """Return the tokens per second of the whole call, prefill included."""
        return len(self.token_ids) / self.seconds

    @property
    def decode_rate(self) -> float:
        """Return the tokens per second after prefill, or of the whole call if the end of prefill is unknown."""
        return len(self.token_ids) / (self.decode_seconds or self.seconds)


class ContenderFailedError(WorkbenchError):
    """Error of a contender that crashed or cannot run with these settings; the other contenders continue."""


@runtime_checkable
class Contender(Protocol):
    """Protocol of a contender in a bench: an implementation that continues a prompt and can be timed."""

    @property
    def name(self) -> str:
        """Return the contender's name in reports."""
        ...

    @property
    def title(self) -> str:
        """Return the contender's title for display."""
        ...

    @property
    def kind(self) -> str:
        """Return the implementation that the contender measures: "workbench", "hugging-face" or "llama.cpp"."""
        ...

    @property
    def promise(self) -> str:
        """Return the contender's promise about its output, such as "exact" (the target's distribution)."""
        ...

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the contender's settings that determine the work of a round."""
        ...

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of the weights that the contender uses, without copies in another memory layout."""
        ...

    def run(self, prompt_ids: Sequence[int], prompt: int = 0, repeat: int = 0) -> Sample:
        """Generate a continuation of a prompt once; `prompt` and `repeat` are labels of the returned sample.

        Raises:
            ContenderLostError: the contender cannot run any more.
        """
        ...


def sample_from_wire(data: Mapping[str, Any]) -> Sample:
    """Return the sample (data of one timed generation) whose fields are the entries of the plain JSON `data`."""
    return Sample(**{**data, "depths": [tuple(depth) for depth in data["depths"]]})


def counts_by_prompt(samples: Iterable[Sample], contender: str) -> list[list[float]]:
    """Return [tokens, target passes, seconds of decoding] of a contender's runs by prompt, as boards store runs."""
    runs = sorted((s for s in samples if s.contender == contender), key=lambda s: s.prompt)
    return [[len(s.token_ids), s.rounds, round(s.decode_seconds or s.seconds, 6)] for s in runs]


def sample_of(trace: Trace, contender: str, prompt: int, repeat: int, seconds: float) -> Sample:
    """Return the sample (data of one timed generation) of a run of the workbench's engine.

    `seconds` is the duration of the whole call.
    """
    figures = summary(trace)
    sums = {name: float(figures[name]) for name in ("accepted", "tested", "drafted")}
    decode = figures["seconds"]
    sums["decode_s"] = decode
    for part in ("draft", "verify", "overhead"):
        sums[f"{part}_s"] = figures[f"{part}_seconds"]
    return Sample(
        contender=contender,
        prompt=prompt,
        repeat=repeat,
        token_ids=trace.token_ids,
        seconds=seconds,
        decode_seconds=decode or None,
        rounds=figures["rounds"],
        figures=sums,
        warnings=list(trace.footer.warnings),
        steps=[len(r.emitted) for r in trace.rounds],
        depths=acceptance_by_depth(trace.rounds),
    )
