"""Other draft lengths, from the recorded verdicts and the run's own times."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from workbench.trace import metrics
from workbench.trace.events import Round, Trace
from workbench.trace.stalls import calm
from workbench.trace.tokens import CORRECTED
from workbench.trace.whatif.predicted import depths
from workbench.trace.whatif.shorter import starts
from workbench.trace.whatif.timing import plain_rounds


@dataclass(frozen=True, slots=True)
class Costs:
    """What parts of a round cost in this run, in seconds.

    Attributes:
        level_s: drafting one level deeper.
        verify_s: a target pass over no draft at all.
        node_s: one more token in the target's pass.
        other_s: overhead of a round, accepting included.
        fitted: whether `node_s` was seen (drafts of several sizes, or a plain run) or is unknown and taken as 0.
    """

    level_s: float
    verify_s: float
    node_s: float
    other_s: float
    fitted: bool

    def round_s(self, levels: float, nodes: float) -> float:
        """A round of so many levels and drafted tokens."""
        return levels * self.level_s + self.verify_s + nodes * self.node_s + self.other_s


def costs(trace: Trace, plain: Trace | None = None) -> Costs:
    """The run's own cost model: a line through the target's passes by their size, means of the rest. Without stalls."""
    rounds, others = calm(trace.rounds), calm(plain.rounds) if plain else []
    levels = sum(depths(rounds))
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
    """A run that was not made.

    Attributes:
        name: what would be different.
        depth: draft length, or None where it varies.
        tau: tokens a round.
        tokens_per_second: by the run's cost model.
        relative: that speed / the speed which the same model gives for the run as it was.
    """

    name: str
    depth: int | None
    tau: float
    tokens_per_second: float
    relative: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """Other draft lengths, from the recorded verdicts.

    Attributes:
        recorded: the run as it was, by the cost model.
        fixed: every draft cut to 0, 1, 2 … levels.
        best: the fastest of `fixed`.
        oracle: exactly the drafts that were accepted, in every round: a ceiling for every rule that decides the length.
        cut_short: rounds whose whole draft was accepted: a longer draft might have given more there, which no figure
            here counts.
        costs: the cost model.
    """

    recorded: Alternative
    fixed: tuple[Alternative, ...]
    best: Alternative
    oracle: Alternative
    cut_short: int
    costs: Costs

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def draft_lengths(trace: Trace, plain: Trace | None = None) -> Lengths:
    """How fast the run would have been with other draft lengths.

    A draft cut to k levels is verified sooner: the round ends after at most k accepted tokens and the target's own, and
    the next round starts there, inside the recorded draft. `shorter.starts` says how many rounds that comes to; a round
    costs what its levels and nodes up to k cost in the recorded round that it starts in. A tree keeps its shape up to
    level k: one that spends its nodes on fewer levels anew may accept more.

    `workbench bench --suite whatif` measures the error of τ against real runs and saves it for the page.
    """
    rounds, model = trace.rounds, costs(trace, plain)
    levels, tokens = depths(rounds), metrics.emitted(rounds)
    base = tokens / sum(model.round_s(d, len(r.nodes)) for d, r in zip(levels, rounds, strict=True))

    def made(name: str, depth: int | None, n_rounds: float, seconds: float) -> Alternative:
        return Alternative(name, depth, tokens / n_rounds, tokens / seconds, tokens / seconds / base)

    fixed = list[Alternative]()
    for k in range(max(levels, default=0) + 1):
        begins, n_rounds, seconds, at = starts(rounds, k), 0.0, 0.0, 0
        for d, r in zip(levels, rounds, strict=True):
            n = sum(begins[at : at + len(r.emitted)])
            n_rounds, at = n_rounds + n, at + len(r.emitted)
            seconds += n * model.round_s(min(k, d), sum(deep <= k for deep in r.nodes.depth))
        fixed.append(made(f"at most {k}" if k else "no draft", k, n_rounds, seconds))
    if found := calm(plain_rounds(trace, plain)[0]):
        fixed[0] = made("no draft", 0, tokens, tokens * sum(r.seconds for r in found) / metrics.emitted(found))
    exact = sum(model.round_s(len(r.path), len(r.path)) for r in rounds)
    return Lengths(
        recorded=made("as recorded", None, len(rounds), tokens / base),
        fixed=tuple(fixed),
        best=max(fixed, key=lambda a: a.tokens_per_second),
        oracle=made("exactly what is accepted", None, len(rounds), exact),
        cut_short=sum(_is_whole(r) for r in rounds),
        costs=model,
    )


def _is_whole(r: Round) -> bool:
    """Whether the accepted path ends at a leaf: nothing was rejected."""
    return bool(r.path) and r.bonus_kind != CORRECTED and r.path[-1] not in r.nodes.parents
