"""What a measured recommendation says: a ranking with intervals, the reason in words, the command. No PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workbench.bench.lanes import BASELINE
from workbench.trace.speedup import FASTER, SLOWER, Estimate

MUCH = 0.3
"""Share of repeated tokens from which copying is said to have something to copy."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A method with what was measured of it.

    Attributes:
        method: registry name.
        title: for people.
        params: that are not its defaults.
        speedup: over plain decoding; None where nothing was measured beside it.
        tau: tokens a target pass.
        acceptance: drafted tokens accepted / tested.
        round_cost: seconds of its round / seconds of a plain one.
        draft_ms: of a round.
        verify_ms: of a round.
        left: pass after which it was left out as slower than the best, from 1; 0: it was not.
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
        """Its speed in words: what it gains a round, and what a round costs."""
        if self.speedup is None or self.tau is None or not self.round_cost:
            return "Only plain decoding was measured."
        tau, price = self.tau, self.round_cost
        kept = "no draft was tested" if self.acceptance is None else f"{self.acceptance:.0%} of its drafts accepted"
        cost = f"a round costs {price:.2f} plain ones"
        if self.draft_ms is not None and self.verify_ms is not None:
            cost += f" ({self.draft_ms:.1f} ms drafting, {self.verify_ms:.1f} ms verifying)"
        return f"{tau:.2f} tokens per pass, {kept}; {cost}: {tau:.2f} / {price:.2f} = {tau / price:.2f}."

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"speedup": self.speedup and self.speedup.to_wire(), "why": self.why}


@dataclass(slots=True)
class Recommendation:
    """What was measured, and what follows.

    Attributes:
        target: its name.
        prompts: names of those that were measured.
        ranking: fastest first; plain decoding is not among them.
        repeats: share of the tokens of the plain texts that the three tokens before them told from earlier on.
        seconds: spent.
        passes: over all prompts, finished or not.
        complete: False where somebody stopped it before the time was up.
        machine: facts.
        failed: methods that could not run, and why.
        asked: prompts that were given.
        unreached: methods that the time did not suffice for.
        disturbed: number of plain runs that are left out, far slower than the others.
        refused: methods left out of the ranking, since their speed-up is far above their tokens a pass.
    """

    target: str
    prompts: list[str]
    ranking: list[Choice]
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
    def best(self) -> Choice | None:
        """The first of the ranking that is surely faster than plain decoding; None: no method is known to be."""
        return next((c for c in self.ranking if c.speedup is not None and c.speedup.verdict == FASTER), None)

    @property
    def rivals(self) -> list[str]:
        """Methods whose intervals overlap the best one's."""
        if self.best is None or self.best.speedup is None or self.best.speedup.low is None:
            return []
        low = self.best.speedup.low
        return [
            c.method for c in self.ranking
            if c is not self.best and c.speedup is not None and (c.speedup.high is None or c.speedup.high >= low)
        ]  # fmt: skip

    @property
    def answer(self) -> str:
        """Which method, how sure that is, and why."""
        best, n = self.best, len(self.ranking)
        repeated = "" if self.repeats is None else (
            f" Of the text, {self.repeats:.0%} repeats what stood before"
            + (": what copies has something to copy." if self.repeats >= MUCH else ": there is little to copy.")
        )  # fmt: skip
        if best is None or best.speedup is None:
            slower = all(c.speedup is not None and c.speedup.verdict == SLOWER for c in self.ranking)
            known = "every method was slower" if self.ranking and slower else "no method is surely faster yet"
            return f"Plain decoding: {known}.{repeated}" + ("" if slower else " More minutes or prompts may tell.")
        tied = f" As fast, for all that was measured: {', '.join(self.rivals)}." if self.rivals else ""
        chance = f" The first of {n} owes some of its lead to chance." if n > 1 else ""
        return f"{best.title}: {best.speedup.sentence}. {best.why}{repeated}{tied}{chance}"

    @property
    def limits(self) -> str:
        """What was left out, in sentences; empty where nothing was."""
        said = list[str]()
        if self.complete and len(self.prompts) < self.asked:
            said.append(f"The time sufficed for {len(self.prompts)} of {self.asked} prompts.")
        if self.unreached and self.complete:
            n = len(self.unreached)
            said.append(f"It did not suffice for {n} {'method' if n == 1 else 'methods'}: {', '.join(self.unreached)}.")
        if self.disturbed:
            runs = "run is" if self.disturbed == 1 else "runs are"
            said.append(
                f"{self.disturbed} plain {runs} left out: far slower than the others, so that something else slowed it."
            )
        if self.refused:
            said.append(
                f"Left out of the ranking: {', '.join(self.refused)}, measured far above the tokens a pass gives, "
                "which no method can reach. Measure again on an idle machine, with more prompts."
            )
        return " ".join(said)

    @property
    def command(self) -> str:
        """What runs it."""
        chosen = self.best
        name, params = (chosen.method, chosen.params) if chosen else (BASELINE, {})
        settings = "".join(f" --set {key}={value}" for key, value in params.items())
        return f'workbench generate --target {self.target} --chat "…" --method {name}{settings}'

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "target": self.target, "answer": self.answer, "command": self.command,
            "best": self.best and self.best.method, "rivals": self.rivals,
            "ranking": [choice.to_wire() for choice in self.ranking], "repeats": self.repeats,
            "prompts": self.prompts, "seconds": self.seconds, "passes": self.passes, "complete": self.complete,
            "failed": self.failed, "machine": self.machine, "asked": self.asked, "unreached": self.unreached,
            "disturbed": self.disturbed, "refused": self.refused, "limits": self.limits,
        }  # fmt: skip
