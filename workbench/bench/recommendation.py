"""A measured recommendation: a ranking with intervals, the reason in words, the command. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workbench.bench.lanes import BASELINE
from workbench.trace.speedup import FASTER, SLOWER, Estimate

HIGH_REPETITION = 0.3
"""Share of repeated tokens above which the recommendation calls copying promising."""


@dataclass(frozen=True, slots=True)
class RankedMethod:
    """A method with its measured figures.

    Attributes:
        method: registry name.
        title: title for display.
        params: non-default parameters.
        speedup: speed-up over plain decoding; None if there are no runs to compare.
        tau: tokens per target pass.
        acceptance: drafted tokens accepted / tested.
        round_cost: seconds per round / seconds per step of plain decoding.
        draft_ms: drafting time per round.
        verify_ms: verification time per round.
        left: pass after which it was dropped as slower than the best, from 1; 0: never.
    """

    method: str
    title: str
    params: dict[str, Any]
    speedup: Estimate | None
    tau: float | None
    acceptance: float | None
    round_cost: float | None
    draft_ms: float | None
    verify_ms: float | None
    left: int = 0

    @property
    def why(self) -> str:
        """Return a sentence that explains the method's speed: tokens per round, and cost of a round."""
        if self.speedup is None or self.tau is None or not self.round_cost:
            return "Only plain decoding was measured."
        tau, round_cost = self.tau, self.round_cost
        acceptance = (
            "no draft was tested" if self.acceptance is None else f"{self.acceptance:.0%} of its drafts accepted"
        )
        cost = f"a round costs {round_cost:.2f} plain steps"
        if self.draft_ms is not None and self.verify_ms is not None:
            cost += f" ({self.draft_ms:.1f} ms drafting, {self.verify_ms:.1f} ms verifying)"
        return (
            f"{tau:.2f} tokens per pass, {acceptance}; {cost}: {tau:.2f} / {round_cost:.2f} = {tau / round_cost:.2f}."
        )

    def to_wire(self) -> dict[str, Any]:
        """Return plain JSON."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {"speedup": self.speedup and self.speedup.to_wire(), "why": self.why}


@dataclass(slots=True)
class Recommendation:
    """Results of the measurement, and the recommendation.

    Attributes:
        target: name of the target.
        prompts: names of the measured prompts.
        ranking: fastest first, without plain decoding.
        repeats: share of the plain texts' tokens that also followed the last occurrence of the three tokens before
            them.
        seconds: time spent.
        passes: number of passes over all prompts, including an unfinished one.
        complete: False if the measurement was stopped before the time was up.
        machine: facts about the machine.
        failed: methods that could not run, with the reasons.
        asked: number of requested prompts.
        unreached: methods for which the time was too short.
        disturbed: number of plain runs that are left out since they were far slower than the others.
        refused: methods left out of the ranking, since their speed-up is far above their tokens per pass.
    """

    target: str
    prompts: list[str]
    ranking: list[RankedMethod]
    repeats: float | None
    seconds: float
    passes: int
    complete: bool
    machine: dict[str, Any]
    failed: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    unreached: list[str] = field(default_factory=list)
    disturbed: int = 0
    refused: list[str] = field(default_factory=list)

    @property
    def best(self) -> RankedMethod | None:
        """Return the best method if it is significantly faster than plain decoding; None if there is none."""
        return next((c for c in self.ranking if c.speedup is not None and c.speedup.verdict == FASTER), None)

    @property
    def rivals(self) -> list[str]:
        """Return the methods whose intervals overlap that of the best method."""
        if self.best is None or self.best.speedup is None or self.best.speedup.low is None:
            return []
        low = self.best.speedup.low
        return [
            c.method for c in self.ranking
            if c is not self.best and c.speedup is not None and (c.speedup.high is None or c.speedup.high >= low)
        ]  # fmt: skip

    @property
    def answer(self) -> str:
        """Return the recommended method, its certainty, and the explanation."""
        best, n = self.best, len(self.ranking)
        copy_note = (
            ""
            if self.repeats is None
            else (
                f" {self.repeats:.0%} of the text repeats earlier text"
                + (
                    ": methods that copy can benefit."
                    if self.repeats >= HIGH_REPETITION
                    else ": there is little to copy."
                )
            )
        )
        if best is None or best.speedup is None:
            slower = all(c.speedup is not None and c.speedup.verdict == SLOWER for c in self.ranking)
            summary = "every method was slower" if self.ranking and slower else "no method is significantly faster yet"
            more_note = "" if slower else " More time or prompts may show a difference."
            return f"Plain decoding: {summary}.{copy_note}{more_note}"
        tie_note = f" Not significantly slower: {', '.join(self.rivals)}." if self.rivals else ""
        chance = f" As it is the fastest of {n} methods, its measured speed-up is likely too high." if n > 1 else ""
        return f"{best.title}: {best.speedup.sentence}. {best.why}{copy_note}{tie_note}{chance}"

    @property
    def limits(self) -> str:
        """Return the omissions of the measurement, in sentences; empty if there are none."""
        sentences = list[str]()
        if self.complete and len(self.prompts) < self.asked:
            sentences.append(f"The time sufficed for {len(self.prompts)} of {self.asked} prompts.")
        if self.unreached and self.complete:
            n = len(self.unreached)
            sentences.append(
                f"It did not suffice for {n} {'method' if n == 1 else 'methods'}: {', '.join(self.unreached)}."
            )
        if self.disturbed:
            runs = "run is" if self.disturbed == 1 else "runs are"
            sentences.append(
                f"{self.disturbed} plain {runs} left out: far slower than the others, due to other load on the machine."
            )
        if self.refused:
            sentences.append(
                f"Left out of the ranking: {', '.join(self.refused)}, because the measured speed-up far exceeds the "
                "tokens per pass, which is impossible. Measure again on an idle machine, with more prompts."
            )
        return " ".join(sentences)

    @property
    def command(self) -> str:
        """Return the command that runs the best method."""
        best = self.best
        name, params = (best.method, best.params) if best else (BASELINE, {})
        settings = "".join(f" --set {key}={value}" for key, value in params.items())
        return f'workbench generate --target {self.target} --chat "…" --method {name}{settings}'

    def to_wire(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "target": self.target, "answer": self.answer, "command": self.command,
            "best": self.best and self.best.method, "rivals": self.rivals,
            "ranking": [choice.to_wire() for choice in self.ranking], "repeats": self.repeats,
            "prompts": self.prompts, "seconds": self.seconds, "passes": self.passes, "complete": self.complete,
            "failed": self.failed, "machine": self.machine, "asked": self.asked, "unreached": self.unreached,
            "disturbed": self.disturbed, "refused": self.refused, "limits": self.limits,
        }  # fmt: skip
