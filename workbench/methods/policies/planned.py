"""Choose the length with the most expected tokens per second, from this run's own rounds; none if drafting loses."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.decoders.draft_verify.draft_plan import Plan
from workbench.decoders.draft_verify.feedback import RoundFeedback
from workbench.decoders.draft_verify.parts import Policy
from workbench.engine.request import Row
from workbench.methods.policies.fixed import DEPTH
from workbench.methods.policies.laps import Lap, Laps, whose

FIRST = 2
"""Levels of the first draft: its cost and a plain pass's predict the cost of longer ones."""
SHARE = 0.02
"""Share of the run's time that may be spent on trying options estimated to be slower."""
WINDOW = 5
"""Rounds of one length whose median is its cost."""
EVERY = 4
"""Rounds of one kind, drafting or plain, before the other is tried."""
POOLED = 2.0
"""Weight of the acceptance over all levels in that of one level, in tests."""
REMEMBERED = 2.0
"""Tests that remain after rounds without a draft: few enough for one trial to change the estimate."""


@dataclass(slots=True)
class Belief:
    """Estimates from a run so far. Counts are discounted, level 1 is the first drafted token.

    Attributes:
        whose: drafter and models that they are from.
        laps: of the last round.
        seconds: of the last rounds by their length; 0: of those that verified one token alone.
        accepted: by level, drafts that were accepted.
        tested: by level, rounds that were planned so deep and accepted all above. The first has a prior of one test
            accepted at 0.7.
        offered: planned rounds in which the drafter proposed something.
        asked: planned rounds.
        idle_s: seconds of drafting in those in which it proposed nothing.
        drafting: whether the last rounds were planned to draft.
        alike: how many of them.
        lost_s: seconds that drafting took more than plain decoding would have, since it last gained.
        tried_s: seconds that plain passes cost where drafting pays.
        spent_s: seconds of all rounds.
    """

    whose: Any = None
    laps: Laps = field(default_factory=Laps)
    seconds: dict[int, deque[float]] = field(default_factory=dict[int, deque[float]])
    accepted: dict[int, float] = field(default_factory=lambda: {1: 0.7})
    tested: dict[int, float] = field(default_factory=lambda: {1: 1.0})
    offered: float = 1.0
    asked: float = 1.0
    idle_s: float = 0.0
    drafting: bool = False
    alike: int = 0
    lost_s: float = 0.0
    tried_s: float = 0.0
    spent_s: float = 0.0

    @property
    def acceptance(self) -> float:
        """Acceptance rate of all levels together."""
        return sum(self.accepted.values()) / sum(self.tested.values())

    def costs(self, depth: int) -> list[float]:
        """Return seconds of a round of 0 … `depth` levels: measured, or interpolated between measured lengths."""
        known = sorted((k, median_low(seconds)) for k, seconds in self.seconds.items())
        found: list[float] = []
        for k in range(depth + 1):
            at = next((i for i, (n, _) in enumerate(known) if n >= k), len(known) - 1)
            (a, t_a), (b, t_b) = known[max(0, at - 1)], known[at]
            found.append(t_b if k == b or a == b else t_a + max(0.0, t_b - t_a) * (k - a) / (b - a))
        return found

    def tokens(self, depth: int) -> list[float]:
        """Return expected tokens of a round with a draft of 0 … `depth` levels: 1 + Σ Π probability.

        A level's probability is its share of accepted tests; one with few tests is taken to be like the others.
        """
        found, reached, pooled = [1.0], 1.0, POOLED * self.acceptance
        for level in range(1, depth + 1):
            reached *= (self.accepted.get(level, 0.0) + pooled) / (self.tested.get(level, 0.0) + POOLED)
            found.append(found[-1] + reached)
        return found

    def outlook(self, depth: int) -> list[tuple[float, float]]:
        """Return expected (tokens, seconds) of a round planned 0 … `depth` levels deep; it may find no draft."""
        costs = self.costs(depth)
        share, idle_s = self.offered / self.asked, self.idle_s / self.asked
        without_s = (1 - share) * costs[0] + idle_s
        both = list(zip(self.tokens(depth), costs, strict=True))
        return [both[0], *((share * n + 1 - share, share * s + without_s) for n, s in both[1:])]

    def judge(self, outcome: RoundFeedback, forgetting: float) -> None:
        """Count the tests. A draft that was shorter than planned fails at its end: the plan is what is measured."""
        self.laps.judged(outcome)
        planned, kept = outcome.planned.depth, len(outcome.verdict.path)
        if not planned:
            if self.tested[1] > REMEMBERED:
                self._forget(forgetting)
            return
        self.offered = forgetting * self.offered + bool(outcome.tokens)
        self.asked, self.idle_s = forgetting * self.asked + 1, forgetting * self.idle_s
        if outcome.tokens:
            self._forget(forgetting)
            for level in range(1, min(planned, kept + 1) + 1):
                self.accepted[level] = self.accepted.get(level, 0.0) + (level <= kept)
                self.tested[level] = self.tested.get(level, 0.0) + 1

    def _forget(self, forgetting: float) -> None:
        for counts in (self.accepted, self.tested):
            for level in counts:
                counts[level] *= forgetting

    def time(self, lap: Lap) -> None:
        """Add a round's time. A round that found nothing to draft counts as a plain pass plus idle drafting."""
        idle_s = 0.0 if lap.nodes or not lap.planned else lap.drafting_s
        self.idle_s += idle_s
        own = self.seconds.setdefault(lap.planned if lap.nodes else 0, deque(maxlen=WINDOW))
        own.append(lap.seconds - idle_s)
        self.spent_s += lap.seconds
        if bool(lap.planned) is not self.drafting:
            self.drafting, self.alike = not self.drafting, 0
        self.alike += 1
        if 0 in self.seconds and lap.planned:  # a pause of the machine is not the draft's cost
            worth_s = lap.tokens * median_low(self.seconds[0])
            self.lost_s = max(0.0, self.lost_s + min(lap.seconds, 2 * median_low(own) + idle_s) - worth_s)


