"""What the papers claim, what was measured here, and the verdict that a rule draws from the two.

A claim is data: quantity, setting and figure of the paper, and the function that measures the same quantity at this
workbench's scale. Nobody writes a verdict: `judge` computes it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.trace.speedup import Estimate

IN_SIZE, IN_DIRECTION = "reproduced in size", "reproduced in direction"
NOT_REPRODUCED, NOT_MEASURABLE = "not reproduced", "not measurable here"
NOT_MEASURED = "not measured yet"

TOLERANCE = 0.25
"""Relative distance from the paper's figure within which a measured one counts as the same size."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure that was measured here.

    Attributes:
        value: the figure.
        low: lower end of its 95 % interval, or of what was seen; equal to the value where it is exact.
        high: upper end.
        n: observations it rests on (prompts, rounds: `setting` says which).
        setting: models, prompts, sampling, and what else one must know to read the figure.
    """

    value: float
    low: float
    high: float
    n: int
    setting: str


def of_speedup(found: Estimate | None, setting: str) -> Measured:
    """A speed-up as a figure of the board. Rows that were saved before say "median over prompts" or "mean over scenes".

    Raises:
        WorkbenchError: there are too few prompts for an interval, without which no verdict can be drawn.
    """
    if found is None or found.low is None or found.high is None:
        raise WorkbenchError("A claim of speed needs three prompts that both methods ran.", "Measure more of them.")
    return Measured(found.value, found.low, found.high, found.prompts, f"{setting}; geometric mean over prompts")


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a paper.

    Attributes:
        method: registry name.
        key: tells the claims of one method apart; "main" is the paper's own headline.
        quantity: what the figure is, with its denominator: "speed-up over plain decoding".
        setting: the paper's models, data and sampling.
        low: the paper's figure; with `high` a range. None: the paper only says which way it goes.
        high: upper end of the paper's range; equal to `low` for one figure.
        neutral: value of the quantity if the method did nothing. A claim points from here to its figure; without a
            figure it points upward.
        source: paper, section or table, address; "recalled" where the figure was not read again.
        measure: measures the quantity; None where that cannot be done here, and `lacks` says why.
        timed: whether the measurement needs the machine to itself.
        lacks: what the workbench lacks to test this claim as it is meant; a figure may be measured nevertheless.
        tolerance: relative distance from the figure that counts as the same size; closed forms are held to less.
    """

    method: str
    quantity: str
    setting: str
    low: float | None
    high: float | None
    source: str
    measure: Callable[[], Measured] | None
    key: str = "main"
    neutral: float = 1.0
    timed: bool = False
    lacks: str = ""
    tolerance: float = TOLERANCE

    @property
    def name(self) -> str:
        """Method and key."""
        return f"{self.method}/{self.key}"

    @property
    def command(self) -> str:
        """What measures this claim again."""
        return f"workbench claims --method {self.method}" + ("" if self.key == "main" else f" --key {self.key}")

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON, without the function."""
        wire = {name: value for name, value in asdict(self).items() if name != "measure"}
        return wire | {"name": self.name, "command": self.command}


def judge(claim: Claim, measured: Measured | None) -> str:
    """The verdict.

    - not measurable here: the claim says what is lacking, or nothing can measure it.
    - reproduced in direction: the whole interval lies on the side of `neutral` to which the claim points.
    - reproduced in size: so it does, and the value lies within `tolerance` of the paper's range. Where the paper's
      figure is `neutral` itself, the distance alone decides.
    - not reproduced: measured, and neither.
    """
    if claim.lacks or claim.measure is None:
        return NOT_MEASURABLE
    if measured is None:
        return NOT_MEASURED
    if claim.low is None or claim.high is None:
        return IN_DIRECTION if measured.low > claim.neutral else NOT_REPRODUCED
    near = claim.low * (1 - claim.tolerance) <= measured.value <= claim.high * (1 + claim.tolerance)
    if claim.low <= claim.neutral <= claim.high:
        return IN_SIZE if near else NOT_REPRODUCED
    points = measured.low > claim.neutral if claim.low > claim.neutral else measured.high < claim.neutral
    return NOT_REPRODUCED if not points else IN_SIZE if near else IN_DIRECTION


def claims() -> list[Claim]:
    """All claims, method by method in the order of the catalogue: of text methods, and of those for pictures."""
    found: list[Claim] = []
    for module in ("workbench.bench.text_claims", "workbench.bench.vision_claims"):
        if importlib.util.find_spec(module) is not None:
            found += importlib.import_module(module).CLAIMS
    from workbench.methods import registry

    order = {name: i for i, name in enumerate(registry.names())}
    return sorted((c for c in found if c.method in order), key=lambda c: order[c.method])


def of(method: str, key: str | None = None) -> list[Claim]:
    """The claims of a method.

    Raises:
        UnknownNameError: it has none of that key.
    """
    known = claims()
    found = [c for c in known if c.method == method and key in (None, c.key)]
    if not found:
        wanted = method if key is None else f"{method}/{key}"
        raise UnknownNameError.of("claim", wanted, [c.name for c in known])
    return found
