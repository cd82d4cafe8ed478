"""Every figure the workbench shows, defined once, with its denominator in the first line of its docstring."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.trace.events import Round, Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED
from workbench.trace.tokens import CORRECTED

PAID = "distribution error (TV)"
"""Signal of a round under an approximate rule: the total variation from the target's law, summed over its tests."""
PAID_AT_MOST = f"{PAID}, at most"
"""The same where a bound of it is known alone: see `workbench.core.rejection.Ruling.at_most`."""
BOUGHT = "acceptance bought (ΔA)"
"""Likewise: drafts that its rule keeps of the round's on the average, less those that the exact rule keeps of them."""
HELD = "held back before it (s)"
"""Signal of a round: seconds for which a pace or a pause held the run back just before it."""
GROUNDED = 0.2
"""A token needs the picture where blanking the picture costs it at least this much of its probability."""
OTHER = "other"
"""Kind of a word that the lexicon of the scenes does not hold."""

DEFINITIONS: dict[str, tuple[str, str]] = {
    "tau": ("mean accepted length τ", "tokens emitted / target verification passes, bonus and corrected included"),
    "acceptance_rate": ("acceptance rate", "accepted drafted tokens / tested drafted tokens (discarded ones left out)"),
    "draft_utilisation": ("draft utilisation", "accepted drafted tokens / all drafted tokens"),
    "conditional_acceptance": (
        "conditional acceptance at position i",
        "rounds that accepted at depth i / rounds that tested depth i (all before it accepted)",
    ),
    "tokens_per_second": (
        "tokens per second",
        "tokens emitted / seconds from the end of prefill (the target's and the drafter's) to the last token, pauses "
        "left out; a round after a pause, or held back for display, takes longer than at full speed",
    ),
    "overhead_share": (
        "overhead",
        "seconds in no forward of a round, time between rounds included / seconds from the end of prefill to the last "
        "token",
    ),
    "speedup_vs_autoregressive": (
        "speed-up",
        "tokens per second / tokens per second of plain decoding by the same engine, dtype and prompt in the same "
        "repeat; over several the geometric mean, prompts weighing alike, with Student's 95 % interval over prompts "
        "(over repeats where there are fewer than three prompts: this prompt only)",
    ),
    "grounded_acceptance": (
        "acceptance, tokens that need the picture",
        "accepted drafts / places where a draft was tested, among tokens that need the picture: those whose "
        f"probability by the target falls by at least {GROUNDED} when the picture is blanked, “on” and “,” too",
    ),
    "language_acceptance": (
        "acceptance, tokens that do not need the picture",
        "accepted drafts / places where a draft was tested, among tokens whose probability by the target falls by less "
        f"than {GROUNDED} when the picture is blanked",
    ),
    "kind_acceptance": (
        "acceptance by kind of word",
        "tokens of that kind that were an accepted draft / tokens of that kind for whose place a draft was tested",
    ),
}


