"""Predict τ (tokens per round) from measured acceptance rates, under two models of acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from workbench.trace import metrics, theory
from workbench.trace.events import Round


def predict_tau(rounds: Sequence[Round]) -> dict[str, Any]:
    """Predict τ by two models: the same acceptance probability everywhere, or one per position of the draft.

    Returns:
        `rate`, accepted / tested tree positions, with siblings counted once. `rates`, this rate for each position of
        the draft, given that all earlier positions are accepted. `tau_iid`, τ by equation 1 of Leviathan et al. 2023
        at `rate`. `tau_by_position`, τ computed from `rates`. The depth of a round's draft is counted along the
        accepted path, because other branches of a tree give no tokens. If nothing was tested, `rate` and `tau_iid` are
        None.
    """
    rate, rates = _position_rate(rounds), [k / t for _, t, k in metrics.acceptance_by_depth(rounds)]
    levels = [_levels_along_path(r) for r in rounds]
    iid = None if rate is None else fmean(theory.expected_tau(rate, d) for d in levels)
    return {"rate": rate, "tau_iid": iid, "rates": rates, "tau_by_position": tau_of(rates, levels)}


def _position_rate(rounds: Sequence[Round]) -> float | None:
    """Return accepted / tested tree positions, with siblings counted once; None if nothing was tested.

    For a chain this is the acceptance rate.
    """
    counts = metrics.acceptance_by_depth(rounds)
    tested = sum(t for _, t, _ in counts)
    return sum(k for _, _, k in counts) / tested if tested else None


def tau_of(rates: Sequence[float], levels: Sequence[int]) -> float:
    """Return τ for given acceptance probabilities and draft lengths.

    Args:
        rates: probability that the token at each position of a draft is accepted, given all earlier positions.
        levels: number of drafted levels in each round.
    """
    return fmean(theory.tau_by_position(rates[:d]) for d in levels) if levels else 0.0


def draft_depths(rounds: Sequence[Round]) -> list[int]:
    """Return the number of levels of each round's draft; 0 for a round without a draft."""
    return [max(r.nodes.depth, default=0) for r in rounds]


def _levels_along_path(r: Round) -> int:
    """Return the number of draft levels that a round could have accepted along its accepted path.

    This is the length of the path plus the levels below its last node. If the text ended with a drafted token, this
    token counts as the bonus token, and no later level counts.
    """
    if r.emitted and r.emitted[-1].node is not None and not r.placed:
        return len(r.emitted) - 1
    below = [False] * len(r.nodes)
    last = r.path[-1] if r.path else -1
    for i, parent in enumerate(r.nodes.parents):  # parents come before their children
        below[i] = parent == last or (parent >= 0 and below[parent])
    return max((d for d, is_below in zip(r.nodes.depth, below, strict=True) if is_below), default=len(r.path))
