"""What a comparison says: figures paired with plain decoding, costs, break-even, texts, exactness. Plain data out.

Every figure is computed from recorded runs. Ratios are taken within one prompt and repetition before anything is
summarised, so that a slow minute of the machine falls on both sides of each.
"""

from __future__ import annotations

import difflib
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.bench.contenders import Sample
from workbench.bench.report import Spread
from workbench.core.errors import WorkbenchError
from workbench.trace.events import Emitted, Top, Trace
from workbench.trace.metrics import acceptance_by_depth

if TYPE_CHECKING:
    from workbench.bench.compare import Comparison, Measured

SCHEMA = 1
GRID = [i / 20 for i in range(21)]
"""Acceptance rates at which the break-even line is given."""
PREFIX_CHARS = 60


def figures_of(made: Comparison) -> dict[str, Any]:
    """All of a comparison: what `so_far` says, with texts, race, break-even and exactness of every lane."""
    found = so_far(made)
    plain = made.reference
    for lane, wire in zip(made.lanes, found["lanes"], strict=True):
        wire["race"] = [race(lane.traces[i]) if i in lane.traces else None for i in range(len(made.prompts))]
        wire["pays"] = None if plain is None or lane is plain else pays(lane, plain)
        wire["exact"] = None if plain is None else exactness(lane, plain, made.plan.greedy)
        wire["differences"] = [
            None if plain is None or lane is plain or i not in lane.traces or i not in plain.traces
            else differences(plain.traces[i], lane.traces[i])
            for i in range(len(made.prompts))
        ]  # fmt: skip
    return found


def so_far(made: Comparison) -> dict[str, Any]:
    """Settings, machine and the figures of each lane, from what was measured so far."""
    plan, plain = made.plan, made.reference
    shown = next((trace.header for lane in made.lanes for trace in lane.traces.values()), None)
    return {
        "schema": SCHEMA,
        "complete": made.complete,
        "settings": {
            "target": shown.target if shown else plan.target,
            "dtype": shown.dtype if shown else "",
            "device": shown.device if shown else "",
            "max_new_tokens": plan.max_new_tokens,
            "seed": plan.seed,
            "sampling": dict(plan.sampling),
            "stop": list(plan.stop),
            "greedy": plan.greedy,
            "repeats": plan.repeats,
        },
        "machine": made.machine,
        "prompts": [{"name": p.name, "group": p.group, "text": p.prompt, "chat": p.chat} for p in made.prompts],
        "reference": None if plain is None else plain.name,
        "lanes": [
            {
                **lane.lane.to_wire(),
                "name": lane.name,
                "text": str(lane.lane),
                "title": lane.lane.configured.method.title,
                "promise": lane.lane.configured.promise.value,
                "added": lane.added,
                "plain": lane is plain,
                "error": lane.error,
                "warnings": sorted({w for s in lane.samples.values() for w in s.warnings}),
                "drafted_by": next((t.header.drafter for t in lane.traces.values()), None),
                "figures": figures(list(lane.samples.values()), speedups(lane, plain)),
            }
            for lane in made.lanes
        ],
    }


def speedups(lane: Measured, plain: Measured | None) -> list[float]:
    """Tokens per second over plain decoding's, one value a prompt and repetition that both have."""
    if plain is None:
        return []
    both = [(s, plain.samples[key]) for key, s in lane.samples.items() if key in plain.samples]
    return [s.decode_rate / p.decode_rate for s, p in both if s.token_ids and p.token_ids]


