"""Policy of plain decoding: no round has a draft."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.decoders.draft_verify.parts import Plan, Policy
from workbench.engine.request import Sequence


@dataclass(frozen=True)
class NoDraft(Policy):
    """Plan no drafted tokens in any round, which gives plain decoding."""

    is_constant: ClassVar[bool] = True
    name: ClassVar[str] = "none"

    def plan(self, sequence: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan without draft levels."""
        return Plan(0)
