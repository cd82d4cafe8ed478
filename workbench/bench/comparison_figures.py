"""Metrics of a comparison: speed-ups paired with plain decoding, the race, costs, break-even. Output is plain data.

Every metric is computed from recorded runs. Ratios are taken within one prompt and repeat before anything is summarised
(`workbench.trace.speedup`), so that a slow minute of the machine affects both sides of each ratio. Speeds, costs and τ
are geometric means over equally weighted prompts, so that they are consistent with each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.bench.sample import Sample
from workbench.bench.statistics import (
    PARTS,
    Totals,
    acceptance_of,
    average_rate,
    geometric_mean,
    mean,
    rates,
    speedup_of,
    tau_of,
)
from workbench.bench.text_comparison import differences, text_exactness
from workbench.trace.metrics import acceptance_by_depth
from workbench.trace.speedup import Estimate, speedup

if TYPE_CHECKING:
    from workbench.bench.comparison import Comparison, LaneRuns

SCHEMA = 3
"""Version of comparisons as plain data. Version 1 had medians with quartiles; version 2 had τ and acceptance pooled
over all tokens, next to geometric means. The web page computes the metrics of older versions again from their runs."""
GRID = [i / 20 for i in range(21)]
"""Acceptance rates of the points of the break-even curve."""


def full_figures(comparison: Comparison) -> dict[str, Any]:
    """Return all metrics of a comparison as plain data.

    In addition to the metrics of `partial_figures`, each lane has the replay of its runs (race), its break-even point,
    its exactness, and the differences between its texts and those of plain decoding.
    """
    data = partial_figures(comparison)
    plain = comparison.reference
    for lane, wire in zip(comparison.lanes, data["lanes"], strict=True):
        wire["race"] = [race(lane, i, plain) if i in lane.traces else None for i in range(len(comparison.prompts))]
        wire["pays"] = None if plain is None or lane is plain else break_even(lane, plain)
        wire["exact"] = None if plain is None else text_exactness(lane, plain, comparison.plan.greedy)
        wire["differences"] = [
            None if plain is None or lane is plain or i not in lane.traces or i not in plain.traces
            else differences(plain.traces[i], lane.traces[i])
            for i in range(len(comparison.prompts))
        ]  # fmt: skip
    return data


def partial_figures(comparison: Comparison) -> dict[str, Any]:
    """Return settings, machine and each method's metrics of a comparison, from the runs so far."""
    plan, plain = comparison.plan, comparison.reference
    header = next((trace.header for lane in comparison.lanes for trace in lane.traces.values()), None)
    return {
        "schema": SCHEMA,
        "complete": comparison.complete,
        "settings": {
            "target": header.target if header else plan.target,
            "dtype": header.dtype if header else "",
            "device": header.device if header else "",
            "max_new_tokens": plan.max_new_tokens,
            "seed": plan.seed,
            "sampling": dict(plan.sampling),
            "stop": list(plan.stop),
            "greedy": plan.greedy,
            "repeats": plan.repeats,
        },
        "machine": comparison.machine,
        "prompts": [{"name": p.name, "group": p.group, "text": p.prompt, "chat": p.chat} for p in comparison.prompts],
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
                "figures": lane_figures(lane, plain),
            }
            for lane in comparison.lanes
        ],
    }


def lane_figures(lane: LaneRuns, plain: LaneRuns | None) -> dict[str, Any]:
    """Return one compared method's metrics, with times in ms per token; a ratio with denominator 0 is None."""
    samples = list(lane.samples.values())
    faster, rate, totals = speedup_of(lane, plain), average_rate(rates(samples)), Totals.of(samples)
    return {
        "n": totals.runs,
        "speedup": faster and faster.to_wire(),
        "tokens_per_second": rate and rate.to_wire(),
        "tau": tau_of(samples),
        "tokens": totals.tokens,
        "rounds": totals.rounds,
        "acceptance_rate": acceptance_of(samples),
        "accepted": totals.accepted,
        "tested": totals.tested,
        "drafted": totals.drafted,
        "ms_per_token": _ms_per_token(samples, rate),
    }


