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
        both with each round as deep as it was. Where nothing was tested, `rate` and `tau_iid` are None.
    """
    rate, rates = _rate_of_places(rounds), [k / t for _, t, k in metrics.acceptance_by_depth(rounds)]
    iid = None if rate is None else fmean(theory.expected_tau(rate, d) for d in depths(rounds))
    return {"rate": rate, "tau_iid": iid, "rates": rates, "tau_by_position": tau_of(rates, rounds)}


def _rate_of_places(rounds: Sequence[Round]) -> float | None:
    """Accepted / tested, siblings of one place counted once: for a chain, the acceptance rate."""
    counts = metrics.acceptance_by_depth(rounds)
    tested = sum(t for _, t, _ in counts)
    return sum(k for _, _, k in counts) / tested if tested else None


def tau_of(rates: Sequence[float], rounds: Sequence[Round]) -> float:
    """τ by the conditional acceptance at each position, with each round as deep as it was."""
    return fmean(theory.tau_by_position(rates[:d]) for d in depths(rounds)) if rounds else 0.0


def depths(rounds: Sequence[Round]) -> list[int]:
    """Levels of every round's draft; 0 where nothing was drafted."""
    return [max(r.nodes.depth, default=0) for r in rounds]