@dataclass(frozen=True)
class Planned(Policy):
    """Choose K from 0 up to a bound so that expected tokens per second are largest.

    Tokens per round: 1 + Σ of the probabilities that all levels down to each are accepted, by the acceptance rates so
    far (older rounds count less). Seconds per round: medians of this run's own rounds of each length, plain ones among
    them. If K = 0 is best, nothing is drafted, and a draft is tried again only while the total loss of drafts stays
    below one plain pass and 2 % of the run's time; plain passes while drafting pays also cost 2 % at most.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1 and §3.5, with measured instead of assumed costs and
    acceptance by level; Liu et al. 2024, SmartSpec, arXiv:2406.14066: K = 0 and occasional exploration.
    """

    name: ClassVar[str] = "planned"
    timed: ClassVar[bool] = True
    depth: int = param(4, **DEPTH)
    forgetting: float = param(0.9, ge=0.5, le=1.0, doc="factor on the weight of past rounds, applied every round")

    def start(self) -> list[Belief]:
        """Return initial estimates, in a list so that another drafter can start new ones."""
        return [Belief()]

    def plan(self, row: Row, state: list[Belief], batch: Sequence[Row] = ()) -> Plan:
        """Plan the best K from 0 to `depth`, or a length to try again."""
        if state[0].whose != (mine := whose(row)):
            state[0] = Belief(mine)
        belief = state[0]
        if (lap := belief.laps.over(row)) is not None:
            belief.time(lap)
        k = self.choose(belief)
        row.report.signals["planned depth"] = k
        row.report.signals["believed acceptance"] = belief.acceptance
        return Plan(k)

    def choose(self, belief: Belief) -> int:
        """Choose plain, a short draft, plain once more; then the best length, or one that may be tried."""
        plain = len(belief.seconds.get(0, ()))
        if plain < 2 and (not plain or belief.drafting):
            return 0
        if plain < 2:
            return min(self.depth, FIRST)
        outlook = belief.outlook(self.depth)
        rates = [tokens / seconds for tokens, seconds in outlook]
        longest, plain_s = max(range(1, self.depth + 1), key=rates.__getitem__), outlook[0][1]
        if rates[longest] > rates[0]:
            regret = plain_s - 1 / rates[longest]
            if belief.alike < EVERY or belief.tried_s + regret > SHARE * belief.spent_s:
                return longest
            belief.tried_s += regret
            return 0
        tokens, seconds = outlook[longest]
        regret = seconds - tokens * plain_s
        is_soon = belief.alike < EVERY and regret > SHARE * plain_s  # a trial that costs almost nothing is always made
        may_lose_s = SHARE * belief.spent_s + plain_s
        return 0 if is_soon or belief.lost_s + regret > may_lose_s else longest

    def observe(self, row: Row, state: list[Belief], outcome: RoundFeedback) -> None:
        """Count the round's tests."""
        state[0].judge(outcome, self.forgetting)
