"""What a recorded run says about runs that were not made: where its time went, and what other drafts could have given.

No model is asked. What follows from the recorded verdicts is exact for a drafter whose proposals depend on the text
alone, as greedy drafting does; what is estimated from the run's mean times says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import log
from statistics import fmean
from typing import Any

import numpy as np

from workbench.core.errors import WorkbenchError
from workbench.trace import acceptance, metrics, theory
from workbench.trace.events import ACCEPTED, CORRECTED, DISCARDED, Round, Trace

PLAIN = "autoregressive"
LEAST_PLAIN_ROUNDS = 3
"""Rounds without a draft that stand for plain decoding when no plain run is given."""
TELLING, SMALL = 0.1, 0.02
"""Relative differences of speeds below which they are not worth an explanation, or not worth a sentence."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Mean seconds of a round by what they were spent on, beside a plain step.

    Attributes:
        rounds: how many rounds the means are over.
        tau: tokens emitted / target passes.
        drafted: drafted tokens a round.
        depth: levels drafted a round.
        rate: accepted / tested, the siblings of one place counted once; None where nothing was tested.
        tau_iid: tokens a round if every test passed with that rate, by equation 1 for each round's depth.
        draft_s: in forwards of drafters.
        verify_s: in the target's forward.
        accept_s: laws, rule and verdict.
        host_s: the rest: building trees, moving the cache, recording, waiting.
        plain_s: a whole plain step, its own host time included; None where no plain decoding is known.
        plain_verify_s: the target's forward in it.
        plain_from: where the plain step comes from, in words.
    """

    rounds: int
    tau: float
    drafted: float
    depth: float
    rate: float | None
    tau_iid: float | None
    draft_s: float
    verify_s: float
    accept_s: float
    host_s: float
    plain_s: float | None
    plain_verify_s: float | None
    plain_from: str

    @property
    def round_s(self) -> float:
        """Length of a round."""
        return self.draft_s + self.verify_s + self.accept_s + self.host_s

    @property
    def speedup(self) -> float | None:
        """Measured: tokens per second against plain decoding."""
        return self.tau * self.plain_s / self.round_s if self.plain_s and self.round_s else None

    @property
    def predicted(self) -> float | None:
        """Leviathan's theorem 3.8 from the measured rate and drafting time: a verification costs a plain step."""
        if not self.plain_s or self.tau_iid is None:
            return None
        return theory.speedup(self.tau_iid, self.draft_s, self.plain_s, 0.0, self.plain_s)

    def steps(self) -> list[tuple[str, float]]:
        """From the formula's prediction to the measured speed-up, one assumption after the other."""
        plain, predicted, measured = self.plain_s, self.predicted, self.speedup
        if plain is None or predicted is None or measured is None:
            return []
        return [
            ("the formula: every draft accepted alike, verification as dear as a plain step", predicted),
            ("with the measured τ", theory.speedup(self.tau, self.draft_s, plain, 0.0, plain)),
            ("with the measured verification", theory.speedup(self.tau, self.draft_s, self.verify_s, 0.0, plain)),
            ("with accepting and host time: as measured", measured),
        ]

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON, with what follows from the figures."""
        found = asdict(self) | {"round_s": self.round_s, "speedup": self.speedup, "predicted": self.predicted}
        return found | {"steps": [{"what": what, "speedup": gain} for what, gain in self.steps()]}


def budget(trace: Trace, plain: Trace | None = None) -> Budget:
    """Where the time of a round goes.

    Args:
        trace: the run.
        plain: plain decoding of the same prompt by the same target; without it, rounds of the run that drafted nothing
            stand for it, if there are at least `LEAST_PLAIN_ROUNDS`.

    Raises:
        WorkbenchError: the trace has no rounds, or `plain` is of another target, number format or prompt.
    """
    rounds = trace.rounds
    if not rounds:
        raise WorkbenchError("The trace has no rounds.", "Give a run that generated something.")
    predicted = laws(rounds)
    base, where = _plain_rounds(trace, plain)
    verify = fmean(r.verify_s for r in rounds)
    accept = fmean(sum(p.end_s - p.start_s for p in r.phases if p.name == "judge") for r in rounds)
    overhead = fmean(r.overhead_s for r in rounds)
    accept = min(accept, overhead)
    return Budget(
        rounds=len(rounds),
        tau=metrics.tau(rounds) or 0.0,
        drafted=metrics.drafted(rounds) / len(rounds),
        depth=fmean(_depths(rounds)),
        rate=predicted["rate"],
        tau_iid=predicted["tau_iid"],
        draft_s=fmean(r.draft_s for r in rounds),
        verify_s=verify,
        accept_s=accept,
        host_s=overhead - accept,
        plain_s=sum(r.seconds for r in base) / metrics.emitted(base) if base else None,
        plain_verify_s=fmean(r.verify_s for r in base) if base else None,
        plain_from=where,
    )


def _plain_rounds(trace: Trace, plain: Trace | None) -> tuple[list[Round], str]:
    if plain is not None:
        mine, theirs = trace.header, plain.header
        for what, a, b in (
            ("target", mine.target, theirs.target),
            ("number format", mine.dtype, theirs.dtype),
            ("prompt", mine.prompt_tokens, theirs.prompt_tokens),
        ):
            if a != b:
                raise WorkbenchError(
                    f"The plain run has another {what} than the run.", "Compare runs of one target and prompt."
                )
        if not metrics.emitted(plain.rounds):
            raise WorkbenchError("The plain run emitted nothing.", "Give a run that generated something.")
        return plain.rounds, "a plain run of the same prompt"
    without = [r for r in trace.rounds if not len(r.nodes) and r.emitted]
    if len(without) >= LEAST_PLAIN_ROUNDS:
        return without, f"{len(without)} rounds of this run that drafted nothing"
    return [], "none is known"


def words(found: Budget, lengths: Lengths | None = None) -> list[str]:
    """Why the run is as fast as it is, in sentences."""
    if not found.drafted:
        return ["Nothing was drafted: this is plain decoding."]
    if found.speedup is None or not found.plain_s:
        spent = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in _parts(found))
        return [
            f"A round takes {1e3 * found.round_s:.2f} ms ({spent}) and emits {found.tau:.2f} tokens.",
            "Whether that is faster than plain decoding cannot be told: no plain run is known. Record one with the "
            "same prompt and give it beside this one.",
            *_about_lengths(lengths),
        ]
    plain, cost = found.plain_s, found.round_s / found.plain_s
    verdict = "faster" if found.speedup > 1 else "slower"
    spent = ", ".join(f"{name} {s / plain:.2f}" for name, s in _parts(found))
    said = [
        f"{found.speedup:.2f} times as fast as plain decoding, so {verdict}: a round emits {found.tau:.2f} tokens and "
        f"costs {cost:.2f} plain steps ({spent}).",
        f"It breaks even at {cost:.2f} tokens a round"
        + (f", {cost - found.tau:.2f} more than it emits." if cost > found.tau else "."),
    ]
    plain_verify = found.plain_verify_s or 0.0
    extra = {
        "drafting": found.draft_s / plain,
        f"verifying {found.drafted + 1:.1f} tokens instead of 1": (found.verify_s - plain_verify) / plain,
        "accepting and host time": (found.accept_s + found.host_s - (plain - plain_verify)) / plain,
    }
    dearest = max(extra, key=extra.__getitem__)
    if extra[dearest] > SMALL:
        said.append(
            f"What it spends most on beyond a plain step is {dearest}: {extra[dearest]:.2f} plain steps a round. Were "
            f"that free, it would be {found.tau / (cost - extra[dearest]):.2f} times as fast as plain decoding."
        )
    return [*said, *_about_the_formula(found), *_about_lengths(lengths)]


def _about_the_formula(found: Budget) -> list[str]:
    steps = found.steps()
    if not steps or found.speedup is None:
        return []
    promise = f"The formula promises {steps[0][1]:.2f} times, from acceptance {found.rate:.0%} and the drafting time"
    if abs(steps[0][1] / found.speedup - 1) < TELLING:
        return [f"{promise}: about what was measured."]
    factor, what = max(
        ((after / before, what) for (_, before), (what, after) in pairwise(steps)), key=lambda x: abs(log(x[0]))
    )
    what = what.removeprefix("with ").removesuffix(": as measured")
    return [f"{promise}. What it leaves out most is {what}, which makes it {factor:.2f} times that."]


def _about_lengths(lengths: Lengths | None) -> list[str]:
    if lengths is None:
        return []
    best, ceiling = lengths.best, f"{lengths.oracle.relative:.2f} times this speed"
    said = f"Drafting exactly what will be accepted would give {ceiling}, by the run's own times"
    if best.depth == 0 and best.relative > 1 + SMALL:
        return [f"Not drafting at all would have been faster: {best.relative:.2f} times this speed. {said}."]
    if best.relative > 1 + SMALL:
        return [f"Drafts of at most {best.depth} would have given {best.relative:.2f} times this speed. {said}."]
    return [f"No shorter draft would have been faster. {said}."]


def _parts(found: Budget) -> list[tuple[str, float]]:
    return [
        ("draft", found.draft_s), ("verify", found.verify_s), ("accept", found.accept_s), ("host", found.host_s),
    ]  # fmt: skip


def _depths(rounds: Sequence[Round]) -> list[int]:
    """Levels of every round's draft; 0 where nothing was drafted."""
    return [max(r.nodes.depth, default=0) for r in rounds]


