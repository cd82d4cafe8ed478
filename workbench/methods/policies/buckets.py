"""TLT's policy: fewer verified tokens per sequence in larger batches; ε-greedy choice among draft lengths.

Sequences of a batch share a forward pass, so verifying more tokens of one sequence delays all sequences. Near the end
of a batch, the few remaining sequences may draft more.
"""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.decoders.draft_verify.parts import Plan, Policy, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.policies.bandit import REMEMBERED
from workbench.methods.policies.fixed import DEPTH
from workbench.methods.policies.round_stats import RoundStatsReader, parts_of

BUDGETS = ((1, 48), (2, 32), (5, 16), (21, 8))
"""Token budgets of TLT: pairs (smallest number of sequences in a batch, maximum number of verified tokens per
sequence)."""
MOST = 32
"""Batch size (number of sequences) above which nothing is drafted, because such a batch uses the whole device."""


def budget(batch_size: int) -> int:
    """Return the maximum number of verified tokens per sequence in a batch of `batch_size` sequences.

    >>> [budget(n) for n in (1, 2, 4, 5, 20, 21, 32, 33)]
    [48, 32, 32, 16, 16, 8, 8, 0]
    """
    return 0 if batch_size > MOST else min(most for least, most in BUDGETS if batch_size >= least)


def lengths(depth: int) -> list[int]:
    """Return the candidate draft lengths, the longest first: `depth`, its half, and so on down to 1.

    >>> lengths(8), lengths(5)
    ([8, 4, 2, 1], [5, 2, 1])
    """
    return [depth >> n for n in range(depth.bit_length())]


@dataclass(slots=True)
class Pulls:
    """Last rounds of a sequence, stored separately for each batch size.

    Attributes:
        parts: drafter, verifier, tree builder and models with which the rounds ran.
        batch_size: number of sequences in the batch in the current round.
        stats_reader: reader of the statistics of the round that has just ended.
        rounds: (draft length, tokens, seconds) of each round, by batch size.
        rng: random generator that chooses draft lengths.
    """

    parts: Any = None
    batch_size: int = 1
    stats_reader: RoundStatsReader = field(default_factory=RoundStatsReader)
    rounds: dict[int, deque[tuple[int, int, float]]] = field(default_factory=dict[int, deque[tuple[int, int, float]]])
    rng: Random = field(default_factory=lambda: Random(0))

    def rewards(self, batch_size: int) -> dict[int, float]:
        """Return a batch's tokens per second by draft length: batch size · mean tokens per round / median seconds.

        The median ignores outliers of times. Token counts have few distinct values, so their median would be too
        coarse.
        """
        by_length: dict[int, list[tuple[int, float]]] = {}
        for k, tokens, seconds in self.rounds.get(batch_size, ()):
            by_length.setdefault(k, []).append((tokens, seconds))
        return {
            k: fmean(tokens for tokens, _ in samples)
            * batch_size
            / max(median(seconds for _, seconds in samples), 1e-9)
            for k, samples in by_length.items()
        }


@dataclass(frozen=True)
class Buckets(Policy):
    """Verify at most `budget(batch_size)` tokens; choose a draft length by ε-greedy over rounds of the same batch size.

    Lengths that were not used are tried first, the longest first. In batches of more than `MOST` sequences nothing is
    drafted.

    Source: Hu et al. 2025, TLT, arXiv:2511.16665 (bucketed ε-greedy; budgets and ε are those of the paper's code). In
    the paper, the reward of a draft length is shared by all sequences of the batch. Here each sequence uses its own
    rounds, because acceptance depends on the text.
    """

    name: ClassVar[str] = "buckets"
    timed: ClassVar[bool] = True
    depth: int = param(4, **DEPTH)
    chance: float = param(0.1, ge=0.0, le=1.0, doc="ε, share of rounds with a random draft length")
    remembered: int = param(200, **REMEMBERED)

    def init_state(self) -> list[Pulls]:
        """Return a list with an empty round history.

        `plan` replaces the history when the drafter or the verifier changes.
        """
        return [Pulls()]

    def plan(self, sequence: Sequence, state: list[Pulls], batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with a draft length for the current number of sequences in the batch."""
        if state[0].parts != (parts := parts_of(sequence)):
            state[0] = Pulls(parts)
        pulls, n_sequences = state[0], max(1, len(batch))
        if (stats := pulls.stats_reader.take_last_round(sequence)) is not None:
            history = pulls.rounds.setdefault(pulls.batch_size, deque())
            history.append((stats.planned, stats.tokens, stats.seconds))
            while len(history) > self.remembered:
                history.popleft()
        pulls.batch_size = n_sequences
        nodes = budget(n_sequences)
        k = self.choose(pulls.rewards(n_sequences), pulls.rng) if nodes else 0
        sequence.report.signals |= {
            "planned depth": k,
            "sequences in the batch": n_sequences,
            "maximum draft nodes": nodes,
        }
        return Plan(k, nodes=nodes)

    def choose(self, rewards: Mapping[int, float], rng: Random) -> int:
        """Return the draft length of the next round: an unused length, or an ε-greedy choice.

        Args:
            rewards: tokens per second of each length that was used.
            rng: random generator for exploration.
        """
        candidates = lengths(self.depth)
        for k in candidates:
            if k not in rewards:
                return k
        return rng.choice(candidates) if rng.random() < self.chance else max(candidates, key=lambda k: rewards[k])

    def observe(self, sequence: Sequence, state: list[Pulls], feedback: RoundFeedback) -> None:
        """Record the number of tokens of the round. The round's duration is read later, after its end."""
        state[0].stats_reader.record_tokens(feedback)