def figures(samples: Sequence[Sample], ratios: Sequence[float]) -> dict[str, Any]:
    """Figures of a lane; None where there is nothing to divide by. Times of one token are medians, in milliseconds."""

    def total(name: str) -> float:
        return sum(s.figures[name] for s in samples)

    def per_token(name: str) -> float | None:
        found = [1e3 * s.figures[name] / len(s.token_ids) for s in samples if s.token_ids]
        return statistics.median(found) if found else None

    tokens, rounds = sum(len(s.token_ids) for s in samples), sum(s.rounds for s in samples)
    return {
        "n": len(samples),
        "speedup": _spread(ratios),
        "tokens_per_second": _spread([s.decode_rate for s in samples if s.token_ids]),
        "tau": tokens / rounds if rounds else None,
        "tokens": tokens,
        "rounds": rounds,
        "acceptance_rate": total("accepted") / total("tested") if total("tested") else None,
        "accepted": int(total("accepted")),
        "tested": int(total("tested")),
        "drafted": int(total("drafted")),
        "ms_per_token": {part: per_token(f"{part}_s") for part in ("draft", "verify", "overhead", "decode")},
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    spread = Spread.of(values)
    return None if spread is None else {"median": spread.median, "q1": spread.q1, "q3": spread.q3, "n": spread.n}


# -- the race ---------------------------------------------------------------------------------------------------------


def race(trace: Trace) -> dict[str, Any]:
    """When each token was there: rounds with their end in seconds after the prompt was read, and their tokens."""
    rounds = [[r.started_s + r.seconds, [[e.text, e.kind] for e in r.emitted]] for r in trace.rounds]
    return {"prefill_s": trace.header.prefill_s, "seconds": trace.footer.seconds, "rounds": rounds}


# -- would it pay -----------------------------------------------------------------------------------------------------


def pays(lane: Measured, plain: Measured) -> dict[str, Any] | None:
    """The speed-up that the lane's measured costs allow at each acceptance, and where it breaks even.

    speed-up(a) = mean over rounds of (1 + a + … + a^K) × plain seconds a token / seconds a round, with K the depth
    drafted in that round: every draft accepted with probability a, whatever came before it.

    Returns:
        curve [[a, speed-up]], acceptance (rounds that accepted / rounds that tested, over all depths), predicted
        speed-up there, break_even (None: nowhere between 0 and 1), always (it pays without a single acceptance), and
        the costs in milliseconds; None where nothing was drafted.
    """
    from scipy.optimize import brentq  # a third of a second, which the start of the app need not wait for

    rounds = [r for trace in lane.traces.values() for r in trace.rounds]
    depths = [max(r.nodes.depth, default=0) for r in rounds]
    mine, theirs = list(lane.samples.values()), list(plain.samples.values())
    n_rounds, n_plain = sum(s.rounds for s in mine), sum(len(s.token_ids) for s in theirs)
    by_depth = acceptance_by_depth(rounds)
    if not any(depths) or not n_rounds or not n_plain or not by_depth:
        return None
    round_s, plain_s = (
        sum(s.figures["decode_s"] for s in mine) / n_rounds,
        sum(s.figures["decode_s"] for s in theirs) / n_plain,
    )

    def speedup(a: float) -> float:
        tau = statistics.fmean(depth + 1 if a >= 1 else (1 - a ** (depth + 1)) / (1 - a) for depth in depths)
        return tau * plain_s / round_s

    acceptance = sum(kept for _, _, kept in by_depth) / sum(tried for _, tried, _ in by_depth)
    crosses = speedup(0.0) < 1 <= speedup(1.0)
    return {
        "curve": [[a, speedup(a)] for a in GRID],
        "acceptance": acceptance,
        "predicted": speedup(acceptance),
        "break_even": float(brentq(lambda a: speedup(a) - 1, 0.0, 1.0)) if crosses else None,  # pyright: ignore
        "always": speedup(0.0) >= 1,
        "depth": statistics.fmean(depths),
        "round_ms": 1e3 * round_s,
        "plain_ms": 1e3 * plain_s,
        "draft_ms": 1e3 * sum(s.figures["draft_s"] for s in mine) / n_rounds,
        "verify_ms": 1e3 * sum(s.figures["verify_s"] for s in mine) / n_rounds,
    }


# -- the same text? ---------------------------------------------------------------------------------------------------


def differences(plain: Trace, other: Trace) -> list[list[str]]:
    """Both texts cut into pieces: ["same", text], ["plain", text only there], ["lane", text only here]."""
    a, b = _emitted(plain), _emitted(other)
    matcher = difflib.SequenceMatcher(None, [e.token for e in a], [e.token for e in b], autojunk=False)
    pieces: list[list[str]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            pieces.append(["same", _text(b[j1:j2])])
            continue
        if i2 > i1:
            pieces.append(["plain", _text(a[i1:i2])])
        if j2 > j1:
            pieces.append(["lane", _text(b[j1:j2])])
    return pieces


def exactness(lane: Measured, plain: Measured, greedy: bool) -> dict[str, Any]:
    """Whether a lane writes what plain decoding writes.

    Returns:
        kind ("reference", "identical", "diverges" or, when sampling, "distribution"), promise, runs compared and
        runs that are identical, `first`: the first difference of the first prompt that has one, and `evidence`: when
        sampling, the test on the exactness board.
    """
    promise = lane.lane.configured.promise.value
    both = [(s, plain.samples[key]) for key, s in lane.samples.items() if key in plain.samples]
    identical = sum(s.token_ids == p.token_ids for s, p in both)
    found = {"promise": promise, "runs": len(both), "identical": identical, "first": None, "evidence": ""}
    if lane is plain:
        return found | {"kind": "reference"}
    if not greedy:
        found["evidence"] = evidence(lane.lane.method)
    for prompt in sorted(lane.traces.keys() & plain.traces.keys()):
        first = divergence(plain.traces[prompt], lane.traces[prompt])
        if first is not None:
            found["first"] = {"prompt": prompt, **first}
            break
    kind = "distribution" if not greedy else "identical" if identical == len(both) else "diverges"
    return found | {"kind": kind}


def evidence(method: str) -> str:
    """What the exactness board says of a method's sampling law, in one line; empty where it says nothing."""
    from workbench.bench.board import exactness as board
    from workbench.bench.board import law_words

    try:
        row = next((row for row in board() if row["method"] == method), None)
    except WorkbenchError:
        return ""
    if row is None or not row["laws"]:
        return ""
    law = row["laws"][0]
    return f"{row['standing']}: {law['name']}: χ² = {law_words(law)} ({row['date'][:10]})"


def divergence(plain: Trace, other: Trace) -> dict[str, Any] | None:
    """The first place where two greedy texts differ, with the target's margin there; None when they are equal.

    Returns:
        at (tokens that are equal before it), before (the end of the common text), plain and other (token, text, p:
        the target's probability; None where that text has ended), margin (nats by which the target prefers plain's
        token: the difference of the two logits), rank (of the other token among the target's likeliest, from 1; None:
        not among them).
    """
    a, b = _emitted(plain), _emitted(other)
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x.token != y.token), min(len(a), len(b)))
    if at == len(a) == len(b):
        return None
    x, y = a[at] if at < len(a) else None, b[at] if at < len(b) else None
    top = _top_at(plain, at)
    rank = p = None
    if y is not None:
        rank = top.tokens.index(y.token) + 1 if top is not None and y.token in top.tokens else None
        p = top.prob[rank - 1] if top is not None and rank is not None else y.p
    known = x is not None and p is not None and x.p > 0 and p > 0
    return {
        "at": at,
        "before": _text(a[:at])[-PREFIX_CHARS:],
        "plain": None if x is None else {"token": x.token, "text": x.text, "p": x.p},
        "other": None if y is None else {"token": y.token, "text": y.text, "p": p},
        "margin": math.log(x.p / p) if known and x is not None and p is not None else None,
        "rank": rank,
    }


def _emitted(trace: Trace) -> list[Emitted]:
    return [e for r in trace.rounds for e in r.emitted]


def _text(emitted: Sequence[Emitted]) -> str:
    return "".join(e.text for e in emitted)


def _top_at(plain: Trace, at: int) -> Top | None:
    """The target's likeliest tokens where plain decoding wrote its token number `at`."""
    seen = 0
    for r in plain.rounds:
        if seen == at and r.emitted:
            return r.top_p[0] if r.top_p else None
        seen += len(r.emitted)
    return None