# -- Other draft lengths -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """What parts of a round cost in this run, in seconds.

    Attributes:
        level_s: drafting one level deeper.
        verify_s: a target pass over no draft at all.
        node_s: one more token in the target's pass.
        other_s: accepting and host time of a round.
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
    """The run's own cost model: a line through the target's passes by their size, means of the rest."""
    rounds = trace.rounds
    levels = sum(_depths(rounds))
    sizes = [(len(r.nodes), r.verify_s) for r in rounds] + [(0, r.verify_s) for r in (plain.rounds if plain else [])]
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
    the next round drafts what the recorded one had drafted there. A token behind a whole accepted draft counts as one
    that the drafter would not have guessed, so that longer drafts are never flattered.
    """
    rounds, model = trace.rounds, costs(trace, plain)
    depths, tokens = _depths(rounds), metrics.emitted(rounds)
    base = tokens / sum(model.round_s(d, len(r.nodes)) for d, r in zip(depths, rounds, strict=True))

    def made(name: str, depth: int | None, n_rounds: int, seconds: float) -> Alternative:
        return Alternative(name, depth, tokens / n_rounds, tokens / seconds, tokens / seconds / base)

    fixed = []
    for k in range(max(depths, default=0) + 1):
        counts = [_rounds_when_cut(r, k) for r in rounds]
        seconds = sum(
            n * model.round_s(min(k, d), sum(deep <= k for deep in r.nodes.depth))
            for n, d, r in zip(counts, depths, rounds, strict=True)
        )
        fixed.append(made(f"at most {k}" if k else "no draft", k, sum(counts), seconds))
    if found := _plain_rounds(trace, plain)[0]:
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


def _rounds_when_cut(r: Round, k: int) -> int:
    """Rounds that emit the same tokens when no draft is deeper than k."""
    left, n = len(r.emitted), 0
    accepted = sum(e.node is not None for e in r.emitted)
    while left > 0:
        step = min(accepted, k) + 1
        left, accepted, n = left - step, max(0, accepted - step), n + 1
    return n


def _is_whole(r: Round) -> bool:
    """Whether the accepted path ends at a leaf: nothing was rejected."""
    return bool(r.path) and r.bonus_kind != CORRECTED and r.path[-1] not in r.nodes.parents


# -- Two drafters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Combination:
    """Two recorded drafters of one text, and the better of both at every place.

    Attributes:
        first: method of the first run.
        second: method of the second run.
        tokens: tokens that both wrote alike, from the beginning.
        tau_first: of the first on these tokens.
        tau_second: of the second.
        tau: of the better one in every round, which is also that of both drafts in one tree: a ceiling for every rule
            that chooses between the two.
        share_first: part of the combined rounds in which the first one reached further.
        share_second: the same for the second; the rest are ties.
    """

    first: str
    second: str
    tokens: int
    tau_first: float
    tau_second: float
    tau: float
    share_first: float
    share_second: float

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def combine(first: Trace, second: Trace) -> Combination:
    """The oracle combination of two drafters: from every place on, the draft that reaches further.

    A recorded round says how far a draft made at its start, or at any place inside its accepted part, would have
    reached; so every place of the text has an answer for both drafters.

    Raises:
        WorkbenchError: the runs have other prompts or targets, or wrote no common beginning.
    """
    for what, a, b in (
        ("targets", first.header.target, second.header.target),
        ("prompts", first.header.prompt_tokens, second.header.prompt_tokens),
    ):
        if a != b:
            raise WorkbenchError(f"The two runs have different {what}.", "Combine runs of one target and prompt.")
    common = 0
    for a, b in zip(first.token_ids, second.token_ids, strict=False):
        if a != b:
            break
        common += 1
    if not common:
        raise WorkbenchError("The two runs share no beginning.", "Combine greedy runs, which write the same text.")
    starts, reaches = zip(*(_reach(t, common) for t in (first, second)), strict=True)
    at, n, wins = 0, 0, [0, 0]
    while at < common:
        ends = [reach[bisect_right(start, at) - 1] for start, reach in zip(starts, reaches, strict=True)]
        if ends[0] != ends[1]:
            wins[ends[1] > ends[0]] += 1
        at, n = max(ends), n + 1
    return Combination(
        first.header.method, second.header.method, common,
        common / len(starts[0]), common / len(starts[1]), common / n, wins[0] / n, wins[1] / n,
    )  # fmt: skip


def _reach(trace: Trace, common: int) -> tuple[list[int], list[int]]:
    """Start of every round in the common text, and where its tokens end."""
    starts, ends, at = [], [], 0
    for r in trace.rounds:
        if at >= common:
            break
        if r.emitted:
            starts.append(at)
            at += len(r.emitted)
            ends.append(min(at, common))
    return starts, ends


# -- A wider tree ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rescue:
    """At one depth: where the tokens stood that the target wanted.

    Attributes:
        depth: in the draft, from 1.
        tested: rounds that tested this depth.
        ranks: rounds by rank, from 1, of the wanted token among the drafter's: accepted siblings and corrections.
        beyond: rounds whose wanted token was not among the recorded ones.
        unknown: rounds for which the drafter's ranking was not recorded.
        second_for_target: rejections in which the target ranked the draft second.
    """

    depth: int
    tested: int
    ranks: dict[int, int]
    beyond: int
    unknown: int
    second_for_target: int

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON, in which ranks are texts."""
        return asdict(self) | {"ranks": {str(rank): n for rank, n in sorted(self.ranks.items())}}

    def within(self, width: int) -> float:
        """Share of the tests that siblings down to rank `width` would have passed (what is unknown counts as lost)."""
        return sum(n for rank, n in self.ranks.items() if rank <= width) / self.tested


