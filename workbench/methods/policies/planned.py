"""Choose the draft length with the most expected tokens per second, measured in this run; 0 if drafting is slower."""

from __future__ import annotations

from collections import abc, deque
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.decoders.draft_verify.parts import Plan, Policy, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.policies.fixed import DEPTH
from workbench.methods.policies.round_stats import RoundStats, RoundStatsReader, parts_of

FIRST = 2
"""Number of levels of a run's first draft. Its time and that of a plain round predict the time of longer drafts."""
SHARE = 0.02
"""Maximum share of the run's time spent on trial rounds that are estimated to be slower than the best choice."""
WINDOW = 5
"""Number of most recent rounds per draft length. Their median time is the estimated cost of that length."""
EVERY = 4
"""Minimum number of consecutive rounds with drafts before a plain round is tried, and vice versa."""
POOLED = 2.0
"""Weight of the overall acceptance rate in the estimated acceptance rate of one draft level, as a number of tests."""
REMEMBERED = 2.0
"""Number of acceptance tests: plain rounds discount the test counts only while more are counted. With so few tests, a
single new draft already changes the estimate."""


@dataclass(slots=True)
class RoundEstimates:
    """Round times and acceptance rates of a run so far. Counts are discounted; level 1 is the first drafted token.

    Attributes:
        parts: drafter, verifier, tree builder and models with which the rounds ran.
        stats_reader: reader of the token counts and times of the last round.
        seconds: times of the last rounds, by draft length. Length 0: plain rounds, without a draft.
        accepted: number of accepted draft tokens by level.
        tested: for each level, number of rounds that planned a draft of at least this depth and accepted all earlier
            levels. Level 1 has a prior of one test with acceptance 0.7.
        n_drafted: number of rounds planned to draft in which the drafter proposed a token.
        n_planned: number of rounds planned to draft.
        idle_s: seconds of drafting in rounds planned to draft in which the drafter proposed nothing.
        is_drafting: whether the last rounds were planned to draft.
        n_same_kind: number of consecutive last rounds with the same value of `is_drafting`.
        lost_s: seconds by which drafting has been slower than plain decoding, counted since it was last faster.
        tried_s: estimated seconds lost in plain rounds that were tried while drafting was faster.
        spent_s: seconds of all rounds.
    """

    parts: Any = None
    stats_reader: RoundStatsReader = field(default_factory=RoundStatsReader)
    seconds: dict[int, deque[float]] = field(default_factory=dict[int, deque[float]])
    accepted: dict[int, float] = field(default_factory=lambda: {1: 0.7})
    tested: dict[int, float] = field(default_factory=lambda: {1: 1.0})
    n_drafted: float = 1.0
    n_planned: float = 1.0
    idle_s: float = 0.0
    is_drafting: bool = False
    n_same_kind: int = 0
    lost_s: float = 0.0
    tried_s: float = 0.0
    spent_s: float = 0.0

    @property
    def acceptance(self) -> float:
        """Return the estimated acceptance rate of a drafted token, over all levels."""
        return sum(self.accepted.values()) / sum(self.tested.values())

    def costs(self, depth: int) -> list[float]:
        """Return the estimated seconds of a round with 0 … `depth` draft levels, measured or interpolated."""
        measured = sorted((k, median_low(seconds)) for k, seconds in self.seconds.items())
        costs_s: list[float] = []
        for k in range(depth + 1):
            index = next((i for i, (n, _) in enumerate(measured) if n >= k), len(measured) - 1)
            (a, t_a), (b, t_b) = measured[max(0, index - 1)], measured[index]
            costs_s.append(t_b if k == b or a == b else t_a + max(0.0, t_b - t_a) * (k - a) / (b - a))
        return costs_s

    def tokens(self, depth: int) -> list[float]:
        """Return the expected tokens of a round with 0 … `depth` draft levels: 1 + Σ over levels of Π acceptance rates.

        The acceptance rate of a level is its share of accepted tests. With few tests, it is shrunk towards the rate
        over all levels.
        """
        expected, path_prob, pooled = [1.0], 1.0, POOLED * self.acceptance
        for level in range(1, depth + 1):
            path_prob *= (self.accepted.get(level, 0.0) + pooled) / (self.tested.get(level, 0.0) + POOLED)
            expected.append(expected[-1] + path_prob)
        return expected

    def outlook(self, depth: int) -> list[tuple[float, float]]:
        """Return the expected (tokens, seconds) of a round planned with 0 … `depth` levels.

        The expectation includes rounds in which the drafter proposes nothing, weighted by their share of the rounds so
        far.
        """
        costs = self.costs(depth)
        offer_rate, idle_s = self.n_drafted / self.n_planned, self.idle_s / self.n_planned
        without_s = (1 - offer_rate) * costs[0] + idle_s
        pairs = list(zip(self.tokens(depth), costs, strict=True))
        return [pairs[0], *((offer_rate * n + 1 - offer_rate, offer_rate * s + without_s) for n, s in pairs[1:])]

    def count_tests(self, feedback: RoundFeedback, forgetting: float) -> None:
        """Count a round's accepted and rejected drafted tokens by level.

        A draft that is shorter than planned counts as rejected after its last token.

        Args:
            feedback: result of the round.
            forgetting: factor on all earlier counts.
        """
        self.stats_reader.record_tokens(feedback)
        planned, n_accepted = feedback.plan.depth, len(feedback.result.path)
        if not planned:
            if self.tested[1] > REMEMBERED:
                self._forget(forgetting)
            return
        self.n_drafted = forgetting * self.n_drafted + bool(feedback.tokens)
        self.n_planned, self.idle_s = forgetting * self.n_planned + 1, forgetting * self.idle_s
        if feedback.tokens:
            self._forget(forgetting)
            for level in range(1, min(planned, n_accepted + 1) + 1):
                self.accepted[level] = self.accepted.get(level, 0.0) + (level <= n_accepted)
                self.tested[level] = self.tested.get(level, 0.0) + 1

    def _forget(self, forgetting: float) -> None:
        for counts in (self.accepted, self.tested):
            for level in counts:
                counts[level] *= forgetting

    def add_times(self, stats: RoundStats) -> None:
        """Add a round's time to the estimates.

        If the planned draft was empty, the round counts as a plain round, and its drafting time is added to `idle_s`.
        """
        idle_s = 0.0 if stats.nodes or not stats.planned else stats.drafting_s
        self.idle_s += idle_s
        durations = self.seconds.setdefault(stats.planned if stats.nodes else 0, deque(maxlen=WINDOW))
        durations.append(stats.seconds - idle_s)
        self.spent_s += stats.seconds
        if bool(stats.planned) is not self.is_drafting:
            self.is_drafting, self.n_same_kind = not self.is_drafting, 0
        self.n_same_kind += 1
        if 0 in self.seconds and stats.planned:  # the median limits effects of other load
            plain_s = stats.tokens * median_low(self.seconds[0])
            self.lost_s = max(0.0, self.lost_s + min(stats.seconds, 2 * median_low(durations) + idle_s) - plain_s)


