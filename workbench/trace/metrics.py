"""Compute the metrics of a run. Each metric is defined once; the first line of its docstring names the denominator."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.trace.events import Round, Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED
from workbench.trace.tokens import CORRECTED

DISTRIBUTION_ERROR = "distribution error (TV)"
"""Name of a signal (value of a round for display) under an approximate verifier: total variation distance between the
output distribution and the target's, summed over the round's tests."""
DISTRIBUTION_ERROR_BOUND = f"{DISTRIBUTION_ERROR}, at most"
"""Name of the signal that replaces `DISTRIBUTION_ERROR` if only an upper bound of the error is known
(`core.rejection.AcceptanceDecision.is_upper_bound`)."""
ACCEPTANCE_GAIN = "acceptance gain (ΔA)"
"""Name of a signal (value of a round for display) under an approximate verifier: expected number of accepted tokens,
minus the expected number under the exact verifier."""
DELAY = "delay before the round (s)"
"""Name of a signal (value of a round for display): seconds of delay directly before the round, from a pause or from a
slowed-down display."""
DELAY_NAMES = (DELAY, "held back before it (s)")
"""Names of the signal for the delay before a round: the current name `DELAY`, and the name in traces of earlier
versions."""
GROUNDED_THRESHOLD = 0.2
"""A token counts as needing the image if blanking the image lowers the token's probability by at least this value."""
NORMAL_QUANTILE = 1.959963984540054
"""97.5 % quantile of the standard normal distribution, for 95 % intervals."""
OTHER = "other"
"""Kind of words that the lexicon (a dict from word to kind, such as "colour") does not contain."""

DEFINITIONS: dict[str, tuple[str, str]] = {
    "tau": (
        "mean accepted length τ",
        "tokens emitted (including bonus and corrected tokens) / verification passes of the target",
    ),
    "acceptance_rate": (
        "acceptance rate",
        "accepted drafted tokens / tested drafted tokens; discarded tokens are not tested",
    ),
    "draft_utilisation": ("draft utilisation", "accepted drafted tokens / all drafted tokens"),
    "conditional_acceptance": (
        "conditional acceptance at position i",
        "rounds that accepted a token at position i / rounds that tested position i, which requires acceptance "
        "at all earlier positions",
    ),
    "tokens_per_second": (
        "tokens per second",
        "tokens emitted / seconds from the end of prefill (of target and drafter) to the last token, without "
        "paused time; a round after a pause or a display delay is slower than usual",
    ),
    "overhead_share": (
        "overhead",
        "seconds outside model forward passes, including time between rounds / seconds from the end of prefill to the "
        "last token",
    ),
    "speedup_vs_autoregressive": (
        "speed-up",
        "tokens per second / tokens per second of plain decoding with the same engine, dtype and prompt in the same "
        "repeat; for several pairs of runs, the geometric mean with equal weight per prompt and Student's 95 % "
        "confidence interval over prompts; with fewer than three prompts, the interval is over repeats and "
        "valid only for these prompts",
    ),
    "grounded_acceptance": (
        "acceptance, tokens that need the image",
        "accepted drafted tokens / positions where a draft was tested, among tokens that need the image: those whose "
        f"target probability falls by at least {GROUNDED_THRESHOLD} when the image is blanked; even “on” or “,” "
        f"can be such a token",
    ),
    "language_acceptance": (
        "acceptance, tokens that do not need the image",
        "accepted drafted tokens / positions where a draft was tested, among tokens whose target probability falls by "
        f"less than {GROUNDED_THRESHOLD} when the image is blanked",
    ),
    "kind_acceptance": (
        "acceptance by kind of word",
        "for each kind of word: accepted drafted tokens / tokens at positions where a draft was tested",
    ),
}


