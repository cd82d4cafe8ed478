"""Papers' claims, measurements of them, and verdicts that a rule computes from claim and measurement.

Each method declares its claims as data: the paper's quantity, setting and value, and the function that measures the
same quantity at the scale of this workbench: on the bundled pair, or on another target. Verdicts are never written by
hand: `compute_verdict` computes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.decoders.declarations import BUNDLED as BUNDLED
from workbench.decoders.declarations import Claim as Claim
from workbench.decoders.declarations import Measurement as Measurement
from workbench.models.bundle import DEFAULT_TARGET
from workbench.models.model_index import SMOLLM2
from workbench.trace.speedup import Estimate

IN_SIZE, IN_DIRECTION = "reproduced in size", "reproduced in direction"
INCONCLUSIVE, CONTRADICTED = "inconclusive", "contradicted"
BY_CONSTRUCTION, ANSWERS_LOST = "by construction", "answers not kept"
NOT_MEASURED, NOT_MEASURABLE = "not measured yet", "not measurable here"
MEASURED_VERDICTS = (IN_SIZE, IN_DIRECTION, INCONCLUSIVE, CONTRADICTED)
"""Verdicts on papers' claims that follow from a measured value."""
VERDICTS = (*MEASURED_VERDICTS, BY_CONSTRUCTION, ANSWERS_LOST, NOT_MEASURED, NOT_MEASURABLE)
"""All verdicts on papers' claims, in the order of the board's table of counts."""

COLUMNS = {BUNDLED: "bundled pair", SMOLLM2.name: SMOLLM2.title}
"""Columns of the board of papers' claims: the bundled models that a claim is designed for, and a real chat model."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Models and size of a measurement of a claim about a text method.

    Attributes:
        target: name of the target, which is measured with its own draft model and heads.
        dtype: number format of the target.
        per_group: number of prompts of each kind, for a claim about prompts of all seven kinds: 16 means 112 prompts.
            A claim about fewer kinds has the same number of prompts in total. 0: all prompts.
        timed_per_group: prompts of each kind for claims about time, whose runs need an idle machine.
        tokens: length limit of every generation.
        repeats: timed runs per prompt.
        draws: sampled runs per prompt, whose rounds are pooled as if from one run. More prompts are more informative
            than more draws.
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
    # A forward pass of this target takes at least 25 ms: the timed claims must fit into ten minutes.
    SMOLLM2.name: Scale(SMOLLM2.name, "bfloat16", timed_per_group=3, repeats=1),
}


def scale_of(target: str) -> Scale:
    """Return the default `Scale` (number format, prompts, repeats) of the claim measurements on a target."""
    return SCALES.get(target) or Scale(target, "auto")


def speedup_figure(estimate: Estimate | None, setting: str) -> Measurement:
    """Return a speed-up as a measurement for the claims board.

    Older rows of the board have medians over prompts or means over scenes instead; their settings say so.

    Raises:
        WorkbenchError: there are too few prompts for an interval, without which no verdict can be drawn.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        raise WorkbenchError(
            "A speed claim needs at least three prompts on which both methods were measured.", "Measure more prompts."
        )
    return Measurement(
        estimate.value, estimate.low, estimate.high, estimate.prompts, f"{setting}; geometric mean over prompts"
    )


def column_of(claim: Claim, target: str | None) -> str:
    """Return a target's column of the claims board (results on papers' claims).

    It is `BUNDLED` for the claim's bundled target, else the target's name.
    """
    return BUNDLED if target in (None, claim.home) else str(target)


def compute_verdict(claim: Claim, measured: Measurement | None, lacking: str = "") -> str:
    """Return the verdict on a paper's claim, one of `VERDICTS`.

    A claim whose paper reports a change points from `neutral` to the paper's value:

    - reproduced in direction: the whole 95 % interval lies on that side of `neutral`.
    - reproduced in size: in addition, the value lies within `tolerance` of the paper's range.
    - contradicted: the whole interval lies on the other side.
    - inconclusive: the interval contains `neutral`.

    A claim whose paper reports no change (its range contains `neutral`) is an equivalence: reproduced in size if the
    whole interval lies within `tolerance` of the range, contradicted if all of it lies outside, else inconclusive.

    Three verdicts take precedence:

    - not measurable here: the claim states a missing requirement, or has no measurement; or there is no value, and
      `lacking` names the missing requirement.
    - not measured yet: there is no value.
    - by construction: the value follows from a definition, and need not be measured. If a measured value contradicts
      the claim, which reveals a bug, the verdict is "contradicted".

    The gain of an approximate verifier (`Claim.matched`) is compared only at matched accuracy: the verdict is "answers
    not kept" if the whole interval of its right answers lies below `declarations.MIN_RETAINED` of the exact verifier's,
    and "inconclusive" if the interval contains that share.
    """
    if claim.lacks or claim.measure is None or (lacking and measured is None):
        return NOT_MEASURABLE
    if measured is None:
        return BY_CONSTRUCTION if claim.by_construction else NOT_MEASURED
    if claim.matched and measured.answers is None:
        return NOT_MEASURED
    if claim.matched and not measured.keeps_answers:
        return INCONCLUSIVE if measured.keeps_answers is None else ANSWERS_LOST
    verdict = _compare_figures(claim, measured)
    return BY_CONSTRUCTION if claim.by_construction and verdict != CONTRADICTED else verdict


def _compare_figures(claim: Claim, measured: Measurement) -> str:
    """Return the verdict on a paper's claim that follows from a measured value, one of `MEASURED_VERDICTS`."""
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
    """Return all claims of papers, method by method in the order of the catalogue."""
    from workbench.methods import registry  # imports PyTorch

    return [claim for method in registry.methods() for claim in method.claims]


def claims_of(method: str, key: str | None = None) -> list[Claim]:
    """Return the claims of papers that a method declares, or only the claim with the given key.

    Raises:
        UnknownNameError: the method has no claim with this key.
    """
    declared = claims()
    matches = [c for c in declared if c.method == method and key in (None, c.key)]
    if not matches:
        name = method if key is None else f"{method}/{key}"
        raise UnknownNameError.of("claim", name, [c.name for c in declared])
    return matches
