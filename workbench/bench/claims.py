"""What the papers claim, what was measured here, and the verdict that a rule draws from the two.

A claim stands with its method, as data: quantity, setting and figure of the paper, and the function that measures the
same quantity at a scale of this workbench: on the bundled pair, or on another target. Nobody writes a verdict: `judge`
computes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.engine.declarations import BUNDLED as BUNDLED
from workbench.engine.declarations import Claim as Claim
from workbench.engine.declarations import Measured as Measured
from workbench.models.bundle import DEFAULT_TARGET
from workbench.models.published import SMOLLM2
from workbench.trace.speedup import Estimate

IN_SIZE, IN_DIRECTION = "reproduced in size", "reproduced in direction"
INCONCLUSIVE, CONTRADICTED = "inconclusive", "contradicted"
BY_CONSTRUCTION, ANSWERS_LOST = "by construction", "answers not kept"
NOT_MEASURED, NOT_MEASURABLE = "not measured yet", "not measurable here"
COUNTED = (IN_SIZE, IN_DIRECTION, INCONCLUSIVE, CONTRADICTED)
"""The verdicts, which a measurement may reach."""
VERDICTS = (*COUNTED, BY_CONSTRUCTION, ANSWERS_LOST, NOT_MEASURED, NOT_MEASURABLE)
"""All that the board says of a claim, in the order in which it counts them."""

COLUMNS = {BUNDLED: "bundled pair", SMOLLM2.name: SMOLLM2.title}
"""Where the board shows a claim measured: the bundled models that it is made for, and a real chat model."""


@dataclass(frozen=True, slots=True)
class Scale:
    """On what a claim about a text method is measured, and on how much.

    Attributes:
        target: name of the target; its own draft model and heads draft.
        dtype: number format of the target.
        per_group: prompts of each kind, where a claim is about prompts of all seven kinds: 16 are 112 prompts. A claim
            about fewer kinds has as many prompts in all. 0: all of them.
        timed_per_group: the same for claims about time, whose runs cost an idle machine.
        tokens: length limit of every generation.
        repeats: timed runs of every prompt.
        draws: sampled runs of every prompt; their rounds count as one run's. More prompts tell more than more draws.
    """

    target: str = DEFAULT_TARGET
    dtype: str = "float32"
    per_group: int = 16
    timed_per_group: int = 4
    tokens: int = 64
    repeats: int = 3
    draws: int = 1


SCALES = {
    DEFAULT_TARGET: Scale(),
    # A pass takes 25 ms and more there: the timed claims fit into ten minutes.
    SMOLLM2.name: Scale(SMOLLM2.name, "bfloat16", timed_per_group=3, repeats=1),
}


def scale_of(target: str) -> Scale:
    """What is measured on a target unless one asks for more or less."""
    return SCALES.get(target) or Scale(target, "auto")


def of_speedup(found: Estimate | None, setting: str) -> Measured:
    """A speed-up as a figure of the board. Rows that were saved before say "median over prompts" or "mean over scenes".

    Raises:
        WorkbenchError: there are too few prompts for an interval, without which no verdict can be drawn.
    """
    if found is None or found.low is None or found.high is None:
        raise WorkbenchError("A speed claim needs three prompts that both methods ran.", "Measure more of them.")
    return Measured(found.value, found.low, found.high, found.prompts, f"{setting}; geometric mean over prompts")


def column_of(claim: Claim, target: str | None) -> str:
    """The column that a target's figure of a claim stands in; a target of no column gives its own name."""
    return BUNDLED if target in (None, claim.home) else str(target)


def judge(claim: Claim, measured: Measured | None, lacking: str = "") -> str:
    """Return the verdict on a claim, one of `VERDICTS`.

    A claim whose paper reports a change points from `neutral` to the paper's figure:

    - reproduced in direction: the whole 95 % interval lies on that side of `neutral`.
    - reproduced in size: so it does, and the value lies within `tolerance` of the paper's range.
    - contradicted: the whole interval lies on the other side.
    - inconclusive: the interval contains `neutral`.

    A claim whose paper reports no change (its range contains `neutral`) is an equivalence: reproduced in size if the
    whole interval lies within `tolerance` of the range, contradicted if all of it lies outside, else inconclusive.

    Before any of these: not measurable here (the claim says what is lacking, or nothing can measure it; or nothing was
    measured, and `lacking` says what is missing yet), not measured yet, by construction. A figure that contradicts
    its own construction is contradicted all the same, since something is broken.

    The gain of an approximate rule (`Claim.matched`) is judged at matched accuracy or not at all: answers not kept if
    the whole interval of its right answers lies below `KEPT` of the exact rule's, inconclusive if it contains that.
    """
    if claim.lacks or claim.measure is None or (lacking and measured is None):
        return NOT_MEASURABLE
    if measured is None:
        return BY_CONSTRUCTION if claim.by_construction else NOT_MEASURED
    if claim.matched and measured.answers is None:
        return NOT_MEASURED
    if claim.matched and not measured.keeps_answers:
        return INCONCLUSIVE if measured.keeps_answers is None else ANSWERS_LOST
    verdict = _compared(claim, measured)
    return BY_CONSTRUCTION if claim.by_construction and verdict != CONTRADICTED else verdict


def _compared(claim: Claim, measured: Measured) -> str:
    """Return one of `COUNTED`: see `judge`."""
    low, high = (claim.neutral, math.inf) if claim.low is None or claim.high is None else (claim.low, claim.high)
    least, most = low * (1 - claim.tolerance), high * (1 + claim.tolerance)
    if claim.low is not None and low <= claim.neutral <= high:
        if least <= measured.low and measured.high <= most:
            return IN_SIZE
        return CONTRADICTED if measured.high < least or measured.low > most else INCONCLUSIVE
    is_above, is_below = measured.low > claim.neutral, measured.high < claim.neutral
    if not is_above and not is_below:
        return INCONCLUSIVE
    if is_above != (high > claim.neutral):
        return CONTRADICTED
    return IN_SIZE if claim.low is not None and least <= measured.value <= most else IN_DIRECTION


def claims() -> list[Claim]:
    """All claims, method by method in the order of the catalogue."""
    from workbench.methods import registry  # imports PyTorch

    return [claim for method in registry.methods() for claim in method.claims]


def of(method: str, key: str | None = None) -> list[Claim]:
    """The claims of a method.

    Raises:
        UnknownNameError: it has none of that key.
    """
    all_of_them = claims()
    found = [c for c in all_of_them if c.method == method and key in (None, c.key)]
    if not found:
        wanted = method if key is None else f"{method}/{key}"
        raise UnknownNameError.of("claim", wanted, [c.name for c in all_of_them])
    return found
