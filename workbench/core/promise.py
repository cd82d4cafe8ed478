"""Guarantees of methods about their output."""

from __future__ import annotations

from enum import Enum


class Promise(str, Enum):
    """Guarantee of a method about its output."""

    EXACT = "exact"
    """Output follows the target's own distribution with any drafter; greedy output equals the target's token for
    token."""
    GREEDY_EXACT = "greedy-exact"
    """Greedy output equals the target's; the distribution of sampled output is not guaranteed."""
    APPROXIMATE = "approximate"
    """Sampled output deviates from the target's distribution by an amount that a parameter controls. Greedy output
    still equals the target's, unless the verifier declares otherwise (`Verifier.keeps_greedy`)."""
    SIMULATION = "simulation"
    """Uses information that is unavailable in practice, for teaching and tests. Exact output, unrealistic speed."""