@dataclass(frozen=True, slots=True)
class Width:
    """A tree of `width` siblings at every place, as deep as the recorded drafts.

    Attributes:
        width: siblings.
        tau: tokens a round by the recorded rankings, by position; a lower bound where rankings are unknown.
    """

    width: int
    tau: float


def rescues(rounds: Sequence[Round]) -> list[Rescue]:
    """Would rank 2 have saved it? For every depth, the rank at which the drafter had what the target wanted.

    The drafter's ranking is the recorded one (`top_q`). Where it is missing and the drafter offered several siblings,
    their order by q stands for it; where it offered one, a rejection stays unknown.
    """
    found: dict[int, Rescue] = {}
    for r in rounds:
        for depth, place, wanted in _tests(r):
            entry = found.get(depth) or Rescue(depth, 0, {}, 0, 0, 0)
            rank = _rank(r, place, wanted)
            changed: dict[str, Any] = {"tested": entry.tested + 1}
            if rank is None:
                changed["unknown"] = entry.unknown + 1
            elif rank == 0:
                changed["beyond"] = entry.beyond + 1
            else:
                changed["ranks"] = dict(Counter(entry.ranks) + Counter({rank: 1}))
            if _second_for_target(r, place):
                changed["second_for_target"] = entry.second_for_target + 1
            found[depth] = replace(entry, **changed)
    return [found[d] for d in sorted(found)]


