"""Where a text ends: at the model's own end, a stop token or string, a criterion of the caller's, or its length."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.models import Models
from workbench.engine.request import Row


def cut(row: Row, tokens: Sequence[int], models: Models) -> tuple[int, str, list[tuple[str, int, int]]]:
    """How many of a row's new tokens are emitted, why the text ends (or ""), and the span of each."""
    assert row.detokeniser is not None
    spans, extras = [], row.request.extras
    for i, token in enumerate(tokens):
        spans.append(row.detokeniser.add(token))
        if row.request.stop_at_eos and token in models.eos:
            return i + 1, "eos", spans
        if token in extras.stop_tokens:
            row.cut_text_at = spans[-1][1]
            return i + 1, "stop-token", spans
        if row.request.stop_when is not None and row.request.stop_when([*row.committed, *tokens[: i + 1]]):
            return i + 1, "criterion", spans
        if row.request.stop and spans[-1][0] and row.n_new + i >= extras.min_tokens:
            text, begin = row.detokeniser.text, spans[-1][1]
            found = [text.find(stop, max(0, begin - len(stop) + 1)) for stop in row.request.stop]
            # The earliest in the text, not the first of the list; of several that begin there, the cut is the same.
            row.cut_text_at = min((at for at in found if at >= 0), default=None)
            if row.cut_text_at is not None:
                return i + 1, "stop-string", spans
        if row.n_new + i + 1 >= row.max_new_tokens:
            return i + 1, "length", spans
    return len(tokens), "", spans