def _ms_per_token(samples: Sequence[Sample], rate: Estimate | None) -> dict[str, float | None]:
    """Return the milliseconds per token at `rate` tokens per second, split into drafting, verification and overhead."""
    shares = _shares(samples)
    return {part: None if rate is None or not shares else 1e3 / rate.value * shares[part] for part in PARTS}


def _shares(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the shares of drafting, verification and overhead in the decoding time, averaged over prompts.

    The result is {} if no time was measured.
    """
    of_prompt: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.token_ids and sample.figures["decode_s"]:
            of_prompt.setdefault(sample.prompt, []).append(sample)
    if not of_prompt:
        return {}

    def share(own: Sequence[Sample], part: str) -> float:
        return statistics.fmean(s.figures[f"{part}_s"] / s.figures["decode_s"] for s in own)

    return {part: statistics.fmean(share(group, part) for group in of_prompt.values()) for part in PARTS}


# -- the race ---------------------------------------------------------------------------------------------------------


def most_typical_repeat(comparison: Comparison, prompt: int) -> int:
    """Return the repetition of a prompt with the most typical speed-ups, which the race (a replay of runs) shows.

    Only the repetitions that the largest number of lanes completed are considered. The result minimises, summed over
    lanes, the distance between the repetition's speed-up and the prompt's speed-up on a logarithmic scale.
    """
    base = {} if comparison.reference is None else rates(comparison.reference.samples.values())
    distances: dict[int, list[float]] = {}
    for lane in comparison.lanes:
        of_prompt = rates(s for s in lane.samples.values() if s.prompt == prompt)
        estimate = speedup(of_prompt, base)
        for key, rate in of_prompt.items():
            if estimate is not None and rate and base.get(key):
                distances.setdefault(key[1], []).append(abs(math.log(rate / base[key] / estimate.value)))
    return min(
        sorted(distances), key=lambda repeat: (-len(distances[repeat]), round(sum(distances[repeat]), 9)), default=0
    )


def race(lane: LaneRuns, prompt: int, plain: LaneRuns | None) -> dict[str, Any]:
    """Return a lane's part of the race, the replay of recorded runs on a prompt: its run of `most_typical_repeat`.

    Returns:
        prefill_s and seconds of the run; rounds as [end in seconds after prefill, tokens with their kinds]; repeat,
        from 0; speedup of this run over the plain run of the same repeat, or None.
    """
    trace, repeat = lane.traces[prompt], lane.selected_repeat.get(prompt)
    sample, plain_sample = (
        side.samples.get((prompt, repeat)) if side and repeat is not None else None for side in (lane, plain)
    )
    rounds = [[r.started_s + r.seconds, [[e.text, e.kind] for e in r.emitted]] for r in trace.rounds]
    return {
        "prefill_s": trace.header.prefill_s,
        "seconds": trace.footer.seconds,
        "rounds": rounds,
        "repeat": repeat,
        "speedup": sample.decode_rate / plain_sample.decode_rate
        if sample and plain_sample and sample.token_ids and plain_sample.token_ids
        else None,
    }


# -- break-even -------------------------------------------------------------------------------------------------------


def break_even(lane: LaneRuns, plain: LaneRuns) -> dict[str, Any] | None:
    """Return the speed-up that the method's measured costs allow at each acceptance rate, and its break-even point.

    speed-up(a) = τ(a) × plain seconds per token / seconds per round, with τ(a) the mean over rounds of 1 + a + … + a^K
    and K the depth drafted in that round: every draft is accepted with probability a, independent of earlier ones. τ(a)
    and both times are geometric means over prompts, like the measured speed-up: where τ(a) equals the measured τ, the
    curve has the value of the measured speed-up.

    Returns:
        curve [[a, speed-up]], acceptance (rounds that accepted / rounds that tested, over all depths), predicted
        speed-up at that rate, break_even (None: no such rate between 0 and 1), always (whether the speed-up is
        ≥ 1 even if nothing is accepted), depth, and the costs in milliseconds; None if nothing was drafted.
    """
    from scipy.optimize import brentq  # importing it takes a third of a second: not at the app's start

    rounds = [r for trace in lane.traces.values() for r in trace.rounds]
    depths = [[max(r.nodes.depth, default=0) for r in trace.rounds] for trace in lane.traces.values() if trace.rounds]
    samples = list(lane.samples.values())
    n_rounds, by_depth = sum(s.rounds for s in samples), acceptance_by_depth(rounds)
    rounds_per_second = {
        key: s.rounds / s.figures["decode_s"] for key, s in lane.samples.items() if s.figures["decode_s"]
    }
    round_rate, plain_rate = average_rate(rounds_per_second), average_rate(rates(plain.samples.values()))
    if not any(map(any, depths)) or not n_rounds or not by_depth or round_rate is None or plain_rate is None:
        return None
    round_s, plain_s = 1 / round_rate.value, 1 / plain_rate.value

    def tau(a: float) -> float:
        def of_round(depth: int) -> float:
            return depth + 1 if a >= 1 else (1 - a ** (depth + 1)) / (1 - a)

        return statistics.geometric_mean(statistics.fmean(map(of_round, prompt_depths)) for prompt_depths in depths)

    def gain(a: float) -> float:
        return tau(a) * plain_s / round_s

    acceptance = sum(n_accepted for _, _, n_accepted in by_depth) / sum(n_tested for _, n_tested, _ in by_depth)
    crosses = gain(0.0) < 1 <= gain(1.0)
    return {
        "curve": [[a, gain(a)] for a in GRID],
        "acceptance": acceptance,
        "predicted": gain(acceptance),
        "break_even": float(brentq(lambda a: gain(a) - 1, 0.0, 1.0)) if crosses else None,  # pyright: ignore
        "always": gain(0.0) >= 1,
        "depth": tau(1.0) - 1,
        "round_ms": 1e3 * round_s,
        "plain_ms": 1e3 * plain_s,
        **{
            f"{part}_ms": 1e3 * round_s * share
            for part, share in _shares(samples).items()
            if part in ("draft", "verify")
        },
    }


# -- one cell of a sweep ----------------------------------------------------------------------------------------------

METRICS = {
    "speedup": "speed-up over plain decoding",
    "tau": "mean accepted length τ",
    "acceptance_rate": "accepted / tested",
    "tokens_per_second": "tokens per second",
}
"""Metrics of a cell of a sweep, with their descriptions."""
THEORY = {
    "speedup": {"speedup_iid": "formula with a constant acceptance rate, at measured costs"},
    "tau": {
        "tau_iid": "E[τ] with a constant acceptance rate",
        "tau_by_position": "E[τ] with an acceptance rate per position",
    },
}
"""Metrics of a sweep over which a theoretical prediction from the measured acceptance rate can be drawn."""


def estimates(lane: LaneRuns, plain: LaneRuns | None) -> dict[str, Any]:
    """Return each metric of one lane (method with settings) of a comparison, with its 95 % interval.

    Times vary between repeats, so all repeats count; the other metrics depend on the seed alone and count once
    per prompt.
    """
    from workbench.trace.whatif import predict_tau  # imports scipy

    runs = list(lane.samples.values())
    first = [Totals.of([s]) for s in {s.prompt: s for s in reversed(runs)}.values()]
    faster, rate = speedup_of(lane, plain), average_rate(rates(runs))
    predicted = [theory for t in lane.traces.values() if (theory := predict_tau(t.rounds))["rate"] is not None]
    formula = break_even(lane, plain) if plain is not None and lane is not plain else None
    return {
        "speedup": faster and faster.to_wire(),
        "tau": geometric_mean([t.tau for t in first if t.tau is not None]),
        "acceptance_rate": mean([t.acceptance_rate for t in first if t.acceptance_rate is not None]),
        "tokens_per_second": rate and rate.to_wire(),
        "speedup_iid": mean([formula["predicted"]] if formula else []),
        "tau_iid": geometric_mean([theory["tau_iid"] for theory in predicted]),
        "tau_by_position": geometric_mean([theory["tau_by_position"] for theory in predicted]),
    }