def _tests(r: Round) -> list[tuple[int, int, int]]:
    """(depth, place, token the target took there) of each place whose children were tested; place −1 is the root."""
    tested = []
    for depth, place in enumerate((-1, *r.path), 1):
        children = [i for i, parent in enumerate(r.nodes.parents) if parent == place]
        if not any(r.nodes.status[i] != DISCARDED for i in children):
            continue
        kept = next((i for i in children if r.nodes.status[i] == ACCEPTED), None)
        if kept is not None:
            tested.append((depth, place, r.nodes.tokens[kept]))
        elif r.bonus is not None:
            tested.append((depth, place, r.bonus))
    return tested


def _rank(r: Round, place: int, wanted: int) -> int | None:
    """Rank from 1; 0 beyond what is recorded; None unknown."""
    top = r.top_q[place + 1] if place + 1 < len(r.top_q) else None
    if top is not None:
        return top.tokens.index(wanted) + 1 if wanted in top.tokens else 0
    children = [i for i, parent in enumerate(r.nodes.parents) if parent == place]
    order = sorted(children, key=lambda i: -(r.nodes.q[i] or 0.0))
    tokens = [r.nodes.tokens[i] for i in order]
    if wanted in tokens:
        return tokens.index(wanted) + 1
    return 0 if len(children) > 1 else None


