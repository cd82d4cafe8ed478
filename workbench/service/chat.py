"""Conversations in a target's own chat format; a special token's text in a message stays plain text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.core.errors import PromptError
from workbench.core.panics import no_panic
from workbench.service import special_ids, traced_template
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
    except PromptError:
        raise
    except Exception as error:  # templates raise what they like
        reason = str(error).strip().splitlines()
        raise PromptError(
            f"The messages do not fit the target's chat format: {reason[0][:200] if reason else type(error).__name__}",
            "Most formats want user and assistant in turn, and system first.",
        ) from error
    limits.check_prompt_tokens(len(ids))
    return ids


def _formatted(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """Ids of the text that `apply_chat_template` writes, special tokens' text in messages as plain text."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return special_ids.encode(tokenizer, text, _origins(tokenizer, messages, text), [*_all_texts(messages)])


def _origins(tokenizer: Any, messages: list[dict[str, Any]], text: str) -> str:
    """Origin of each character of a rendered conversation; UNKNOWN where the template cannot be traced."""
    try:
        rendered = traced_template.render(tokenizer, messages)
    except Exception:  # a template that asks for what the real rendering alone gives
        return traced_template.UNKNOWN * len(text)
    return traced_template.origins(rendered) if str.__eq__(rendered, text) else traced_template.UNKNOWN * len(text)


def _all_texts(value: Any) -> Iterator[str]:
    """Every text in plain data, without names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _all_texts(item)


def _texts(message: dict[str, Any]) -> list[str] | None:
    """The texts of a message's content: itself, or its parts of type "text"; None where it is neither."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list) or not all(isinstance(p, dict) and p.get("type") in _PARTS for p in content):
        return None
    texts = [part.get("text") for part in content if part["type"] == "text"]
    return texts if all(isinstance(text, str) for text in texts) else None  # type: ignore[return-value]
