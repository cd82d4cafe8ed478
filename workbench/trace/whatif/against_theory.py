"""Compare a run with theory: τ under two models of acceptance, best draft length, acceptance bound for siblings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from workbench.trace import metrics, theory
from workbench.trace.events import Round, Trace
from workbench.trace.nodes import ACCEPTED
from workbench.trace.whatif.lengths import fit_costs
from workbench.trace.whatif.tau_prediction import draft_depths, predict_tau
from workbench.trace.whatif.timing import time_breakdown
from workbench.trace.whatif.width import tested_positions


def compare_with_theory(trace: Trace, plain: Trace | None = None) -> dict[str, Any]:
    """Compare a recorded run with theory; return measured and theoretical values as JSON data.

    Args:
        trace: the run.
        plain: plain decoding of the same prompt by the same target; None: not available.

    Returns:
        `tau`, the measured τ. `rate`, accepted / tested tree positions, with siblings counted once. `tau_iid`, τ by
        equation 1 of Leviathan et al. 2023 at `rate`. `rates`, the acceptance rate at each draft position.
        `tau_by_position`, τ computed from `rates`. `best`, the best draft length under the run's cost model; None if
        the time of a plain decoding step is unknown. For `best`, positions that were never drafted are assumed to have
        `rate`, and rounds without a draft count as rejections of the first token. `transport`, the output of
        `compare_with_transport_bound`.
    """
    rounds, time_budget = trace.rounds, time_breakdown(trace, plain)
    predicted = predict_tau(rounds)
    rates, best = predicted["rates"], None
    if time_budget.plain_s and rates and time_budget.depth:
        model, plain_s = fit_costs(trace, plain), time_budget.plain_s
        had_drafts = fmean(depth > 0 for depth in draft_depths(rounds))  # small for methods that copy from the text
        nodes = metrics.count_drafted(rounds) / sum(draft_depths(rounds))  # per level
        best = theory.best_depth(
            [had_drafts * rates[0], *rates[1:]],
            model.level_s / plain_s,
            lambda n: (model.verify_s + (n - 1) * nodes * model.node_s) / plain_s,
            model.other_s / plain_s,
            beyond=time_budget.rate,
            most=2 * max(draft_depths(rounds)),
        )
    return {
        "tau": time_budget.tau,
        **predicted,
        "best": asdict(best) if best else None,
        "transport": compare_with_transport_bound(rounds),
    }


def compare_with_transport_bound(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Compare the acceptance rate of sampled siblings with the optimal-transport bound, by number of siblings.

    Only tree positions for which both the target's and the drafter's distribution are recorded count. The bound is
    computed from the recorded most likely tokens, so it can only be too high. If two siblings have the same token, the
    siblings were sampled with replacement.

    Returns:
        One dict for each number of siblings: `siblings`, this number; `places`, number of tree positions; `accepted`,
        share of these positions at which a sibling was accepted; `bound`, mean of the bound; `exact`, share of the
        positions at which the recorded tokens have all of the mass of both distributions.
    """
    by_n: dict[int, list[tuple[bool, float, bool]]] = defaultdict(list)
    for r in rounds:
        if r.params.get("temperature", 0.0) == 0.0:
            continue
        for _, place, _ in tested_positions(r):
            if place + 1 >= min(len(r.top_p), len(r.top_q)):
                continue
            top_p, top_q = r.top_p[place + 1], r.top_q[place + 1]
            children = [i for i, parent in enumerate(r.nodes.parents) if parent == place]
            if top_q is None:
                continue
            p, q = (dict(zip(top.tokens, top.prob, strict=True)) for top in (top_p, top_q))
            tokens = [r.nodes.tokens[i] for i in children]
            bound = theory.bound_from_top_tokens(p, q, len(children), replacement=len(set(tokens)) < len(tokens))
            is_complete = min(sum(p.values()), sum(q.values())) > 1 - 1e-4
            accepted = any(r.nodes.status[i] == ACCEPTED for i in children)
            by_n[len(children)].append((accepted, bound, is_complete))
    return [
        {
            "siblings": n,
            "places": len(tests),
            "accepted": fmean(s[0] for s in tests),
            "bound": fmean(s[1] for s in tests),
            "exact": fmean(s[2] for s in tests),
        }
        for n, tests in sorted(by_n.items())
    ]
