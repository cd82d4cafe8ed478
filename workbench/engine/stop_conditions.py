"""Stop conditions: EOS, stop tokens and strings, custom criteria, length."""

from __future__ import annotations

from collections import abc

from workbench.engine.request import Sequence
from workbench.models.loading import Models


def find_end(sequence: Sequence, tokens: abc.Sequence[int], models: Models, base: int) -> tuple[int, str]:
    """Return how many new tokens belong to the text, and why the text ends ("" if it continues).

    Only token ids are examined, not the text.

    Args:
        sequence: the sequence.
        tokens: tokens that follow the first `base` tokens of the sequence.
        models: models of the engine.
        base: number of tokens before `tokens`, including the prompt.
    """
    room = sequence.prompt_length + sequence.max_new_tokens - base
    for i in range(min(len(tokens), room)):
        if reason := _reason(sequence, tokens, i, models, base):
            return i + 1, reason
    return (room, "length") if len(tokens) >= room else (len(tokens), "")


def apply_stop_conditions(
    sequence: Sequence, tokens: abc.Sequence[int], models: Models, base: int | None = None
) -> tuple[int, str, list[tuple[str, int, int]]]:
    """Return the number of emitted new tokens, why the text ends ("" if it continues), and each token's text.

    The text of a token comes with its start and end in the generated text, in characters. The arguments are those of
    `find_end`.
    """
    output, request, spans = sequence.output, sequence.request, list[tuple[str, int, int]]()
    assert output.detokeniser is not None
    base = len(sequence.committed) if base is None else base
    n_before, max_new_tokens = base - sequence.prompt_length, sequence.max_new_tokens
    for i, token in enumerate(tokens):
        spans.append(output.detokeniser.add(token))
        if reason := _reason(sequence, tokens, i, models, base):
            output.cut_at = spans[-1][1] if reason == "stop-token" else None
            return i + 1, reason, spans
        if request.stop and spans[-1][0] and n_before + i >= request.options.min_tokens:
            text, begin = output.detokeniser.text, spans[-1][1]
            starts = [text.find(stop, max(0, begin - len(stop) + 1)) for stop in request.stop]
            # Use the stop string that begins earliest in the text, not the first in the list.
            output.cut_at = min((at for at in starts if at >= 0), default=None)
            if output.cut_at is not None:
                return i + 1, "stop-string", spans
        if n_before + i + 1 >= max_new_tokens:
            return i + 1, "length", spans
    return len(tokens), "", spans


def _reason(sequence: Sequence, tokens: abc.Sequence[int], i: int, models: Models, base: int) -> str:
    """Return why a text ends at a token, by the token's id alone; "" if the text does not end there."""
    if sequence.request.stop_at_eos and tokens[i] in models.eos:
        return "eos"
    if tokens[i] in sequence.request.options.stop_tokens:
        return "stop-token"
    if sequence.request.stop_when is not None and sequence.request.stop_when(
        [*sequence.committed[:base], *tokens[: i + 1]]
    ):
        return "criterion"
    return ""