def grounded(trace: Trace) -> list[bool] | None:
    """Return whether each emitted token depends on the images; None if the trace has no attribution.

    A token depends on the images if blanking them lowers the target's probability of the token by at least
    `GROUNDED_THRESHOLD`.
    """
    blind = (trace.attribution or {}).get("p_blind")
    if blind is None:
        return None
    emitted_p = [e.p for r in trace.rounds for e in r.emitted]
    return [p - b >= GROUNDED_THRESHOLD for p, b in zip(emitted_p, blind, strict=False)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def count_tested(rounds: Sequence[Round]) -> int:
    """Return the number of drafted tokens of a run that were tested, that is, accepted or rejected."""
    return sum(status != DISCARDED for r in rounds for status in r.nodes.status)


def count_drafted(rounds: Sequence[Round]) -> int:
    """Return the number of drafted tokens of a run, tested or not."""
    return sum(len(r.nodes) for r in rounds)


def count_verified(rounds: Sequence[Round]) -> int:
    """Return the number of tokens in the target's verification passes: roots, drafted tokens and probe positions.

    Probe positions are extra positions that are never accepted.
    """
    return sum(1 + len(r.nodes) + len(r.probes) for r in rounds)


def count_accepted(rounds: Sequence[Round]) -> int:
    """Return the number of accepted drafted tokens of a run."""
    return sum(len(r.path) for r in rounds)


def count_emitted(rounds: Sequence[Round]) -> int:
    """Return the number of tokens that a run has committed to the text."""
    return sum(len(r.emitted) for r in rounds)


def tau(rounds: Sequence[Round]) -> float | None:
    """Return the mean accepted length τ, tokens emitted / target verification passes; None without passes."""
    return _ratio(count_emitted(rounds), len(rounds))


def acceptance_rate(rounds: Sequence[Round]) -> float | None:
    """Return the acceptance rate, accepted / tested drafted tokens; None if no drafted token was tested."""
    return _ratio(count_accepted(rounds), count_tested(rounds))


def draft_utilisation(rounds: Sequence[Round]) -> float | None:
    """Return the draft utilisation, accepted / all drafted tokens; None if nothing was drafted."""
    return _ratio(count_accepted(rounds), count_drafted(rounds))


def decode_seconds(rounds: Sequence[Round]) -> float:
    """Return the decoding time of a run: seconds from the end of prefill to the end of the last round, without pauses.

    Prefill means the prefill of target and drafter, `Header.prefill_s`. Time between rounds counts, such as the prefill
    of a drafter that was chosen during the run. So the result may exceed the sum of the rounds' times.

    Args:
        rounds: rounds of a run from the first on.
    """
    return rounds[-1].started_s + rounds[-1].seconds if rounds else 0.0


def overhead_seconds(rounds: Sequence[Round]) -> float:
    """Return the host overhead of a run in seconds: the decoding time outside all forward passes of the batch."""
    forwards = sum(r.draft_s + r.verify_s + r.waited_s for r in rounds)
    return max(0.0, decode_seconds(rounds) - forwards)


def tokens_per_second(rounds: Sequence[Round]) -> float | None:
    """Return the speed of a run, tokens emitted / decoding time (`decode_seconds`); None without rounds."""
    return _ratio(count_emitted(rounds), decode_seconds(rounds))


def overhead_share(rounds: Sequence[Round]) -> float | None:
    """Return the share of host overhead in a run's decoding time; None without rounds.

    The share is `overhead_seconds` (outside forward passes) / `decode_seconds` (from the end of prefill on).
    """
    return _ratio(overhead_seconds(rounds), decode_seconds(rounds))


def count_delayed_rounds(rounds: Sequence[Round]) -> int:
    """Return the number of rounds directly after a pause or a display delay, which start with cold processor caches."""
    return sum(any(r.signals.get(name, 0.0) > 0 for name in DELAY_NAMES) for r in rounds)


def wilson_interval(accepted: int, tested: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of an acceptance rate, accepted / tested.

    Unlike the normal approximation it stays inside [0, 1] and has a width if all or none were accepted.

    Args:
        accepted: number of accepted tokens.
        tested: number of tested tokens, above 0.

    Source:
        Wilson 1927, Journal of the American Statistical Association 22 (158), 209–212.

    Example:
        >>> [round(end, 3) for end in wilson_interval(3, 7)]
        [0.158, 0.75]
    """
    z, n = NORMAL_QUANTILE, tested
    centre = (accepted + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(accepted * (n - accepted) / n + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


def acceptance_by_depth(rounds: Sequence[Round]) -> list[tuple[int, int, int]]:
    """Return, for each draft depth from 1 on, (depth, rounds that tested a node there, rounds that accepted one).

    A round counts once per depth, however many siblings it tested. So accepted / tested is the conditional acceptance
    rate at that depth, given that all smaller depths were accepted.
    """
    n_tested: Counter[int] = Counter()
    n_accepted: Counter[int] = Counter()
    for r in rounds:
        depths_tested = {d for d, s in zip(r.nodes.depth, r.nodes.status, strict=True) if s != DISCARDED}
        n_tested.update(depths_tested)
        n_accepted.update({d for d, s in zip(r.nodes.depth, r.nodes.status, strict=True) if s == ACCEPTED})
    return [(d, n_tested[d], n_accepted[d]) for d in sorted(n_tested)]


def accepted_histogram(rounds: Sequence[Round]) -> dict[int, int]:
    """Return a histogram: number of accepted drafted tokens in a round (without bonus token) → number of rounds."""
    counts = Counter(len(r.path) for r in rounds)
    return {n: counts[n] for n in range(max(counts, default=-1) + 1)}


def word_kinds(trace: Trace, lexicon: Mapping[str, str]) -> list[str]:
    """Return, for each emitted token, the kind of the word that it belongs to, such as "colour".

    A word is a run of letters and digits; a token's leading space belongs to no word. A token with parts of several
    words gets the kind of the first word.

    Args:
        trace: trace of the run.
        lexicon: kind by lower-case word; words that it does not contain are of the kind `OTHER`.
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
    """Return two counts over the chosen tokens: positions where a draft was tested, and where a draft was accepted.

    A position counts once, however many drafts were tested there. No draft is tested for a bonus token or a token of
    plain decoding.

    Args:
        rounds: rounds of a run.
        chosen: whether each emitted token is chosen; tokens after the end of this list are not.
    """
    kinds = [e.kind for r in rounds for e in r.emitted]
    counted = Counter(kind for kind, is_chosen in zip(kinds, chosen, strict=False) if is_chosen)
    return counted[ACCEPTED] + counted[CORRECTED], counted[ACCEPTED]


def acceptance_by_kind(trace: Trace, lexicon: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return, for each kind of word in the output, (positions with a tested draft, positions with an accepted draft).

    Args:
        trace: trace of the run.
        lexicon: kind by lower-case word, as in `word_kinds`.
    """
    kinds = word_kinds(trace, lexicon)
    return {kind: acceptance_where(trace.rounds, [k == kind for k in kinds]) for kind in sorted(set(kinds))}


def _share(rounds: Sequence[Round], chosen: Sequence[bool]) -> float | None:
    n_tested, n_accepted = acceptance_where(rounds, chosen)
    return _ratio(n_accepted, n_tested)


def summary(trace: Trace) -> dict[str, Any]:
    """Return all metrics of a generation by name; None if a denominator is zero."""
    rounds = trace.rounds
    n_tokens = count_emitted(rounds)
    needs_image = grounded(trace) or []
    return {
        "tokens": n_tokens,
        "rounds": len(rounds),
        "drafted": count_drafted(rounds),
        "verified": count_verified(rounds),
        "tested": count_tested(rounds),
        "accepted": count_accepted(rounds),
        "tau": tau(rounds),
        "acceptance_rate": acceptance_rate(rounds),
        "draft_utilisation": draft_utilisation(rounds),
        "grounded_acceptance": _share(rounds, needs_image),
        "language_acceptance": _share(rounds, [not g for g in needs_image]),
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
        "delayed_rounds": count_delayed_rounds(rounds),
    }
