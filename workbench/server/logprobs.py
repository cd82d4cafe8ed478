"""Log-probabilities (in nats, of the target's distribution) in OpenAI's formats; for prompts, in vLLM's format."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any


def token(data: bytes) -> str:
    r"""Return a token as text; if it ends inside a character, return its bytes in the notation of OpenAI's API.

    Example:
        >>> token(b" fox"), token(b"\xe4\xb8")
        (' fox', 'bytes:\\xe4\\xb8')
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def of_chat(scores: Sequence[Any]) -> dict[str, Any]:
    """Return log-probabilities in the format of `choices[].logprobs` of OpenAI's chat completions.

    Args:
        scores: a `workbench.engine.request_options.TokenLogprob` per token.
    """
    return {
        "content": [_entry(score) | {"top_logprobs": [_entry(top) for top in score.top]} for score in scores],
        "refusal": None,
    }


def _entry(one: Any) -> dict[str, Any]:
    return {"token": token(one.data), "logprob": one.logprob, "bytes": list(one.data)}


class CompletionLogprobs:
    """Builder of `choices[].logprobs` of one streamed completion, which converts each token only once.

    Args:
        before: with `echo`, the prompt's first token, which has no score, and the scores of the prompt's other tokens.
        prompt_text: with `echo`, the text of the prompt.
    """

    def __init__(self, before: tuple[str, Sequence[Any]] | None = None, prompt_text: str = "") -> None:
        self._before, self._echoed = before, prompt_text
        self._at, self._utf8 = 0, codecs.getincrementaldecoder("utf-8")("replace")

    def more(self, scores: Sequence[Any]) -> dict[str, Any]:
        """Return the log-probabilities of new tokens as a chunk.

        With the field `echo`, the first chunk begins with the prompt's tokens.

        Args:
            scores: a `workbench.engine.request_options.TokenLogprob` per new token.
        """
        before, self._before = self._before, None
        offsets: list[int] = []
        if before is not None:
            first, others = before
            offsets = offsets_in(self._echoed, [first.encode(), *(score.data for score in others)])[1:]
            self._at, new = len(self._echoed), scores
            offsets += [self._next_offset(score) for score in new]
            scores = [*others, *new]
        else:
            offsets = [self._next_offset(score) for score in scores]
        tops = ((*score.top, score) if score.top else () for score in scores)
        chunk: dict[str, list[Any]] = {
            "tokens": [token(score.data) for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [{token(top.data): top.logprob for top in entry} or None for entry in tops],
            "text_offset": offsets,
        }
        if before is None:
            return chunk
        return {name: [value, *chunk[name]] for name, value in zip(chunk, (before[0], None, None, 0), strict=True)}

    def _next_offset(self, one: Any) -> int:
        """Return the offset of the next generated token in the text, in characters. A special token adds no text."""
        at = self._at
        if not one.is_special:
            self._at += len(self._utf8.decode(one.data))
        return at


NEAR = 8
"""Maximum gap between two consecutive tokens in their text, in bytes: a tokenizer may change or drop characters."""


def offsets_in(text: str, tokens: Sequence[bytes]) -> list[int]:
    r"""Return the position of each token in its text, in characters from the start.

    A token that is not in the text, such as a BOS token, gets the offset of the next token. The first token may have a
    leading space that is not in the text: some tokenizers add a space before every text.

    Args:
        text: the tokenised text.
        tokens: bytes of each token, possibly a part of a character.

    Example:
        >>> offsets_in("ab ä", [b"<s>", b" ab", b" ", b"\xc3", b"\xa4"])
        [0, 0, 2, 3, 3]
    """
    raw, at, offsets = text.encode(), 0, []
    for data in tokens:
        start = raw.find(data, at, at + len(data) + NEAR)
        if start < 0 and at == 0 and data[:1] == b" " and raw.startswith(data[1:]):
            data, start = data[1:], 0
        start, size = (start, len(data)) if start >= 0 else (at, 0)
        offsets.append(len(raw[:start].decode(errors="ignore")))
        at = start + size
    return offsets


def of_prompt(scores: Sequence[Any]) -> list[dict[str, Any] | None]:
    """Return the prompt's log-probabilities in the format of vLLM's `prompt_logprobs`.

    The first entry is None; each further entry is a dict by token id.
    """
    return [None, *({str(entry.token): _ranked(entry) for entry in (*score.top, score)} for score in scores)]


def _ranked(one: Any) -> dict[str, Any]:
    return {"logprob": one.logprob, "rank": one.rank, "decoded_token": token(one.data)}
