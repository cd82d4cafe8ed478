"""Split the time of a round into drafting, verification and overhead; compare the speed-up with Leviathan's formula.

Counts (τ, drafted tokens, acceptance) are over all rounds; mean times exclude stalled rounds
(`workbench.trace.stalls`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.trace import metrics, theory
from workbench.trace.events import Round, Trace
from workbench.trace.stalls import exclude_stalled, find_stalls
from workbench.trace.whatif.tau_prediction import draft_depths, predict_tau

LEAST_PLAIN_ROUNDS = 3
"""Minimum number of rounds without a draft that serve as a run's baseline if no run of plain decoding is given."""


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Mean time of a round, split into drafting, verification and overhead, and time of a plain step, in seconds.

    Attributes:
        rounds: number of rounds of the run.
        stalled: number of stalled rounds (slowed by other load on the machine).
        stalled_s: total time of the stalled rounds.
        plain_stalled: number of stalled rounds of plain decoding.
        measured: speed-up over plain decoding from all rounds, as the Live page shows it; None without a baseline. The
            property `speedup` excludes stalled rounds.
        tau: tokens emitted / target passes.
        drafted: drafted tokens per round.
        depth: drafted levels per round.
        rate: accepted / tested tree positions, with siblings counted once; None if nothing was tested.
        tau_iid: tokens per round if every test had the acceptance rate `rate`, by equation 1 of Leviathan et al. 2023
            at each round's depth.
        draft_s: time in forward passes of drafters.
        verify_s: time in the target's forward pass.
        accept_s: host overhead of verification: distributions, acceptance rule, walk.
        other_s: all other host overhead: building trees, moving the KV cache, recording, waiting.
        plain_s: time of a plain decoding step, overhead included; None without a baseline.
        plain_verify_s: time in the target's forward pass of a plain step.
        plain_from: text that names the run or the rounds in which the plain step was measured.
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
        """Return the mean time of a round in seconds."""
        return self.draft_s + self.verify_s + self.accept_s + self.other_s

    @property
    def speedup(self) -> float | None:
        """Return the speed-up over plain decoding; None without a baseline.

        Stalled rounds (slowed by other load on the machine) are excluded.
        """
        return self.tau * self.plain_s / self.round_s if self.plain_s and self.round_s else None

    @property
    def predicted_speedup(self) -> float | None:
        """Return the speed-up by theorem 3.8 of Leviathan et al. 2023, from measured acceptance rate and drafting time.

        The theorem assumes that verification takes as long as a plain step. None without a baseline or tested drafts.
        """
        if not self.plain_s or self.tau_iid is None:
            return None
        return theory.speedup(self.tau_iid, self.draft_s, self.plain_s, 0.0, self.plain_s)

    def steps(self) -> list[tuple[str, float]]:
        """Return the steps from the speed-up by Leviathan's formula to the measured speed-up: (text, speed-up) pairs.

        Each step replaces one more assumption of the formula by a measurement: τ, verification time, host overhead. The
        list is empty without a baseline or without a prediction.
        """
        plain, predicted, measured = self.plain_s, self.predicted_speedup, self.speedup
        if plain is None or predicted is None or measured is None:
            return []
        return [
            ("formula, with a constant acceptance rate and verification as expensive as a plain step", predicted),
            ("with the measured τ", theory.speedup(self.tau, self.draft_s, plain, 0.0, plain)),
            ("with the measured verification time", theory.speedup(self.tau, self.draft_s, self.verify_s, 0.0, plain)),
            ("with the measured overhead (the measured speed-up)", measured),
        ]

    def to_wire(self) -> dict[str, Any]:
        """Return the time breakdown and the values derived from it as JSON data."""
        wire = asdict(self) | {"round_s": self.round_s, "speedup": self.speedup, "predicted": self.predicted_speedup}
        return wire | {"steps": [{"what": step, "speedup": gain} for step, gain in self.steps()]}


def time_breakdown(trace: Trace, plain: Trace | None = None) -> TimeBreakdown:
    """Return the mean time of a run's round, split into drafting, verification and overhead.

    Args:
        trace: the run.
        plain: plain decoding of the same prompt by the same target. Without it, rounds of the run without a draft are
            the baseline, if there are at least `LEAST_PLAIN_ROUNDS`.

    Raises:
        WorkbenchError: the trace has no tokens, or `plain` has another target, number format or prompt.
    """
    rounds = trace.rounds
    if not any(r.emitted for r in rounds):
        raise WorkbenchError("The trace has no rounds that emitted tokens.", "Use a run with at least one token.")
    predicted = predict_tau(rounds)
    plain_decoding, plain_from = plain_rounds(trace, plain)
    stalled, timed, base = find_stalls(rounds), exclude_stalled(rounds), exclude_stalled(plain_decoding)
    verify = fmean(r.verify_s for r in timed)
    accept = fmean(sum(p.end_s - p.start_s for p in r.phases if p.name == "judge") for r in timed)
    overhead = fmean(r.overhead_s for r in timed)
    accept = min(accept, overhead)
    return TimeBreakdown(
        rounds=len(rounds),
        stalled=len(stalled),
        stalled_s=sum(rounds[i].seconds for i in stalled),
        plain_stalled=len(plain_decoding) - len(base),
        measured=_over(
            metrics.tokens_per_second(rounds),
            metrics.tokens_per_second(plain_decoding) if plain else _rate(plain_decoding),
        ),
        tau=metrics.tau(rounds) or 0.0,
        drafted=metrics.count_drafted(rounds) / len(rounds),
        depth=fmean(draft_depths(rounds)),
        rate=predicted["rate"],
        tau_iid=predicted["tau_iid"],
        draft_s=fmean(r.draft_s for r in timed),
        verify_s=verify,
        accept_s=accept,
        other_s=overhead - accept,
        plain_s=sum(r.seconds for r in base) / metrics.count_emitted(base) if base else None,
        plain_verify_s=fmean(r.verify_s for r in base) if base else None,
        plain_from=plain_from,
    )


def _rate(rounds: list[Round]) -> float | None:
    """Return the speed of some rounds in tokens per second, without time between rounds; None if no time is known."""
    seconds = sum(r.seconds for r in rounds)
    return metrics.count_emitted(rounds) / seconds if seconds else None


def _over(rate: float | None, plain: float | None) -> float | None:
    return rate / plain if rate is not None and plain else None


def plain_rounds(trace: Trace, plain: Trace | None) -> tuple[list[Round], str]:
    """Return the rounds without a draft that serve as baseline of a run, and a text that names their source.

    They are the rounds of `plain` if it is given, else the run's rounds without a draft if there are enough.
    """
    if plain is not None:
        header, plain_header = trace.header, plain.header
        for field, a, b in (
            ("target", header.target, plain_header.target),
            ("number format", header.dtype, plain_header.dtype),
            ("prompt", header.prompt_tokens, plain_header.prompt_tokens),
        ):
            if a != b:
                raise WorkbenchError(
                    f"The plain run and the examined run differ in their {field}.",
                    "Compare runs of the same target, number format and prompt.",
                )
        if not metrics.count_emitted(plain.rounds):
            raise WorkbenchError("The plain run generated no tokens.", "Use a run with at least one token.")
        return plain.rounds, "a plain run of the same prompt"
    undrafted = [r for r in trace.rounds if not len(r.nodes) and r.emitted]
    if len(undrafted) >= LEAST_PLAIN_ROUNDS:
        return undrafted, f"{len(undrafted)} rounds of this run without a draft"
    return [], "no baseline"
