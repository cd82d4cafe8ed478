"""Explain a run's speed in sentences, from its time breakdown."""

from __future__ import annotations

from itertools import pairwise
from math import log

from workbench.trace.speedup import SLOWER, Estimate
from workbench.trace.stalls import TIMES
from workbench.trace.whatif.lengths import LengthPredictions
from workbench.trace.whatif.timing import TimeBreakdown

TELLING, SMALL = 0.1, 0.02
"""Thresholds for the explanation of a run's speed, as fractions. If the predicted and the measured speed-up differ by
less than `TELLING`, the explanation calls them close. Costs and gains up to `SMALL` are not mentioned."""


def explain_speed(
    breakdown: TimeBreakdown, lengths: LengthPredictions | None = None, measured: Estimate | None = None
) -> list[str]:
    """Return sentences that explain a run's speed.

    The sentences say "faster" or "slower" only if several pairs of runs show a significant difference.

    Args:
        breakdown: mean time of a round, split into its parts.
        lengths: predictions for other draft lengths.
        measured: speed-up over plain decoding from several pairs of runs; a single run is not conclusive.
    """
    if not breakdown.drafted:
        return ["Nothing was drafted in this run, so it is plain decoding."]
    if breakdown.speedup is None or not breakdown.plain_s or breakdown.measured is None:
        time_parts = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in _parts(breakdown))
        return [
            f"A round takes {1e3 * breakdown.round_s:.2f} ms ({time_parts}) and emits {breakdown.tau:.2f} tokens.",
            "The run's speed-up is unknown, because there is no plain run to compare with. Record a plain run "
            "of the same prompt and give both traces.",
            *_about_stalls(breakdown),
            *_about_lengths(lengths, measured),
        ]
    plain, cost = breakdown.plain_s, breakdown.round_s / breakdown.plain_s
    time_parts = ", ".join(f"{name} {s / plain:.2f}" for name, s in _parts(breakdown))
    sentences = [
        _headline(breakdown.measured, measured),
        *_about_stalls(breakdown),
        f"A round emits {breakdown.tau:.2f} tokens and takes as long as {cost:.2f} plain decoding steps "
        f"({time_parts}). To equal plain decoding, a round must emit {cost:.2f} tokens"
        + (f", {cost - breakdown.tau:.2f} more than in this run." if cost > breakdown.tau else "."),
    ]
    plain_verify = breakdown.plain_verify_s or 0.0
    extra = {
        "drafting": breakdown.draft_s / plain,
        f"verifying {breakdown.drafted + 1:.1f} tokens instead of 1": (breakdown.verify_s - plain_verify) / plain,
        "overhead": (breakdown.accept_s + breakdown.other_s - (plain - plain_verify)) / plain,
    }
    dearest = max(extra, key=extra.__getitem__)
    if extra[dearest] > SMALL:
        sentences.append(
            f"The largest extra cost of a round over a plain step is {dearest}, which takes "
            f"{extra[dearest]:.2f} plain steps. Without this cost the run would be "
            f"{breakdown.tau / (cost - extra[dearest]):.2f} times as fast as plain decoding."
        )
    return [*sentences, *_about_the_formula(breakdown), *_about_lengths(lengths, measured)]


def _headline(of_run: float, measured: Estimate | None) -> str:
    if measured is None or measured.n < 2:
        return f"{Estimate(of_run, None, None, 1, 1).sentence}, which is not conclusive; measure more pairs of runs."
    return f"{measured.sentence}."


def _about_stalls(found: TimeBreakdown) -> list[str]:
    if not found.stalled and not found.plain_stalled:
        return []
    which = [f"{found.stalled} of {found.rounds} rounds"] if found.stalled else []
    which += [f"{found.plain_stalled} of the plain run's"] if found.plain_stalled else []
    rounds = (
        f"{' and '.join(which)} stalled: such a round took more than {TIMES:.0f} times as long as comparable rounds"
    )
    return [f"{rounds}, because the machine was busy. The following values exclude the stalled rounds."]


def _about_the_formula(found: TimeBreakdown) -> list[str]:
    steps = found.steps()
    if not steps or found.speedup is None:
        return []
    prediction = (
        f"Leviathan's formula predicts {steps[0][1]:.2f} times the speed of plain decoding, from the acceptance "
        f"rate over tested positions ({found.rate:.0%}) and the drafting time"
    )
    if abs(steps[0][1] / found.speedup - 1) < TELLING:
        return [f"{prediction}, close to the measurement."]
    factor, assumption = max(
        ((after / before, assumption) for (_, before), (assumption, after) in pairwise(steps)),
        key=lambda x: abs(log(x[0])),
    )
    assumption = assumption.removeprefix("with ").removesuffix(" (the measured speed-up)")
    return [
        f"{prediction}. The largest correction is to use {assumption}, which multiplies the prediction by {factor:.2f}."
    ]


def _about_lengths(lengths: LengthPredictions | None, measured: Estimate | None) -> list[str]:
    if lengths is None:
        return []
    best, ceiling = lengths.best, f"{lengths.oracle.relative:.2f} times this speed"
    oracle = f"Drafting exactly the accepted tokens would give {ceiling}, as predicted from the run's mean times"
    if best.depth == 0 and best.relative > 1 + SMALL:
        if measured is not None and measured.verdict == SLOWER:
            return [f"Plain decoding is faster: {1 / measured.value:.2f} times as fast as this method. {oracle}."]
        others = "one run is not conclusive" if measured is None else f"over several pairs, {measured.sentence}"
        return [
            f"In this run, plain decoding would be {best.relative:.2f} times as fast as the recorded "
            f"rounds; {others}. {oracle}."
        ]
    if best.relative > 1 + SMALL:
        return [f"Drafts of at most {best.depth} levels would give {best.relative:.2f} times this speed. {oracle}."]
    return [f"No shorter draft would be faster. {oracle}."]


def _parts(found: TimeBreakdown) -> list[tuple[str, float]]:
    return [
        ("draft", found.draft_s), ("verify", found.verify_s), ("overhead", found.accept_s + found.other_s),
    ]  # fmt: skip