def _second_for_target(r: Round, place: int) -> bool:
    rejected = [i for i, parent in enumerate(r.nodes.parents) if parent == place and r.nodes.status[i] == "rejected"]
    kept = any(parent == place and s == ACCEPTED for parent, s in zip(r.nodes.parents, r.nodes.status, strict=True))
    if kept or not rejected or place + 1 >= len(r.top_p):
        return False
    likeliest = r.top_p[place + 1].tokens
    return len(likeliest) > 1 and any(r.nodes.tokens[i] == likeliest[1] for i in rejected)


def widths(rounds: Sequence[Round], most: int = 5) -> list[Width]:
    """τ of trees with 1 … `most` siblings at every place: what a wider tree would have been worth."""
    found = rescues(rounds)
    return [Width(w, _tau_of([entry.within(w) for entry in found], rounds)) for w in range(1, most + 1)]


def _tau_of(rates: Sequence[float], rounds: Sequence[Round]) -> float:
    """τ by the conditional acceptance at each position, with each round as deep as it was."""
    return fmean(theory.tau_by_position(rates[:d]) for d in _depths(rounds)) if rounds else 0.0


# -- Theory over the measurement ---------------------------------------------------------------------------------------


def laws(rounds: Sequence[Round]) -> dict[str, Any]:
    """τ as two laws predict it from the acceptance that was measured.

    Returns:
        `rate`, accepted / tested with the siblings of a place counted once, and `rates`, the same by position, given
        all before it; `tau_iid`, equation 1 (Leviathan et al. 2023) at that rate, and `tau_by_position`, from `rates`;
        both with each round as deep as it was. Where nothing was tested, `rate` and `tau_iid` are None.
    """
    rate, rates = _rate_of_places(rounds), [k / t for _, t, k in metrics.acceptance_by_depth(rounds)]
    iid = None if rate is None else fmean(theory.expected_tau(rate, d) for d in _depths(rounds))
    return {"rate": rate, "tau_iid": iid, "rates": rates, "tau_by_position": _tau_of(rates, rounds)}


