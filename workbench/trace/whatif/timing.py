"""Where the time of a round goes, and what the formula makes of it.

Counts (τ, drafts, acceptance) are over all rounds; mean times leave out rounds that stalled (`workbench.trace.stalls`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.trace import metrics, theory
from workbench.trace.events import Round, Trace
from workbench.trace.stalls import calm, stalls
from workbench.trace.whatif.predicted import depths, laws

LEAST_PLAIN_ROUNDS = 3
"""Rounds without a draft that stand for plain decoding when no plain run is given."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Mean seconds of a round by what they were spent on, beside a plain step.

    Attributes:
        rounds: of the run.
        stalled: those of them that stalled.
        stalled_s: what these took, all together.
        plain_stalled: rounds of plain decoding that stalled.
        measured: tokens per second against plain decoding's, over all rounds: what the run's key figure says; None
            where no plain decoding is known. See `speedup` for the same without stalls.
        tau: tokens emitted / target passes.
        drafted: drafted tokens a round.
        depth: levels drafted a round.
        rate: accepted / tested, the siblings of one place counted once; None where nothing was tested.
        tau_iid: tokens a round if every test passed with that rate, by equation 1 for each round's depth.
        draft_s: in forwards of drafters.
        verify_s: in the target's forward.
        accept_s: overhead of accepting: laws, rule and verdict.
        other_s: overhead of everything else: building trees, moving the cache, recording, waiting.
        plain_s: a whole plain step, its own overhead included; None where no plain decoding is known.
        plain_verify_s: the target's forward in it.
        plain_from: where the plain step comes from, in words.
    """

    rounds: int
    stalled: int
    stalled_s: float
    plain_stalled: int
    measured: float | None
    tau: float
    drafted: float
    depth: float
    rate: float | None
    tau_iid: float | None
    draft_s: float
    verify_s: float
    accept_s: float
    other_s: float
    plain_s: float | None
    plain_verify_s: float | None
    plain_from: str

    @property
    def round_s(self) -> float:
        """Length of a round."""
        return self.draft_s + self.verify_s + self.accept_s + self.other_s

    @property
    def speedup(self) -> float | None:
        """Tokens per second against plain decoding, without the rounds that stalled on either side."""
        return self.tau * self.plain_s / self.round_s if self.plain_s and self.round_s else None

    @property
    def predicted(self) -> float | None:
        """Leviathan's theorem 3.8 from the measured rate and drafting time: a verification costs a plain step."""
        if not self.plain_s or self.tau_iid is None:
            return None
        return theory.speedup(self.tau_iid, self.draft_s, self.plain_s, 0.0, self.plain_s)

    def steps(self) -> list[tuple[str, float]]:
        """From the formula's prediction to the measured speed-up, one assumption after the other."""
        plain, predicted, measured = self.plain_s, self.predicted, self.speedup
        if plain is None or predicted is None or measured is None:
            return []
        return [
            ("the formula: every draft accepted alike, verification as dear as a plain step", predicted),
            ("with the measured τ", theory.speedup(self.tau, self.draft_s, plain, 0.0, plain)),
            ("with the measured verification", theory.speedup(self.tau, self.draft_s, self.verify_s, 0.0, plain)),
            ("with the overhead: as measured", measured),
        ]

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON, with what follows from the figures."""
        found = asdict(self) | {"round_s": self.round_s, "speedup": self.speedup, "predicted": self.predicted}
        return found | {"steps": [{"what": what, "speedup": gain} for what, gain in self.steps()]}


def budget(trace: Trace, plain: Trace | None = None) -> Budget:
    """Where the time of a round goes.

    Args:
        trace: the run.
        plain: plain decoding of the same prompt by the same target; without it, rounds of the run that drafted nothing
            stand for it, if there are at least `LEAST_PLAIN_ROUNDS`.

    Raises:
        WorkbenchError: the trace generated nothing, or `plain` is of another target, number format or prompt.
    """
    rounds = trace.rounds
    if not any(r.emitted for r in rounds):
        raise WorkbenchError("The trace has no rounds with tokens.", "Give a run that generated something.")
    predicted = laws(rounds)
    every, where = plain_rounds(trace, plain)
    stalled, timed, base = stalls(rounds), calm(rounds), calm(every)
    verify = fmean(r.verify_s for r in timed)
    accept = fmean(sum(p.end_s - p.start_s for p in r.phases if p.name == "judge") for r in timed)
    overhead = fmean(r.overhead_s for r in timed)
    accept = min(accept, overhead)
    return Budget(
        rounds=len(rounds),
        stalled=len(stalled),
        stalled_s=sum(rounds[i].seconds for i in stalled),
        plain_stalled=len(every) - len(base),
        measured=_over(metrics.tokens_per_second(rounds), metrics.tokens_per_second(every) if plain else _rate(every)),
        tau=metrics.tau(rounds) or 0.0,
        drafted=metrics.drafted(rounds) / len(rounds),
        depth=fmean(depths(rounds)),
        rate=predicted["rate"],
        tau_iid=predicted["tau_iid"],
        draft_s=fmean(r.draft_s for r in timed),
        verify_s=verify,
        accept_s=accept,
        other_s=overhead - accept,
        plain_s=sum(r.seconds for r in base) / metrics.emitted(base) if base else None,
        plain_verify_s=fmean(r.verify_s for r in base) if base else None,
        plain_from=where,
    )


def _rate(rounds: list[Round]) -> float | None:
    """Tokens per second of rounds picked out of a run, which has no time between them; None where none was recorded."""
    seconds = sum(r.seconds for r in rounds)
    return metrics.emitted(rounds) / seconds if seconds else None


def _over(rate: float | None, plain: float | None) -> float | None:
    return rate / plain if rate is not None and plain else None


def plain_rounds(trace: Trace, plain: Trace | None) -> tuple[list[Round], str]:
    """The rounds that stand for plain decoding, and where they are from; see `budget`."""
    if plain is not None:
        mine, theirs = trace.header, plain.header
        for what, a, b in (
            ("target", mine.target, theirs.target),
            ("number format", mine.dtype, theirs.dtype),
            ("prompt", mine.prompt_tokens, theirs.prompt_tokens),
        ):
            if a != b:
                raise WorkbenchError(
                    f"The plain run has another {what} than the run.", "Compare runs of one target and prompt."
                )
        if not metrics.emitted(plain.rounds):
            raise WorkbenchError("The plain run emitted nothing.", "Give a run that generated something.")
        return plain.rounds, "a plain run of the same prompt"
    without = [r for r in trace.rounds if not len(r.nodes) and r.emitted]
    if len(without) >= LEAST_PLAIN_ROUNDS:
        return without, f"{len(without)} rounds of this run that drafted nothing"
    return [], "none is known"
