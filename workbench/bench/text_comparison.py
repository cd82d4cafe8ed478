"""Comparison of texts: where two runs differ, the target's margin there, and what the method promises."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.core.errors import WorkbenchError
from workbench.trace.events import Trace
from workbench.trace.nodes import TopTokens
from workbench.trace.tokens import EmittedToken

if TYPE_CHECKING:
    from workbench.bench.comparison import LaneRuns
    from workbench.decoders import ConfiguredMethod

PREFIX_CHARS = 60


def differences(plain: Trace, other: Trace) -> list[list[str]]:
    """Return the text of a run aligned with that of plain decoding, as a list of common and differing parts.

    A part is ["same", text in both], ["plain", text only in plain decoding] or ["lane", text only in the other run].
    """
    a, b = _emitted(plain), _emitted(other)
    matcher = difflib.SequenceMatcher(None, [e.token for e in a], [e.token for e in b], autojunk=False)
    pieces: list[list[str]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            pieces.append(["same", _text(b[j1:j2])])
            continue
        if i2 > i1:
            pieces.append(["plain", _text(a[i1:i2])])
        if j2 > j1:
            pieces.append(["lane", _text(b[j1:j2])])
    return pieces


def text_exactness(lane: LaneRuns, plain: LaneRuns, greedy: bool) -> dict[str, Any]:
    """Return whether a lane (method with settings) generates the same text as plain decoding, and the evidence.

    Returns:
        kind ("reference", "identical", "diverges" or, when sampling, "distribution"), promise, number of compared
        runs and of identical ones, `first`: the first difference of the first prompt that has one, and `evidence`:
        result of `evidence`; empty at temperature 0.
    """
    promise = lane.lane.configured.promise.value
    pairs = [(s, plain.samples[key]) for key, s in lane.samples.items() if key in plain.samples]
    identical = sum(s.token_ids == p.token_ids for s, p in pairs)
    result = {"promise": promise, "runs": len(pairs), "identical": identical, "first": None, "evidence": ""}
    if lane is plain:
        return result | {"kind": "reference"}
    if not greedy:
        result["evidence"] = evidence(lane.lane.configured)
    for prompt in sorted(lane.traces.keys() & plain.traces.keys()):
        first = divergence(plain.traces[prompt], lane.traces[prompt])
        if first is not None:
            result["first"] = {"prompt": prompt, **first}
            break
    kind = "distribution" if not greedy else "identical" if identical == len(pairs) else "diverges"
    return result | {"kind": kind}


def evidence(method: ConfiguredMethod) -> str:
    """Return the evidence for a method's sampling distribution, in one line; empty if there is none.

    For the method's default verifier, policy and tree builder, the evidence is the method's test on the exactness
    board. For another setting it is the test of this setting on that board, or the reason why the setting is not exact.
    """
    from workbench.bench.board import choice_key, choice_rows, describe_fit, exactness_rows
    from workbench.methods import deviation
    from workbench.methods.combinations import has_default_parts

    is_default = has_default_parts(method)
    try:
        if is_default:
            rows = [row for row in exactness_rows() if row["method"] == method.name]
        else:
            rows = [row for row in choice_rows() if row["choice"] == choice_key(method)]
    except WorkbenchError:
        return ""
    row = next((row for row in rows if row["distributions"]), None)
    if row is None:
        return deviation.explain_configured(method) if not is_default else ""
    sampling_test = row["distributions"][0]
    return f"{row['standing']}: {sampling_test['name']}: χ² = {describe_fit(sampling_test)} ({row['date'][:10]})"


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first position where two texts differ, or where the shorter one has ended; None if they are equal.

    >>> [first_difference([1, 2], other) for other in ([1, 2], [1, 3], [1])]
    [None, 1, 1]
    """
    if len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True)):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def divergence(plain: Trace, other: Trace) -> dict[str, Any] | None:
    """Return the first position where two greedy texts differ, with the target's margin there; None if they are equal.

    Returns:
        at (number of equal tokens before it), before (the end of the common text), plain and other (token, text, p:
        the target's probability; None if that text has ended), margin (the target's logit of plain's token minus that
        of the other, in nats), rank (of the other token in the target's top tokens, from 1; None: not among them).
    """
    a, b = _emitted(plain), _emitted(other)
    position = first_difference([e.token for e in a], [e.token for e in b])
    if position is None:
        return None
    x, y = a[position] if position < len(a) else None, b[position] if position < len(b) else None
    top = _top_at(plain, position)
    rank = p = None
    if y is not None:
        rank = top.tokens.index(y.token) + 1 if top is not None and y.token in top.tokens else None
        p = top.prob[rank - 1] if top is not None and rank is not None else y.p
    has_probs = x is not None and p is not None and x.p > 0 and p > 0
    return {
        "at": position,
        "before": _text(a[:position])[-PREFIX_CHARS:],
        "plain": None if x is None else {"token": x.token, "text": x.text, "p": x.p},
        "other": None if y is None else {"token": y.token, "text": y.text, "p": p},
        "margin": math.log(x.p / p) if has_probs and x is not None and p is not None else None,
        "rank": rank,
    }


def _emitted(trace: Trace) -> list[EmittedToken]:
    return [e for r in trace.rounds for e in r.emitted]


def _text(emitted: Sequence[EmittedToken]) -> str:
    return "".join(e.text for e in emitted)


def _top_at(plain: Trace, at: int) -> TopTokens | None:
    """Return the target's top tokens at the position where plain decoding generated token number `at`."""
    n_tokens = 0
    for r in plain.rounds:
        if n_tokens == at and r.emitted:
            return r.top_p[0] if r.top_p else None
        n_tokens += len(r.emitted)
    return None