def grounded(trace: Trace) -> list[bool] | None:
    """Return whether each emitted token needs the picture: p − p_blind ≥ GROUNDED; None before it was asked for."""
    blind = (trace.attribution or {}).get("p_blind")
    if blind is None:
        return None
    emitted_p = [e.p for r in trace.rounds for e in r.emitted]
    return [p - b >= GROUNDED for p, b in zip(emitted_p, blind, strict=False)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def tested(rounds: Sequence[Round]) -> int:
    """Drafted tokens that were put to the test (accepted or rejected)."""
    return sum(status != DISCARDED for r in rounds for status in r.nodes.status)


def drafted(rounds: Sequence[Round]) -> int:
    """All drafted tokens."""
    return sum(len(r.nodes) for r in rounds)


def verified(rounds: Sequence[Round]) -> int:
    """Tokens that went through the target's verification: roots, drafted tokens, and probes beside them."""
    return sum(1 + len(r.nodes) + len(r.probes) for r in rounds)


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


def decode_seconds(rounds: Sequence[Round]) -> float:
    """Seconds from the end of prefill to the last token: where the last round ends, pauses left out.

    Prefill is the target's and the drafter's, `Header.prefill_s`. What happens between rounds counts, the prefill of a
    drafter that a change in mid-run brought among it; the sum of the rounds alone is less.

    Args:
        rounds: from the first on.
    """
    return rounds[-1].started_s + rounds[-1].seconds if rounds else 0.0


def overhead_seconds(rounds: Sequence[Round]) -> float:
    """The part of `decode_seconds` in no forward of a round, be it for this row or for another of its batch."""
    forwards = sum(r.draft_s + r.verify_s + r.waited_s for r in rounds)
    return max(0.0, decode_seconds(rounds) - forwards)


def tokens_per_second(rounds: Sequence[Round]) -> float | None:
    """Tokens emitted / seconds from the end of prefill to the last token."""
    return _ratio(emitted(rounds), decode_seconds(rounds))


def overhead_share(rounds: Sequence[Round]) -> float | None:
    """Seconds in no forward / seconds from the end of prefill to the last token."""
    return _ratio(overhead_seconds(rounds), decode_seconds(rounds))


def held_rounds(rounds: Sequence[Round]) -> int:
    """Return the number of rounds before which a pace or a pause held the run back; caches were cold in them."""
    return sum(r.signals.get(HELD, 0.0) > 0 for r in rounds)


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


def word_kinds(trace: Trace, lexicon: Mapping[str, str]) -> list[str]:
    """For each emitted token the kind of its word: `lexicon` gives it by the word in lower case; else it is OTHER.

    A word is an unbroken run of letters and digits of the text, so that the space which a token carries in front
    belongs to none. A token that holds parts of several words goes with the first.
    """
    tokens = [e for r in trace.rounds for e in r.emitted]
    text = "".join(e.text for e in tokens)
    kinds: list[str] = []
    words = [(m.start(), m.end(), lexicon.get(m.group().lower(), OTHER)) for m in re.finditer(r"[^\W_]+", text)]
    at = 0
    for e in tokens:
        start, end = at, at + len(e.text)
        kinds.append(next((kind for a, b, kind in words if a < end and b > start), OTHER))
        at = end
    return kinds


def acceptance_where(rounds: Sequence[Round], chosen: Sequence[bool]) -> tuple[int, int]:
    """(tokens for whose place a draft was tested, those of them that were the accepted draft), among the chosen ones.

    `chosen` has one entry for each emitted token; tokens behind its end are left out. A place counts once, however
    many drafts were tested for it. A bonus token, or one of plain decoding, had no draft to test.
    """
    kinds = [e.kind for r in rounds for e in r.emitted]
    counted = Counter(kind for kind, wanted in zip(kinds, chosen, strict=False) if wanted)
    return counted[ACCEPTED] + counted[CORRECTED], counted[ACCEPTED]


def acceptance_by_kind(trace: Trace, lexicon: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Kind of word → (tested, accepted), as `acceptance_where` counts them; kinds that do not occur are left out."""
    kinds = word_kinds(trace, lexicon)
    return {kind: acceptance_where(trace.rounds, [k == kind for k in kinds]) for kind in sorted(set(kinds))}


def _share(rounds: Sequence[Round], chosen: Sequence[bool]) -> float | None:
    n_tested, n_accepted = acceptance_where(rounds, chosen)
    return _ratio(n_accepted, n_tested)


def summary(trace: Trace) -> dict[str, Any]:
    """All figures of a generation by name; None where a denominator is zero."""
    rounds = trace.rounds
    n_tokens = emitted(rounds)
    of_picture = grounded(trace) or []
    return {
        "tokens": n_tokens,
        "rounds": len(rounds),
        "drafted": drafted(rounds),
        "verified": verified(rounds),
        "tested": tested(rounds),
        "accepted": accepted(rounds),
        "tau": tau(rounds),
        "acceptance_rate": acceptance_rate(rounds),
        "draft_utilisation": draft_utilisation(rounds),
        "grounded_acceptance": _share(rounds, of_picture),
        "language_acceptance": _share(rounds, [not g for g in of_picture]),
        "conditional_acceptance": [k / t for _, t, k in acceptance_by_depth(rounds)],
        "seconds": decode_seconds(rounds),
        "prefill_seconds": trace.header.prefill_s,
        "tokens_per_second": tokens_per_second(rounds),
        "draft_seconds": sum(r.draft_s for r in rounds),
        "verify_seconds": sum(r.verify_s for r in rounds),
        "overhead_seconds": overhead_seconds(rounds),
        "overhead_share": overhead_share(rounds),
        "overhead_ms_per_round": _ratio(1e3 * overhead_seconds(rounds), len(rounds)),
        "target_forwards": sum(r.target_forwards for r in rounds),
        "draft_forwards": sum(r.draft_forwards for r in rounds),
        "held_rounds": held_rounds(rounds),
    }
