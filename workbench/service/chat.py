"""Conversations in a target's own chat format. What people write stays text, chat markers in it too."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from workbench.core.errors import PromptError
from workbench.core.panics import no_panic
from workbench.service.limits import Limits

_PARTS = ("text", "image")


def chat_ids(tokenizer: Any, messages: list[dict[str, Any]], limits: Limits) -> list[int]:
    """Token ids of a conversation, ready for the assistant's answer.

    Args:
        tokenizer: the target's.
        messages: each with `role` and `content`, both text; a content may be a list of parts,
            {"type": "text", "text": …} and {"type": "image"} where a picture is to stand.
        limits: how long the conversation may be.

    Raises:
        PromptError: the target has no chat format, or the messages do not fit it.
    """
    if not isinstance(messages, list) or not messages:
        raise PromptError("There are no messages.", 'Give a list of {"role": …, "content": …}.')
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or _texts(message) is None:
            raise PromptError("A message has no text for role or content.", 'Give {"role": "user", "content": "…"}.')
    limits.check_prompt("\n".join(text for message in messages for text in _texts(message) or ()) or " ")
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError("This target has no chat format.", "Give a plain prompt instead.")
    try:
        with no_panic():
            ids = _formatted(tokenizer, messages)
    except Exception as error:  # templates raise what they like
        reason = str(error).strip().splitlines()
        raise PromptError(
            f"The messages do not fit the target's chat format: {reason[0][:200] if reason else type(error).__name__}",
            "Most formats want user and assistant in turn, and system first.",
        ) from error
    limits.check_prompt_tokens(len(ids))
    return ids


def _formatted(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    markers = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    contents = [text for message in messages for text in _texts(message) or ()]
    if not any(marker in content for marker in markers for content in contents):
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return [int(token) for token in ids]
    # Stand-ins are put into the format first; what they stand for is then encoded on its own, without markers.
    stand_ins = [f"x{secrets.token_hex(8)}x" for _ in contents]
    names = iter(stand_ins)
    put_in = [message | {"content": _renamed(message["content"], names)} for message in messages]
    rest = tokenizer.apply_chat_template(put_in, tokenize=False, add_generation_prompt=True)
    safe: list[int] = []
    for name, content in zip(stand_ins, contents, strict=True):
        before, found, rest = rest.partition(name)
        safe += _encode(tokenizer, before) + (_encode(tokenizer, content, markers=False) if found else [])
    return safe + _encode(tokenizer, rest)


def _texts(message: dict[str, Any]) -> list[str] | None:
    """The texts of a message's content: itself, or its parts of type "text"; None where it is neither."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list) or not all(isinstance(p, dict) and p.get("type") in _PARTS for p in content):
        return None
    texts = [part.get("text") for part in content if part["type"] == "text"]
    return texts if all(isinstance(text, str) for text in texts) else None  # type: ignore[return-value]


def _renamed(content: Any, names: Iterator[str]) -> Any:
    if isinstance(content, str):
        return next(names)
    return [part | {"text": next(names)} if part["type"] == "text" else part for part in content]


def _encode(tokenizer: Any, text: str, markers: bool = True) -> list[int]:
    if not text:
        return []
    return list(tokenizer(text, add_special_tokens=False, split_special_tokens=not markers)["input_ids"])
