"""Theory beside the measurement: both laws, the best draft length, the bound for several siblings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from workbench.trace import metrics, theory
from workbench.trace.events import Round, Trace
from workbench.trace.nodes import ACCEPTED
from workbench.trace.whatif.lengths import costs
from workbench.trace.whatif.predicted import depths, laws
from workbench.trace.whatif.timing import budget
from workbench.trace.whatif.width import tests_of


def overlay(trace: Trace, plain: Trace | None = None) -> dict[str, Any]:
    """What theory says beside the measurement: τ under both laws, the best K by the cost model, the bound for siblings.

    Returns:
        `tau`; `rate`, accepted / tested with the siblings of a place counted once; `tau_iid`, equation 1 at that rate;
        `rates` by position; `tau_by_position`; `best` by the run's costs (None without a plain step; positions that
        were never drafted are taken to have `rate`, and rounds that found nothing to draft a first draft refused);
        `transport`, see there.
    """
    rounds, found = trace.rounds, budget(trace, plain)
    predicted = laws(rounds)
    rates, best = predicted["rates"], None
    if found.plain_s and rates and found.depth:
        model, plain_s = costs(trace, plain), found.plain_s
        had_drafts = fmean(depth > 0 for depth in depths(rounds))  # of a method that copies, few: others stay plain
        nodes = metrics.drafted(rounds) / sum(depths(rounds))  # a level
        best = theory.best_depth(
            [had_drafts * rates[0], *rates[1:]],
            model.level_s / plain_s,
            lambda n: (model.verify_s + (n - 1) * nodes * model.node_s) / plain_s,
            model.other_s / plain_s,
            beyond=found.rate,
            most=2 * max(depths(rounds)),
        )
    return {
        "tau": found.tau,
        **predicted,
        "best": asdict(best) if best else None,
        "transport": transport(rounds),
    }


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
        for _, place, _ in tests_of(r):
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
