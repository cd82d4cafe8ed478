"""What two laws predict from the acceptance that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from workbench.trace import metrics, theory
from workbench.trace.events import Round


def laws(rounds: Sequence[Round]) -> dict[str, Any]:
    """τ as two laws predict it from the acceptance that was measured.

    Returns:
        `rate`, accepted / tested with the siblings of a place counted once, and `rates`, the same by position, given
        all before it; `tau_iid`, equation 1 (Leviathan et al. 2023) at that rate, and `tau_by_position`, from `rates`;
        both with each round as deep as it was where the target went: a tree's other branches, however deep, offered it
        nothing. Where nothing was tested, `rate` and `tau_iid` are None.
    """
    rate, rates = _rate_of_places(rounds), [k / t for _, t, k in metrics.acceptance_by_depth(rounds)]
    offered = [_offered(r) for r in rounds]
    iid = None if rate is None else fmean(theory.expected_tau(rate, d) for d in offered)
    return {"rate": rate, "tau_iid": iid, "rates": rates, "tau_by_position": tau_of(rates, offered)}


def _rate_of_places(rounds: Sequence[Round]) -> float | None:
    """Accepted / tested, siblings of one place counted once: for a chain, the acceptance rate."""
    counts = metrics.acceptance_by_depth(rounds)
    tested = sum(t for _, t, _ in counts)
    return sum(k for _, _, k in counts) / tested if tested else None


def tau_of(rates: Sequence[float], levels: Sequence[int]) -> float:
    """τ by the conditional acceptance at each position, with as many levels in each round as `levels` says."""
    return fmean(theory.tau_by_position(rates[:d]) for d in levels) if levels else 0.0


def depths(rounds: Sequence[Round]) -> list[int]:
    """Levels of every round's draft; 0 where nothing was drafted."""
    return [max(r.nodes.depth, default=0) for r in rounds]


def _offered(r: Round) -> int:
    """Levels of the draft below the root along the target's way: its path and what was drafted after its last node.

    Where the text ended with a drafted token, nothing after it was offered, and there was no bonus.
    """
    if r.emitted and r.emitted[-1].node is not None and not r.placed:
        return len(r.emitted) - 1
    below = [False] * len(r.nodes)
    last = r.path[-1] if r.path else -1
    for i, parent in enumerate(r.nodes.parents):  # a parent stands before its children
        below[i] = parent == last or (parent >= 0 and below[parent])
    return max((d for d, known in zip(r.nodes.depth, below, strict=True) if known), default=len(r.path))
