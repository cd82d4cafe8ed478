"""Statistics of one run for researchers: calibration of q, and acceptance by entropy and by kind of token.

Acceptance is accepted / tested drafted tokens, as in `metrics.acceptance_rate`, so the rows of each table add up to the
run's totals. Confidence intervals are those of `metrics.wilson_interval`. They treat the tests of a run as independent,
which is only roughly true, and they are not valid for other prompts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.trace import metrics
from workbench.trace.events import Round, Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED

BINS = 10
"""Number of bins of equal width into which the calibration table divides draft probabilities."""
ENTROPY_EDGES = (0.0, 0.1, 0.3, 1.0, 2.0, 3.0)
"""Lower ends, in nats, of the bins into which the table of acceptance by entropy divides positions. The last bin has no
upper end."""

WORD_START, CONTINUATION, NUMBER = "word start", "continuation of a word", "number"
PUNCTUATION, WHITE_SPACE, SPECIAL, FRAGMENT = "punctuation", "white space", "special token", "part of a character"
KINDS = (WORD_START, CONTINUATION, NUMBER, PUNCTUATION, WHITE_SPACE, SPECIAL, FRAGMENT)
"""Names of the kinds of tokens that `token_kind` distinguishes, such as "word start" and "number"."""

_SPECIAL = re.compile(r"<\|[^<>]*\|>|</?[a-z]+(?:_[a-z]+)*>|\[/?[A-Z]+\]")
_APOSTROPHES = "'’"
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class AcceptanceCount:
    """Number of accepted and tested drafted tokens in one group of a table.

    Attributes:
        group: name of the group.
        tested: drafted tokens of the group that the target tested.
        accepted: tested tokens that were accepted.
    """

    group: str
    tested: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float | None:
        """Return the group's acceptance rate, accepted / tested tokens; None if no token was tested."""
        return self.accepted / self.tested if self.tested else None

    def to_wire(self) -> dict[str, Any]:
        """Return the group's counts, acceptance rate and 95 % confidence interval as JSON data.

        `low` and `high` are the ends of the interval; None if no token was tested.
        """
        low, high = metrics.wilson_interval(self.accepted, self.tested) if self.tested else (None, None)
        return {
            "group": self.group, "tested": self.tested, "accepted": self.accepted,
            "rate": self.rate, "low": low, "high": high,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Bin of the calibration table: drafted tokens whose draft probability q lies in one interval.

    Attributes:
        start: lower end of the interval, included.
        end: upper end, excluded; the last bin includes 1.
        drafted: number of drafted tokens, tested or not.
        mean_q: mean draft probability of the drafted tokens; None without drafted tokens.
        mean_p: mean target probability of the drafted tokens; None without drafted tokens.
        acceptance: numbers of tested and accepted tokens among the drafted tokens.
    """

    start: float
    end: float
    drafted: int
    mean_q: float | None
    mean_p: float | None
    acceptance: AcceptanceCount

    def to_wire(self) -> dict[str, Any]:
        """Return the calibration bin as JSON data, including the fields of `AcceptanceCount.to_wire`."""
        bounds = {"start": self.start, "end": self.end, "drafted": self.drafted}
        return bounds | {"mean_q": self.mean_q, "mean_p": self.mean_p} | self.acceptance.to_wire()


@dataclass(frozen=True, slots=True)
class AcceptanceStatistics:
    """Calibration table and acceptance tables of a run.

    Attributes:
        calibration: ten bins of the draft probability q, from 0 to 1.
        calibration_error: mean of |mean p − mean q| over the bins, weighted by the number of drafted tokens in each
            bin; None if no token has a draft probability.
        drafted: drafted tokens of the run.
        without_q: drafted tokens without a draft probability, which no bin contains.
        by_entropy: acceptance by entropy of the target's distribution that tested the token.
        without_entropy: tested tokens at positions without a recorded entropy, which no row of `by_entropy` contains.
        by_kind: acceptance by kind of the drafted token; kinds without a tested token are left out.
    """

    calibration: list[CalibrationBin]
    calibration_error: float | None
    drafted: int
    without_q: int
    by_entropy: list[AcceptanceCount]
    without_entropy: int
    by_kind: list[AcceptanceCount]

    def to_wire(self) -> dict[str, Any]:
        """Return the calibration table and the acceptance tables of the run as JSON data."""
        return {
            "calibration": [one.to_wire() for one in self.calibration],
            "calibration_error": self.calibration_error,
            "drafted": self.drafted,
            "without_q": self.without_q,
            "by_entropy": [one.to_wire() for one in self.by_entropy],
            "without_entropy": self.without_entropy,
            "by_kind": [one.to_wire() for one in self.by_kind],
        }


def acceptance_statistics(trace: Trace) -> AcceptanceStatistics:
    """Return a run's tables of calibration, of acceptance by entropy and of acceptance by kind of token.

    The Live page shows the same tables.

    Args:
        trace: trace of a run, such as `workbench.views.recorded_runs.trace("draft-model")`.

    Source:
        Reliability diagram and calibration error: Guo et al. 2017, arXiv:1706.04599, §2, with the target's probability
        p in place of the accuracy. Interval: Wilson 1927, Journal of the American Statistical Association 22 (158).
        Acceptance and entropy (there the drafter's): Agrawal et al. 2024, AdaEDL, arXiv:2410.18351.

    Example:
        >>> from workbench.views import recorded_runs
        >>> found = acceptance_statistics(recorded_runs.trace("draft-model"))
        >>> sum(one.drafted for one in found.calibration) == found.drafted
        True
    """
    rounds, bins = trace.rounds, calibration(trace.rounds)
    n_with_q = sum(one.drafted for one in bins)
    error = sum(one.drafted * abs((one.mean_p or 0.0) - (one.mean_q or 0.0)) for one in bins)
    by_entropy = acceptance_by_entropy(rounds)
    return AcceptanceStatistics(
        calibration=bins,
        calibration_error=error / n_with_q if n_with_q else None,
        drafted=metrics.count_drafted(rounds),
        without_q=metrics.count_drafted(rounds) - n_with_q,
        by_entropy=by_entropy,
        without_entropy=metrics.count_tested(rounds) - sum(one.tested for one in by_entropy),
        by_kind=acceptance_by_token_kind(trace),
    )


def calibration(rounds: Sequence[Round]) -> list[CalibrationBin]:
    """Return the calibration table of a run: its drafted tokens by draft probability q, in bins of equal width.

    The means of p and q are over all drafted tokens of a bin, discarded tokens included: the target computed their p
    in the same forward pass. The acceptance rate of a bin is over its tested tokens.

    Args:
        rounds: rounds of a run.
    """
    nodes: list[list[tuple[float, float, str]]] = [[] for _ in range(BINS)]
    for r in rounds:
        for p, q, status in zip(r.nodes.p, r.nodes.q, r.nodes.status, strict=True):
            if q is not None:
                nodes[min(BINS - 1, max(0, int(q * BINS)))].append((p, q, status))
    bins: list[CalibrationBin] = []
    for i, members in enumerate(nodes):
        n, statuses = len(members), [status for _, _, status in members]
        start, end = i / BINS, (i + 1) / BINS
        count = AcceptanceCount(f"{start:.1f}–{end:.1f}", n - statuses.count(DISCARDED), statuses.count(ACCEPTED))
        mean_q = sum(q for _, q, _ in members) / n if n else None
        mean_p = sum(p for p, _, _ in members) / n if n else None
        bins.append(CalibrationBin(start, end, n, mean_q, mean_p, count))
    return bins


def acceptance_by_entropy(rounds: Sequence[Round]) -> list[AcceptanceCount]:
    """Return the numbers of accepted and tested drafted tokens by entropy of the target's distribution, in nats.

    The entropy is that of the distribution at the token's position: after temperature and filters when sampling, of the
    plain softmax in greedy decoding (`Round.entropy`). Positions without a recorded entropy are left out.

    Args:
        rounds: rounds of a run.
    """
    ends = [*ENTROPY_EDGES[1:], None]
    names = [
        f"{start:g}–{end:g}" if end is not None else f"{start:g} or more"
        for start, end in zip(ENTROPY_EDGES, ends, strict=True)
    ]

    def group(r: Round, node: int) -> str | None:
        at = r.nodes.parents[node] + 1
        if at >= len(r.entropy):
            return None
        return names[sum(r.entropy[at] >= edge for edge in ENTROPY_EDGES[1:])]

    return _count(rounds, group, names)


def acceptance_by_token_kind(trace: Trace) -> list[AcceptanceCount]:
    """Return the numbers of accepted and tested drafted tokens by kind of token; kinds without a test are absent.

    Args:
        trace: trace of a run. The text before its first token is the prompt.
    """
    before_round = dict(zip(map(id, trace.rounds), _texts_before(trace), strict=True))

    def group(r: Round, node: int) -> str:
        parent = r.nodes.parents[node]
        before = before_round[id(r)] if parent < 0 else r.nodes.text[parent]
        return token_kind(r.nodes.text[node], before)

    return [one for one in _count(trace.rounds, group, KINDS) if one.tested]


def token_kind(text: str, before: str) -> str:
    r"""Return the kind of a token by its text, such as "word start", "number" or "punctuation" (one of `KINDS`).

    The first character that is not white space decides: a letter begins or continues a word, a digit makes a number,
    anything else is punctuation. A token that directly follows a letter or a digit continues the word; so does an
    ending such as "'s". In scripts without spaces, only the first token of a run of letters is a word start. A token
    whose text is empty or contains U+FFFD (the replacement character) is part of a character.

    Args:
        text: text of the token.
        before: text of the previous token.

    Example:
        >>> token_kind(" kite", "red"), token_kind("s", " kite"), token_kind("'s", " kite"), token_kind(" 12", "at")
        ('word start', 'continuation of a word', 'continuation of a word', 'number')
        >>> token_kind(".", " kite"), token_kind("\n", "."), token_kind("<|user|>", ".")
        ('punctuation', 'white space', 'special token')
    """
    bare = text.strip()
    if not text or _REPLACEMENT in text:
        return FRAGMENT
    if not bare:
        return WHITE_SPACE
    if _SPECIAL.fullmatch(bare):
        return SPECIAL
    follows = not text[0].isspace() and bool(before) and (_is_letter(before[-1]) or before[-1].isnumeric())
    if _is_letter(bare[0]) or (follows and bare[0] in _APOSTROPHES and _is_letter(bare[1:2])):
        return CONTINUATION if follows else WORD_START
    return NUMBER if bare[0].isnumeric() else PUNCTUATION


def _is_letter(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LM"


def _count(
    rounds: Sequence[Round], group: Callable[[Round, int], str | None], names: Sequence[str]
) -> list[AcceptanceCount]:
    """Return the numbers of accepted and tested drafted tokens in each group; a token whose group is None is skipped.

    Args:
        rounds: rounds of a run.
        group: function from a round and a node's index to the name of the node's group, or None.
        names: names of all groups.
    """
    counts = {name: AcceptanceCount(name) for name in names}
    for r in rounds:
        for node, status in enumerate(r.nodes.status):
            name = None if status == DISCARDED else group(r, node)
            if name is not None:
                one = counts[name]
                counts[name] = replace(one, tested=one.tested + 1, accepted=one.accepted + (status == ACCEPTED))
    return list(counts.values())


def _texts_before(trace: Trace) -> Iterator[str]:
    """Yield, for each round of a trace, the text of the last committed token before it; "" if there is none."""
    last = trace.header.prompt_text[-1] if trace.header.prompt_text else ""
    for r in trace.rounds:
        yield last
        last = next((e.text for e in reversed(r.emitted) if e.text), last)
