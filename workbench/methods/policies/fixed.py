"""Policy that uses the same draft length in every round."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from workbench.core.params import param
from workbench.decoders.draft_verify.parts import Plan, Policy
from workbench.engine.request import Sequence


class Bounds(TypedDict):
    """Keyword arguments of `param` for a numeric parameter: its range and its description."""

    ge: float
    le: float
    doc: str


DEPTH: Bounds = {"ge": 1, "le": 16, "doc": "draft length K: maximum number of draft levels per round"}

BEST_OF = tuple({"policy": "fixed", "depth": depth} for depth in (1, 2, 3, 4, 6, 8))
"""Settings with fixed draft lengths. Benchmarks compare adaptive policies with the fastest of these settings."""


@dataclass(frozen=True)
class Fixed(Policy):
    """Draft K = `depth` tokens per round; for a tree, K levels.

    Source: Leviathan et al. 2023, arXiv:2211.17192; §3.5 says how to choose K.
    """

    is_constant: ClassVar[bool] = True
    name: ClassVar[str] = "fixed"
    depth: int = param(4, **DEPTH)

    def plan(self, sequence: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with `depth` draft levels."""
        return Plan(self.depth)