@dataclass(frozen=True)
class Planned(Policy):
    """Choose the draft length K from 0 to `depth` with the most expected tokens per second.

    Expected tokens per round are 1 + Σ over levels of the probability that this level and all earlier levels are
    accepted. The probabilities are estimated from the rounds so far; older rounds have less weight. Expected seconds
    per round are medians of this run's rounds of each length, including plain ones. If K = 0 is best, nothing is
    drafted. A draft is then tried again only while the total loss of drafts stays below one plain round plus 2 % of the
    run's time. Plain rounds that are tried while drafting is faster also take at most 2 %.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1 and §3.5, with measured instead of assumed costs and
    acceptance by level; Liu et al. 2024, SmartSpec, arXiv:2406.14066: K = 0 and occasional exploration.
    """

    name: ClassVar[str] = "planned"
    timed: ClassVar[bool] = True
    depth: int = param(4, **DEPTH)
    forgetting: float = param(
        0.9, ge=0.5, le=1.0, doc=("decay factor on the weight of past rounds, applied in every round")
    )

    def init_state(self) -> list[RoundEstimates]:
        """Return a list with initial estimates of round times and acceptance rates.

        `plan` replaces the estimates when the drafter or the verifier changes.
        """
        return [RoundEstimates()]

    def plan(self, sequence: Sequence, state: list[RoundEstimates], batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with the draft length of most expected tokens per second, or with a length to try again."""
        if state[0].parts != (parts := parts_of(sequence)):
            state[0] = RoundEstimates(parts)
        estimates = state[0]
        if (stats := estimates.stats_reader.take_last_round(sequence)) is not None:
            estimates.add_times(stats)
        k = self.choose(estimates)
        sequence.report.signals["planned depth"] = k
        sequence.report.signals["estimated acceptance"] = estimates.acceptance
        return Plan(k)

    def choose(self, estimates: RoundEstimates) -> int:
        """Return the draft length of the next round, 0 for plain decoding.

        The first three rounds have the lengths 0, `FIRST` and 0. Later rounds have the length with the most expected
        tokens per second, or a length that is tried again to update its estimate.
        """
        n_plain = len(estimates.seconds.get(0, ()))
        if n_plain < 2 and (not n_plain or estimates.is_drafting):
            return 0
        if n_plain < 2:
            return min(self.depth, FIRST)
        outlook = estimates.outlook(self.depth)
        rates = [tokens / seconds for tokens, seconds in outlook]
        longest, plain_s = max(range(1, self.depth + 1), key=rates.__getitem__), outlook[0][1]
        if rates[longest] > rates[0]:
            regret = plain_s - 1 / rates[longest]
            if estimates.n_same_kind < EVERY or estimates.tried_s + regret > SHARE * estimates.spent_s:
                return longest
            estimates.tried_s += regret
            return 0
        tokens, seconds = outlook[longest]
        regret = seconds - tokens * plain_s
        is_soon = (
            estimates.n_same_kind < EVERY and regret > SHARE * plain_s
        )  # a trial that costs almost nothing is always made
        may_lose_s = SHARE * estimates.spent_s + plain_s
        return 0 if is_soon or estimates.lost_s + regret > may_lose_s else longest

    def observe(self, sequence: Sequence, state: list[RoundEstimates], feedback: RoundFeedback) -> None:
        """Count the round's accepted and rejected drafted tokens."""
        state[0].count_tests(feedback, self.forgetting)
