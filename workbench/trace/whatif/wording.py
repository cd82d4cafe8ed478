"""A budget in words: is it slower, and why."""

from __future__ import annotations

from itertools import pairwise
from math import log

from workbench.trace.whatif.lengths import Lengths
from workbench.trace.whatif.timing import Budget

TELLING, SMALL = 0.1, 0.02
"""Relative differences of speeds below which they are not worth an explanation, or not worth a sentence."""


def words(found: Budget, lengths: Lengths | None = None) -> list[str]:
    """Why the run is as fast as it is, in sentences."""
    if not found.drafted:
        return ["Nothing was drafted: this is plain decoding."]
    if found.speedup is None or not found.plain_s:
        spent = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in _parts(found))
        return [
            f"A round takes {1e3 * found.round_s:.2f} ms ({spent}) and emits {found.tau:.2f} tokens.",
            "Whether that is faster than plain decoding cannot be told: no plain run is known. Record one with the "
            "same prompt and give it beside this one.",
            *_about_lengths(lengths),
        ]
    plain, cost = found.plain_s, found.round_s / found.plain_s
    verdict = "faster" if found.speedup > 1 else "slower"
    spent = ", ".join(f"{name} {s / plain:.2f}" for name, s in _parts(found))
    said = [
        f"{found.speedup:.2f} times as fast as plain decoding, so {verdict}: a round emits {found.tau:.2f} tokens and "
        f"costs {cost:.2f} plain steps ({spent}).",
        f"It breaks even at {cost:.2f} tokens a round"
        + (f", {cost - found.tau:.2f} more than it emits." if cost > found.tau else "."),
    ]
    plain_verify = found.plain_verify_s or 0.0
    extra = {
        "drafting": found.draft_s / plain,
        f"verifying {found.drafted + 1:.1f} tokens instead of 1": (found.verify_s - plain_verify) / plain,
        "accepting and host time": (found.accept_s + found.host_s - (plain - plain_verify)) / plain,
    }
    dearest = max(extra, key=extra.__getitem__)
    if extra[dearest] > SMALL:
        said.append(
            f"What it spends most on beyond a plain step is {dearest}: {extra[dearest]:.2f} plain steps a round. Were "
            f"that free, it would be {found.tau / (cost - extra[dearest]):.2f} times as fast as plain decoding."
        )
    return [*said, *_about_the_formula(found), *_about_lengths(lengths)]


def _about_the_formula(found: Budget) -> list[str]:
    steps = found.steps()
    if not steps or found.speedup is None:
        return []
    promise = f"The formula promises {steps[0][1]:.2f} times, from acceptance {found.rate:.0%} and the drafting time"
    if abs(steps[0][1] / found.speedup - 1) < TELLING:
        return [f"{promise}: about what was measured."]
    factor, what = max(
        ((after / before, what) for (_, before), (what, after) in pairwise(steps)), key=lambda x: abs(log(x[0]))
    )
    what = what.removeprefix("with ").removesuffix(": as measured")
    return [f"{promise}. What it leaves out most is {what}, which makes it {factor:.2f} times that."]


def _about_lengths(lengths: Lengths | None) -> list[str]:
    if lengths is None:
        return []
    best, ceiling = lengths.best, f"{lengths.oracle.relative:.2f} times this speed"
    said = f"Drafting exactly what will be accepted would give {ceiling}, by the run's own times"
    if best.depth == 0 and best.relative > 1 + SMALL:
        return [f"Not drafting at all would have been faster: {best.relative:.2f} times this speed. {said}."]
    if best.relative > 1 + SMALL:
        return [f"Drafts of at most {best.depth} would have given {best.relative:.2f} times this speed. {said}."]
    return [f"No shorter draft would have been faster. {said}."]


def _parts(found: Budget) -> list[tuple[str, float]]:
    return [
        ("draft", found.draft_s), ("verify", found.verify_s), ("accept", found.accept_s), ("host", found.host_s),
    ]  # fmt: skip
