"""A budget in words: what it costs, and what can be concluded from it."""

from __future__ import annotations

from itertools import pairwise
from math import log

from workbench.trace.speedup import SLOWER, Estimate
from workbench.trace.stalls import TIMES
from workbench.trace.whatif.lengths import Lengths
from workbench.trace.whatif.timing import Budget

TELLING, SMALL = 0.1, 0.02
"""Relative differences of speeds below which they are not worth an explanation, or not worth a sentence."""


def words(found: Budget, lengths: Lengths | None = None, measured: Estimate | None = None) -> list[str]:
    """Why the run is as fast as it is, in sentences. Faster or slower it is called only where pairs of runs say so.

    Args:
        found: where the time of a round goes.
        lengths: what other draft lengths come to.
        measured: speed-up from several pairs of runs like this; without it there is one run, which decides nothing.
    """
    if not found.drafted:
        return ["Nothing was drafted: this is plain decoding."]
    if found.speedup is None or not found.plain_s or found.measured is None:
        spent = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in _parts(found))
        return [
            f"A round takes {1e3 * found.round_s:.2f} ms ({spent}) and emits {found.tau:.2f} tokens.",
            "Whether that is faster than plain decoding cannot be told: no plain run is known. Record one with the "
            "same prompt and give it beside this one.",
            *_about_stalls(found),
            *_about_lengths(lengths, measured),
        ]
    plain, cost = found.plain_s, found.round_s / found.plain_s
    spent = ", ".join(f"{name} {s / plain:.2f}" for name, s in _parts(found))
    said = [
        _headline(found.measured, measured),
        *_about_stalls(found),
        f"A round emits {found.tau:.2f} tokens and costs {cost:.2f} plain steps ({spent}): it breaks even at "
        f"{cost:.2f} tokens a round" + (f", {cost - found.tau:.2f} more than it emits." if cost > found.tau else "."),
    ]
    plain_verify = found.plain_verify_s or 0.0
    extra = {
        "drafting": found.draft_s / plain,
        f"verifying {found.drafted + 1:.1f} tokens instead of 1": (found.verify_s - plain_verify) / plain,
        "overhead": (found.accept_s + found.other_s - (plain - plain_verify)) / plain,
    }
    dearest = max(extra, key=extra.__getitem__)
    if extra[dearest] > SMALL:
        said.append(
            f"What it spends most on beyond a plain step is {dearest}: {extra[dearest]:.2f} plain steps a round. Were "
            f"that free, it would come to {found.tau / (cost - extra[dearest]):.2f} times plain decoding."
        )
    return [*said, *_about_the_formula(found), *_about_lengths(lengths, measured)]


def _headline(of_run: float, measured: Estimate | None) -> str:
    if measured is None or measured.n < 2:
        return (
            f"{Estimate(of_run, None, None, 1, 1).sentence}, which cannot tell faster from slower; measure more pairs."
        )
    return f"{measured.sentence}."


def _about_stalls(found: Budget) -> list[str]:
    if not found.stalled and not found.plain_stalled:
        return []
    which = [f"{found.stalled} of {found.rounds} rounds"] if found.stalled else []
    which += [f"{found.plain_stalled} of the plain run's"] if found.plain_stalled else []
    said = f"{' and '.join(which)} stalled: more than {TIMES:.0f} times as long as rounds like them, since the machine "
    return [said + "had other work. What follows leaves them out."]


def _about_the_formula(found: Budget) -> list[str]:
    steps = found.steps()
    if not steps or found.speedup is None:
        return []
    promise = f"The formula gives {steps[0][1]:.2f} times, from acceptance {found.rate:.0%} and the drafting time"
    if abs(steps[0][1] / found.speedup - 1) < TELLING:
        return [f"{promise}: about what was measured."]
    factor, what = max(
        ((after / before, what) for (_, before), (what, after) in pairwise(steps)), key=lambda x: abs(log(x[0]))
    )
    what = what.removeprefix("with ").removesuffix(": as measured")
    return [f"{promise}. What it leaves out most is {what}, which makes it {factor:.2f} times that."]


def _about_lengths(lengths: Lengths | None, measured: Estimate | None) -> list[str]:
    if lengths is None:
        return []
    best, ceiling = lengths.best, f"{lengths.oracle.relative:.2f} times this speed"
    said = f"Drafting exactly what will be accepted would come to {ceiling}, by the run's own mean times"
    if best.depth == 0 and best.relative > 1 + SMALL:
        if measured is not None and measured.verdict == SLOWER:
            return [f"Not drafting at all is faster: {1 / measured.value:.2f} times this speed. {said}."]
        others = "one run decides nothing" if measured is None else f"over several, drafting is {measured.sentence}"
        return [f"Not drafting comes to {best.relative:.2f} times this speed in this run; {others}. {said}."]
    if best.relative > 1 + SMALL:
        return [f"Drafts of at most {best.depth} would come to {best.relative:.2f} times this speed. {said}."]
    return [f"No shorter draft comes out faster. {said}."]


def _parts(found: Budget) -> list[tuple[str, float]]:
    return [
        ("draft", found.draft_s), ("verify", found.verify_s), ("overhead", found.accept_s + found.other_s),
    ]  # fmt: skip
