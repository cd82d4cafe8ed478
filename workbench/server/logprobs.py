"""Log-probabilities in OpenAI's shapes, and in vLLM's for those of a prompt. In nats, of the target's own law."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any


def token(data: bytes) -> str:
    r"""A token as text; one that holds a part of a character as OpenAI's completions write it.

    Example:
        >>> token(b" fox"), token(b"\xe4\xb8")
        (' fox', 'bytes:\\xe4\\xb8')
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def of_chat(scores: Sequence[Any]) -> dict[str, Any]:
    """For `choices[].logprobs` of chat completions.

    Args:
        scores: `workbench.engine.extras.Scored` of each token.
    """
    return {
        "content": [_entry(one) | {"top_logprobs": [_entry(top) for top in one.top]} for one in scores],
        "refusal": None,
    }


def _entry(one: Any) -> dict[str, Any]:
    return {"token": token(one.data), "logprob": one.logprob, "bytes": list(one.data)}


class OfCompletion:
    """For `choices[].logprobs` of one completion, piece by piece: what was told is not read again.

    Args:
        before: where the prompt is repeated, its first token, of which there is no probability, and the others'.
    """

    def __init__(self, before: tuple[str, Sequence[Any]] | None = None) -> None:
        self._before = before
        self._at, self._utf8 = 0, codecs.getincrementaldecoder("utf-8")("replace")

    def more(self, scores: Sequence[Any]) -> dict[str, Any]:
        """The next piece; the first one begins with the prompt, where it is repeated.

        Args:
            scores: `workbench.engine.extras.Scored` of each token that was not told yet.
        """
        before, self._before = self._before, None
        if before is not None:
            self._at, scores = len(before[0]), [*before[1], *scores]
        tops = ((*one.top, one) if one.top else () for one in scores)
        found: dict[str, list[Any]] = {
            "tokens": [token(one.data) for one in scores],
            "token_logprobs": [one.logprob for one in scores],
            "top_logprobs": [{token(top.data): top.logprob for top in each} or None for each in tops],
            "text_offset": [self._pass(one.data) for one in scores],
        }
        if before is None:
            return found
        return {name: [value, *found[name]] for name, value in zip(found, (before[0], None, None, 0), strict=True)}

    def _pass(self, data: bytes) -> int:
        """Where in the text a token begins, in characters."""
        at = self._at
        self._at += len(self._utf8.decode(data))
        return at


def of_prompt(scores: Sequence[Any]) -> list[dict[str, Any] | None]:
    """VLLM's `prompt_logprobs`: nothing for the first token, then by token id."""
    return [None, *({str(each.token): _ranked(each) for each in (*one.top, one)} for one in scores)]


def _ranked(one: Any) -> dict[str, Any]:
    return {"logprob": one.logprob, "rank": one.rank, "decoded_token": token(one.data)}
