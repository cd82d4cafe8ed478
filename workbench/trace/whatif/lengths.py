"""Predict a run's speed with other draft lengths, from its recorded verification results and times."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from workbench.trace import metrics
from workbench.trace.events import Round, Trace
from workbench.trace.stalls import exclude_stalled
from workbench.trace.tokens import CORRECTED
from workbench.trace.whatif.shorter_drafts import round_start_probs
from workbench.trace.whatif.tau_prediction import draft_depths
from workbench.trace.whatif.timing import plain_rounds


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost model of a run's rounds, in seconds.

    Attributes:
        level_s: drafting time per level of the draft.
        verify_s: time of a target pass without a draft.
        node_s: additional time of a target pass per drafted token.
        other_s: host overhead per round, verification on the host included.
        fitted: whether `node_s` was fitted, which needs drafts of several sizes or a plain run; else `node_s` is 0.
    """

    level_s: float
    verify_s: float
    node_s: float
    other_s: float
    fitted: bool

    def round_s(self, levels: float, nodes: float) -> float:
        """Return the predicted time in seconds of a round with given numbers of draft levels and drafted tokens."""
        return levels * self.level_s + self.verify_s + nodes * self.node_s + self.other_s


def fit_costs(trace: Trace, plain: Trace | None = None) -> Costs:
    """Fit the cost model of a run to its rounds, excluding stalled rounds (slowed by other load).

    The time of a target pass is modelled as linear in the number of its tokens; other times are means.

    Args:
        trace: the run.
        plain: plain decoding of the same prompt, as in `time_breakdown`.
    """
    rounds, others = exclude_stalled(trace.rounds), exclude_stalled(plain.rounds) if plain else []
    levels = sum(draft_depths(rounds))
    sizes = [(len(r.nodes), r.verify_s) for r in rounds] + [(0, r.verify_s) for r in others]
    n, seconds = np.array([s[0] for s in sizes], float), np.array([s[1] for s in sizes])
    if np.unique(n).size > 1:
        slope, at_zero = np.polyfit(n, seconds, 1)
        fitted = True
    else:
        slope, at_zero, fitted = 0.0, seconds.mean(), False
    slope = max(0.0, float(slope))
    return Costs(
        level_s=sum(r.draft_s for r in rounds) / levels if levels else 0.0,
        verify_s=float(at_zero) if slope else float(seconds.mean()),
        node_s=slope,
        other_s=fmean(r.overhead_s for r in rounds),
        fitted=fitted and slope > 0,
    )


@dataclass(frozen=True, slots=True)
class Alternative:
    """Prediction for a recorded run, had it used another draft length.

    Attributes:
        name: text that describes the difference from the recorded run.
        depth: draft length, or None if it varies.
        tau: tokens per round.
        tokens_per_second: speed by the cost model.
        relative: `tokens_per_second` / speed of the recorded run, both by the cost model.
    """

    name: str
    depth: int | None
    tau: float
    tokens_per_second: float
    relative: float


@dataclass(frozen=True, slots=True)
class LengthPredictions:
    """Predicted speeds of a run with other draft lengths.

    Attributes:
        recorded: the recorded run under the cost model.
        fixed: predictions with every draft cut to at most 0, 1, 2 … levels.
        best: the fastest of `fixed`.
        oracle: prediction with drafts of exactly the accepted tokens in every round: an upper bound for every rule that
            decides the draft length.
        cut_short: number of rounds whose complete draft was accepted. A longer draft might have given more tokens in
            these rounds, which no prediction counts.
        costs: the cost model.
    """

    recorded: Alternative
    fixed: tuple[Alternative, ...]
    best: Alternative
    oracle: Alternative
    cut_short: int
    costs: Costs

    def to_wire(self) -> dict[str, Any]:
        """Return the predictions for other draft lengths as JSON data."""
        return asdict(self)


def predict_draft_lengths(trace: Trace, plain: Trace | None = None) -> LengthPredictions:
    """Predict the speed of a recorded run, had its drafts been cut to other lengths.

    With drafts cut to k levels, a round ends after at most k accepted tokens and one token of the target. The next
    round then starts inside the recorded draft. `round_start_probs` gives the expected number of rounds. The cost of
    a round is the cost of the first k levels of the recorded round in which it starts. A tree keeps its shape up to
    level k. A tree with the same number of nodes on fewer levels might accept more.

    `workbench bench --suite whatif` measures the error of τ against real runs and saves it for the Live page.

    Args:
        trace: the run.
        plain: plain decoding of the same prompt by the same target; None: not available.
    """
    rounds, model = trace.rounds, fit_costs(trace, plain)
    levels, tokens = draft_depths(rounds), metrics.count_emitted(rounds)
    base = tokens / sum(model.round_s(d, len(r.nodes)) for d, r in zip(levels, rounds, strict=True))

    def alternative(name: str, depth: int | None, n_rounds: float, seconds: float) -> Alternative:
        return Alternative(name, depth, tokens / n_rounds, tokens / seconds, tokens / seconds / base)

    fixed = list[Alternative]()
    for k in range(max(levels, default=0) + 1):
        round_starts, n_rounds, seconds, at = round_start_probs(rounds, k), 0.0, 0.0, 0
        for d, r in zip(levels, rounds, strict=True):
            n = sum(round_starts[at : at + len(r.emitted)])
            n_rounds, at = n_rounds + n, at + len(r.emitted)
            seconds += n * model.round_s(min(k, d), sum(level <= k for level in r.nodes.depth))
        fixed.append(alternative(f"at most {k}" if k else "no draft", k, n_rounds, seconds))
    if base_rounds := exclude_stalled(plain_rounds(trace, plain)[0]):
        plain_s = sum(r.seconds for r in base_rounds) / metrics.count_emitted(base_rounds)
        fixed[0] = alternative("no draft", 0, tokens, tokens * plain_s)
    exact = sum(model.round_s(len(r.path), len(r.path)) for r in rounds)
    return LengthPredictions(
        recorded=alternative("as recorded", None, len(rounds), tokens / base),
        fixed=tuple(fixed),
        best=max(fixed, key=lambda a: a.tokens_per_second),
        oracle=alternative("exactly the accepted tokens", None, len(rounds), exact),
        cut_short=sum(_is_fully_accepted(r) for r in rounds),
        costs=model,
    )


def _is_fully_accepted(r: Round) -> bool:
    """Return whether a round accepted its draft up to a leaf, so that nothing was rejected after the accepted path."""
    return bool(r.path) and r.bonus_kind != CORRECTED and r.path[-1] not in r.nodes.parents
