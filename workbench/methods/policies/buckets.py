"""The more rows run, the fewer tokens each has verified; which length pays among these is played for.

Rows of a batch share a pass, so what one of them has verified costs the others time. As a batch ends, the few rows that
are left may draft more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.engine.parts import Policy
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.engine.told import Outcome
from workbench.methods.policies.bandit import REMEMBERED
from workbench.methods.policies.fixed import DEPTH
from workbench.methods.policies.laps import Laps, whose

BUDGETS = ((1, 48), (2, 32), (5, 16), (21, 8))
"""Rows of a batch from which on, and tokens that each may have verified."""
MOST = 32
"""Rows of a batch beyond which nothing is drafted: passes are full without it."""


def budget(rows: int) -> int:
    """Tokens that each row of a batch may have verified.

    >>> [budget(rows) for rows in (1, 2, 4, 5, 20, 21, 32, 33)]
    [48, 32, 32, 16, 16, 8, 8, 0]
    """
    return 0 if rows > MOST else min(most for least, most in BUDGETS if rows >= least)


def lengths(depth: int) -> list[int]:
    """What is played for, the longest first: a bound, its half, and so on.

    >>> lengths(8), lengths(5)
    ([8, 4, 2, 1], [5, 2, 1])
    """
    return [depth >> n for n in range(depth.bit_length())]


@dataclass(slots=True)
class Pulls:
    """The last rounds in batches of each size, as (length, tokens, seconds), and whose they are.

    Attributes:
        whose: drafter and models that they are of.
        rows: of the batch in the round that is being judged.
        laps: of that round.
        rounds: by rows of the batch.
        chance: draws lengths.
    """

    whose: Any = None
    rows: int = 1
    laps: Laps = field(default_factory=Laps)
    rounds: dict[int, deque[tuple[int, int, float]]] = field(default_factory=dict[int, deque[tuple[int, int, float]]])
    chance: Random = field(default_factory=lambda: Random(0))

    def rewards(self, rows: int) -> dict[int, float]:
        """Length → mean tokens of its rounds · rows / the median of their seconds, in batches of so many rows.

        What a round takes has outliers, and a median does not mind them; its tokens are few numbers, of which a median
        says little.
        """
        played: dict[int, list[tuple[int, float]]] = {}
        for k, tokens, seconds in self.rounds.get(rows, ()):
            played.setdefault(k, []).append((tokens, seconds))
        return {
            k: fmean(tokens for tokens, _ in some) * rows / max(median(seconds for _, seconds in some), 1e-9)
            for k, some in played.items()
        }


@dataclass(frozen=True)
class Buckets(Policy):
    """Verify at most `budget(rows)` tokens, and choose a length by ε-greedy over the last rounds of such a batch.

    Lengths that were not played come first, the longest before all. Nothing is believed of a batch of another size.
    Beyond `MOST` rows nothing is drafted.

    Source: Hu et al. 2025, TLT, arXiv:2511.16665 (bucketed ε-greedy; budgets and ε are those of its code). There a
    strategy's reward is shared by the batch; here each row judges by its own rounds, as its text keeps its own pace.
    """

    name: ClassVar[str] = "buckets"
    timed: ClassVar[bool] = True
    depth: int = param(4, **DEPTH)
    chance: float = param(0.1, ge=0.0, le=1.0, doc="share ε of the rounds whose length is drawn by chance")
    remembered: int = param(200, **REMEMBERED)

    def start(self) -> list[Pulls]:
        """Nothing was played, in a list so that another drafter can begin anew."""
        return [Pulls()]

    def plan(self, row: Row, state: list[Pulls], batch: Sequence[Row] = ()) -> Plan:
        """A length for as many rows as run now."""
        if state[0].whose != (mine := whose(row)):
            state[0] = Pulls(mine)
        pulls, rows = state[0], max(1, len(batch))
        if (lap := pulls.laps.over(row)) is not None:
            kept = pulls.rounds.setdefault(pulls.rows, deque())
            kept.append((lap.planned, lap.tokens, lap.seconds))
            while len(kept) > self.remembered:
                kept.popleft()
        pulls.rows = rows
        nodes = budget(rows)
        k = self.choose(pulls.rewards(rows), pulls.chance) if nodes else 0
        row.signals |= {"planned depth": k, "rows of the batch": rows, "verified at most": nodes}
        return Plan(k, nodes=nodes)

    def choose(self, rewards: Mapping[int, float], chance: Random) -> int:
        """By the reward of each length that was played."""
        offered = lengths(self.depth)
        for k in offered:
            if k not in rewards:
                return k
        return chance.choice(offered) if chance.random() < self.chance else max(offered, key=lambda k: rewards[k])

    def observe(self, row: Row, state: list[Pulls], outcome: Outcome) -> None:
        """What the round gave; what it took is known once it is over."""
        state[0].laps.judged(outcome)
