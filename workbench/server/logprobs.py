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


def of_completion(scores: Sequence[Any], said: int, before: tuple[str, Sequence[Any]] | None = None) -> dict[str, Any]:
    """For `choices[].logprobs` of completions.

    Args:
        scores: `workbench.engine.extras.Scored` of each token so far.
        said: so many of them were told already.
        before: where the prompt is repeated, its first token, of which there is no probability, and the others'.
    """
    first, prompt = before or ("", [])
    line = [*prompt, *scores]
    at, offsets, utf8 = len(first), [], codecs.getincrementaldecoder("utf-8")("replace")
    for one in line:
        offsets.append(at)
        at += len(utf8.decode(one.data))
    is_first = before is not None and not said
    new = line if is_first else line[len(prompt) + said :]
    found: dict[str, list[Any]] = {
        "tokens": [token(one.data) for one in new],
        "token_logprobs": [one.logprob for one in new],
        "top_logprobs": [{token(top.data): top.logprob for top in (*one.top, one)} if one.top else None for one in new],
        "text_offset": offsets[len(line) - len(new) :],
    }
    if not is_first:
        return found
    return {name: [value, *found[name]] for name, value in zip(found, (first, None, None, 0), strict=True)}


def of_prompt(scores: Sequence[Any]) -> list[dict[str, Any] | None]:
    """VLLM's `prompt_logprobs`: nothing for the first token, then by token id."""
    return [None, *({str(each.token): _ranked(each) for each in (*one.top, one)} for one in scores)]


def _ranked(one: Any) -> dict[str, Any]:
    return {"logprob": one.logprob, "rank": one.rank, "decoded_token": token(one.data)}
