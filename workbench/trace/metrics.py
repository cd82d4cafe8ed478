"""Every figure the workbench shows, defined once, with its denominator in the first line of its docstring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from workbench.trace.events import ACCEPTED, DISCARDED, Round, Trace

DEFINITIONS: dict[str, tuple[str, str]] = {
    "tau": ("mean accepted length τ", "tokens emitted / target verification passes, bonus and corrected included"),
    "acceptance_rate": ("acceptance rate", "accepted drafted tokens / tested drafted tokens (discarded ones left out)"),
    "draft_utilisation": ("draft utilisation", "accepted drafted tokens / all drafted tokens"),
    "conditional_acceptance": (
        "conditional acceptance at position i",
        "rounds that accepted at depth i / rounds that tested depth i (all before it accepted)",
    ),
    "tokens_per_second": ("tokens per second", "tokens emitted / seconds from the end of prefill to the last token"),
    "overhead_share": ("overhead", "wall time in no model forward / wall time of all rounds"),
    "speedup_vs_autoregressive": (
        "speed-up",
        "tokens per second / tokens per second of plain decoding by the same engine, dtype and prompt in the same run",
    ),
}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def tested(rounds: Sequence[Round]) -> int:
    """Drafted tokens that were put to the test (accepted or rejected)."""
    return sum(status != DISCARDED for r in rounds for status in r.nodes.status)


def drafted(rounds: Sequence[Round]) -> int:
    """All drafted tokens."""
    return sum(len(r.nodes) for r in rounds)


def accepted(rounds: Sequence[Round]) -> int:
    """Drafted tokens that were accepted."""
    return sum(len(r.path) for r in rounds)


def emitted(rounds: Sequence[Round]) -> int:
    """Tokens committed to the text."""
    return sum(len(r.emitted) for r in rounds)


def tau(rounds: Sequence[Round]) -> float | None:
    """Tokens emitted / target verification passes."""
    return _ratio(emitted(rounds), len(rounds))


def acceptance_rate(rounds: Sequence[Round]) -> float | None:
    """Accepted / tested."""
    return _ratio(accepted(rounds), tested(rounds))


def draft_utilisation(rounds: Sequence[Round]) -> float | None:
    """Accepted / drafted."""
    return _ratio(accepted(rounds), drafted(rounds))


def acceptance_by_depth(rounds: Sequence[Round]) -> list[tuple[int, int, int]]:
    """(depth, rounds that tested a node at this depth, rounds that accepted one), from depth 1 on.

    A round counts once per depth, however many siblings it tested there: the quotient is the conditional acceptance
    at that depth given that everything before was accepted.
    """
    tried: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    for r in rounds:
        depths_tested = {d for d, s in zip(r.nodes.depth, r.nodes.status, strict=True) if s != DISCARDED}
        tried.update(depths_tested)
        kept.update({d for d, s in zip(r.nodes.depth, r.nodes.status, strict=True) if s == ACCEPTED})
    return [(d, tried[d], kept[d]) for d in sorted(tried)]


def accepted_histogram(rounds: Sequence[Round]) -> dict[int, int]:
    """Number of rounds by how many drafted tokens they accepted (bonus left out)."""
    counts = Counter(len(r.path) for r in rounds)
    return {n: counts[n] for n in range(max(counts, default=-1) + 1)}


def summary(trace: Trace) -> dict[str, Any]:
    """All figures of a generation by name; None where a denominator is zero."""
    rounds = trace.rounds
    seconds = sum(r.seconds for r in rounds)
    n_tokens = emitted(rounds)
    return {
        "tokens": n_tokens,
        "rounds": len(rounds),
        "drafted": drafted(rounds),
        "tested": tested(rounds),
        "accepted": accepted(rounds),
        "tau": tau(rounds),
        "acceptance_rate": acceptance_rate(rounds),
        "draft_utilisation": draft_utilisation(rounds),
        "conditional_acceptance": [k / t for _, t, k in acceptance_by_depth(rounds)],
        "seconds": seconds,
        "prefill_seconds": trace.header.prefill_s,
        "tokens_per_second": _ratio(n_tokens, seconds),
        "draft_seconds": sum(r.draft_s for r in rounds),
        "verify_seconds": sum(r.verify_s for r in rounds),
        "overhead_share": _ratio(sum(r.overhead_s for r in rounds), seconds),
        "overhead_ms_per_round": _ratio(1e3 * sum(r.overhead_s for r in rounds), len(rounds)),
        "target_forwards": sum(r.target_forwards for r in rounds),
        "draft_forwards": sum(r.draft_forwards for r in rounds),
    }
