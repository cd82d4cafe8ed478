"""Where a text ends: at the model's own end, a stop token or string, a criterion of the caller's, or its length."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.request import Row
from workbench.models.loading import Models


def ending(row: Row, tokens: Sequence[int], models: Models, base: int) -> tuple[int, str]:
    """How many of a row's new tokens stand before it ends, whatever text they are, and why it does (or "").

    Args:
        row: the row.
        tokens: that follow its first `base` tokens.
        models: of the engine.
        base: tokens before, prompt included.
    """
    room = row.prompt_length + row.max_new_tokens - base
    for i in range(min(len(tokens), room)):
        if reason := _reason(row, tokens, i, models, base):
            return i + 1, reason
    return (room, "length") if len(tokens) >= room else (len(tokens), "")


def cut(
    row: Row, tokens: Sequence[int], models: Models, base: int | None = None
) -> tuple[int, str, list[tuple[str, int, int]]]:
    """How many of a row's new tokens are emitted, why the text ends (or ""), and the span of each. See `ending`."""
    assert row.detokeniser is not None
    spans, request = [], row.request
    base = len(row.committed) if base is None else base
    n_before = base - row.prompt_length
    for i, token in enumerate(tokens):
        spans.append(row.detokeniser.add(token))
        if reason := _reason(row, tokens, i, models, base):
            row.cut_text_at = spans[-1][1] if reason == "stop-token" else None
            return i + 1, reason, spans
        if request.stop and spans[-1][0] and n_before + i >= request.extras.min_tokens:
            text, begin = row.detokeniser.text, spans[-1][1]
            found = [text.find(stop, max(0, begin - len(stop) + 1)) for stop in request.stop]
            # The earliest in the text, not the first of the list; of several that begin there, the cut is the same.
            row.cut_text_at = min((at for at in found if at >= 0), default=None)
            if row.cut_text_at is not None:
                return i + 1, "stop-string", spans
        if n_before + i + 1 >= row.max_new_tokens:
            return i + 1, "length", spans
    return len(tokens), "", spans


def _reason(row: Row, tokens: Sequence[int], i: int, models: Models, base: int) -> str:
    """Why a text ends with a token, be its text what it may."""
    if row.request.stop_at_eos and tokens[i] in models.eos:
        return "eos"
    if tokens[i] in row.request.extras.stop_tokens:
        return "stop-token"
    if row.request.stop_when is not None and row.request.stop_when([*row.committed[:base], *tokens[: i + 1]]):
        return "criterion"
    return ""
