"""Encode a rendered conversation with special tokens only where the chat template wrote them, not inside messages."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import AddedToken, Tokenizer

from workbench.core.errors import PromptError
from workbench.service.traced_template import MESSAGE, UNKNOWN

_MESSAGE_CHARACTER = "\U0010fffd"
"""Character that replaces the text of messages while the special tokens of the chat template are searched."""


def encode(tokenizer: Any, text: str, origins: str, messages: Sequence[str]) -> list[int]:
    """Encode a rendered conversation; the text of a special token inside a message is encoded as plain text.

    Args:
        tokenizer: a tokenizer of Transformers.
        text: the rendered conversation.
        origins: origin of each character (chat template, message or unknown), from `workbench.service.traced_template`.
        messages: all texts of the messages. A special token of unknown origin counts as plain text if a message
            contains it, in upper or lower case.

    Raises:
        PromptError: the tokenizer encodes a special token's text as that token even in plain text.
    """
    special = {content: i for i, content in _special_token_texts(tokenizer).items()}
    pattern = re.compile("|".join(map(re.escape, sorted(filter(None, special), key=len, reverse=True))) or "(?!)")
    template_spans = _own(pattern, text, origins, messages)
    matches = [match.span() for match in pattern.finditer(text)]
    if matches == template_spans:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not hasattr(tokenizer, "backend_tokenizer"):
        return _encode_between(tokenizer, text, template_spans, special)
    plain = _PlainTokenizer.of(tokenizer)
    inner_positions = {position for start, end in template_spans for position in range(start + 1, end)}
    for breaks in (
        [],
        [start + 1 for start, end in {*matches} - {*template_spans} if start + 1 not in inner_positions],
    ):
        ids, leaked = plain.encode(text, template_spans, breaks)
        if not leaked:
            return ids
    raise PromptError(
        f"A message contains the special token {leaked!r}, which this tokenizer cannot encode as plain text.",
        "Remove the text of this token from the message.",
    )


def _special_token_texts(tokenizer: Any) -> dict[int, str]:
    """Return the texts of a tokenizer's special tokens, by token id."""
    return {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}


def _own(pattern: re.Pattern[str], text: str, origins: str, messages: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans (start, end) of the special tokens that the chat template wrote, outside of messages.

    Args:
        pattern: pattern that matches the text of any special token.
        text: the rendered conversation.
        origins: origin of each character.
        messages: all texts of the messages.
    """
    masked = "".join(
        _MESSAGE_CHARACTER if origin == MESSAGE else char for char, origin in zip(text, origins, strict=True)
    )
    spans: list[tuple[int, int]] = []
    position = 0
    while match := pattern.search(masked, position):
        start, end = match.span()
        unknown_chars = "".join(
            char for char, origin in zip(match[0], origins[start:end], strict=True) if origin == UNKNOWN
        )
        if unknown_chars and any(unknown_chars.casefold() in message.casefold() for message in messages):
            hidden = "".join(
                _MESSAGE_CHARACTER if origin == UNKNOWN else char
                for char, origin in zip(match[0], origins[start:end], strict=True)
            )
            masked = masked[:start] + hidden + masked[end:]
        else:
            spans.append((start, end))
            position = end
    return spans


def _encode_between(tokenizer: Any, text: str, own: Sequence[tuple[int, int]], special: dict[str, int]) -> list[int]:
    """Encode the text between special tokens separately, for a tokenizer that is written in Python.

    Args:
        tokenizer: a tokenizer of Transformers that is written in Python.
        text: the rendered conversation.
        own: spans (start, end) of special tokens that the template wrote.
        special: token id of each special token, by its text.
    """
    ids: list[int] = []
    position = 0
    for start, end in [*own, (len(text), len(text))]:
        if piece := text[position:start]:
            ids += tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        ids += [special[text[start:end]]] if end > start else []
        position = end
    return ids


_copies: WeakKeyDictionary[Any, _PlainTokenizer] = WeakKeyDictionary()


class _PlainTokenizer:
    """Copy of a tokenizer in which the special tokens have random names that no text contains.

    The copy encodes the whole text in one call. So tokens can cross the ends of messages, as with the original
    tokenizer, and no space is added after a special token. Threads share the original, so it is not changed.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        name = secrets.token_hex(8)
        self._break = f"\U000f0000{name}"
        tokens = {i: token for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._names = {token.content: f"\U000f0001{name}-{i}\U000f0002" for i, token in tokens.items()}
        added = [
            AddedToken(
                self._names[token.content], special=False, normalized=False,
                lstrip=token.lstrip, rstrip=token.rstrip, single_word=token.single_word,
            )
            for token in tokens.values()
        ]  # fmt: skip
        self._tokenizer.add_tokens([*added, AddedToken(self._break, special=False, normalized=False)])
        self._ids = {self._tokenizer.token_to_id(self._names[token.content]): i for i, token in tokens.items()}
        self._texts = _special_token_texts(tokenizer)
        self._unknown = tokenizer.unk_token_id

    @classmethod
    def of(cls, tokenizer: Any) -> _PlainTokenizer:
        """Return the copy of a tokenizer. The copy is cached until special tokens are added to the tokenizer."""
        copy = _copies.get(tokenizer)
        if copy is None or copy._texts != _special_token_texts(tokenizer):
            copy = _copies[tokenizer] = cls(tokenizer)
        return copy

    def encode(self, text: str, own: Sequence[tuple[int, int]], breaks: Sequence[int]) -> tuple[list[int], str]:
        """Return the token ids, and the text of a special token that plain text produced ("" if none).

        Args:
            text: text of the conversation.
            own: spans (start, end) of special tokens.
            breaks: positions that no token may cross.
        """
        changes = [(start, end, self._names[text[start:end]]) for start, end in own]
        changes = sorted([*changes, *((position, position, self._break) for position in breaks)])
        pieces: list[str] = []
        position = 0
        for start, end, name in changes:
            pieces += [text[position:start], name]
            position = end
        encoded = self._tokenizer.encode("".join([*pieces, text[position:]]), add_special_tokens=False).ids
        break_id = self._tokenizer.token_to_id(self._break)
        leaked = next((self._texts[i] for i in encoded if i in self._texts and i != self._unknown), "")
        return [self._ids.get(i, i) for i in encoded if i != break_id], leaked
