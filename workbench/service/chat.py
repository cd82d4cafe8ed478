"""Format conversations with the target model's chat template.

If a message contains the text of a special token, that text is encoded as plain text, not as the special token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.core.errors import PromptError
from workbench.core.panics import convert_panics
from workbench.service import special_ids, traced_template
from workbench.service.limits import Limits

_PARTS = ("text", "image")


def chat_ids(tokenizer: Any, messages: list[dict[str, Any]], limits: Limits) -> list[int]:
    """Return the token ids of a conversation, up to the start of the assistant's answer.

    Args:
        tokenizer: the target's tokenizer.
        messages: messages with `role` and `content`, both text; a content may also be a list of parts,
            {"type": "text", "text": …} and {"type": "image"}, the placeholder of an image.
        limits: limits of the backend, of which the maximum prompt length applies to the conversation.

    Raises:
        PromptError: the target has no chat template, or the messages do not fit it.
    """
    if not isinstance(messages, list) or not messages:
        raise PromptError(
            "The conversation has no messages.", 'Give a list of messages such as {"role": "user", "content": "…"}.'
        )
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or _content_texts(message) is None:
            raise PromptError(
                "A message has no text for role or content.", 'Write a message as {"role": "user", "content": "…"}.'
            )
    limits.check_prompt("\n".join(text for message in messages for text in _content_texts(message) or ()) or " ")
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError("This target has no chat template.", "Give a plain prompt instead.")
    try:
        with convert_panics():
            ids = _apply_template(tokenizer, messages)
    except PromptError:
        raise
    except Exception as error:  # templates can raise any exception
        lines = str(error).strip().splitlines()
        reason = lines[0][:200] if lines else type(error).__name__
        raise PromptError(
            f"The messages do not fit the target's chat template: {reason}",
            "Most templates require alternating user and assistant messages, and a system message only at the start.",
        ) from error
    limits.check_prompt_tokens(len(ids))
    return ids


def _apply_template(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """Apply the chat template and return token ids.

    The text of a special token inside a message is encoded as plain text.
    """
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return special_ids.encode(tokenizer, text, _origins(tokenizer, messages, text), [*_all_texts(messages)])


def _origins(tokenizer: Any, messages: list[dict[str, Any]], text: str) -> str:
    """Return the origin of each character of a rendered conversation: the template, a message, or unknown.

    `workbench.service.traced_template` defines a letter for each origin. All characters are UNKNOWN if the template
    cannot be traced.
    """
    try:
        rendered = traced_template.render(tokenizer, messages)
    except Exception:  # the template uses a value that only the real rendering provides
        return traced_template.UNKNOWN * len(text)
    return traced_template.origins(rendered) if str.__eq__(rendered, text) else traced_template.UNKNOWN * len(text)


def _all_texts(value: Any) -> Iterator[str]:
    """Yield every string value in nested data, without the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _all_texts(item)


def _content_texts(message: dict[str, Any]) -> list[str] | None:
    """Return a message's content as a list of texts: the content itself, or its parts of type "text".

    Return None if the content is neither text nor a list of valid parts.
    """
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list) or not all(isinstance(p, dict) and p.get("type") in _PARTS for p in content):
        return None
    texts = [part.get("text") for part in content if part["type"] == "text"]
    return texts if all(isinstance(text, str) for text in texts) else None  # type: ignore[return-value]