def overlay(trace: Trace, plain: Trace | None = None) -> dict[str, Any]:
    """What theory says beside the measurement: τ under both laws, the best K by the cost model, the bound for siblings.

    Returns:
        `tau`; `rate`, accepted / tested with the siblings of a place counted once; `tau_iid`, equation 1 at that rate;
        `rates` by position; `tau_by_position`; `best` by the run's costs (None without a plain step; positions that
        were never drafted are taken to have `rate`); `transport`, see there.
    """
    rounds, found = trace.rounds, budget(trace, plain)
    predicted = laws(rounds)
    rates, best = predicted["rates"], None
    if found.plain_s and rates and found.depth:
        model, plain_s = costs(trace, plain), found.plain_s
        nodes = metrics.drafted(rounds) / sum(_depths(rounds))  # a level
        best = theory.best_depth(
            rates,
            model.level_s / plain_s,
            lambda n: (model.verify_s + (n - 1) * nodes * model.node_s) / plain_s,
            model.other_s / plain_s,
            beyond=found.rate,
            most=2 * max(_depths(rounds)),
        )
    return {
        "tau": found.tau,
        **predicted,
        "best": asdict(best) if best else None,
        "transport": transport(rounds),
    }


def _rate_of_places(rounds: Sequence[Round]) -> float | None:
    """Accepted / tested, siblings of one place counted once: for a chain, the acceptance rate."""
    counts = metrics.acceptance_by_depth(rounds)
    tested = sum(t for _, t, _ in counts)
    return sum(k for _, _, k in counts) / tested if tested else None


def transport(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Sampled siblings beside the optimal-transport bound, by how many were drafted at a place.

    Only places whose two laws were recorded count. The bound rests on the recorded likeliest tokens and can only be
    too high; `exact` says in what part of the places these held the whole of both laws. A place where siblings are
    equal was drawn with replacement.

    Returns:
        For each number of siblings: `siblings`, `places`, `accepted` (share of the places), `bound` (mean), `exact`.
    """
    by_n: dict[int, list[tuple[bool, float, bool]]] = defaultdict(list)
    for r in rounds:
        if r.params.get("temperature", 0.0) == 0.0:
            continue
        for _, place, _ in _tests(r):
            if place + 1 >= min(len(r.top_p), len(r.top_q)):
                continue
            top_p, top_q = r.top_p[place + 1], r.top_q[place + 1]
            children = [i for i, parent in enumerate(r.nodes.parents) if parent == place]
            if top_q is None:
                continue
            p, q = (dict(zip(top.tokens, top.prob, strict=True)) for top in (top_p, top_q))
            tokens = [r.nodes.tokens[i] for i in children]
            bound = theory.bound_from_tops(p, q, len(children), replacement=len(set(tokens)) < len(tokens))
            whole = min(sum(p.values()), sum(q.values())) > 1 - 1e-4
            kept = any(r.nodes.status[i] == ACCEPTED for i in children)
            by_n[len(children)].append((kept, bound, whole))
    return [
        {
            "siblings": n,
            "places": len(seen),
            "accepted": fmean(s[0] for s in seen),
            "bound": fmean(s[1] for s in seen),
            "exact": fmean(s[2] for s in seen),
        }
        for n, seen in sorted(by_n.items())
    ]


def analyse(trace: Trace, others: Sequence[Trace] = ()) -> dict[str, Any]:
    """Everything at once, as plain JSON: what the command line prints and the Live page draws.

    Args:
        trace: the run that is looked at.
        others: plain decoding of the same prompt serves as baseline; any other run is combined with `trace`.
    """
    plain = next((t for t in others if t.header.method == PLAIN), None)
    found, rounds = budget(trace, plain), trace.rounds
    lengths = draft_lengths(trace, plain) if metrics.drafted(rounds) else None
    return {
        "method": trace.header.method,
        "target": trace.header.target,
        "budget": found.to_wire(),
        "words": words(found, lengths),
        "lengths": lengths.to_wire() if lengths else None,
        "combinations": [combine(trace, t).to_wire() for t in others if t.header.method != PLAIN],
        "rescues": [entry.to_wire() for entry in rescues(rounds)],
        "widths": [asdict(entry) for entry in widths(rounds)] if lengths else [],
        "theory": overlay(trace, plain),
        "definitions": [d.to_wire() for d in acceptance.definitions(rounds)],
    }
