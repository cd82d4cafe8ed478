"""Token ids of a rendered conversation: special tokens where the template wrote them, plain text in messages."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import AddedToken, Tokenizer

from workbench.core.errors import PromptError
from workbench.service.traced_template import MESSAGE, UNKNOWN

_HIDDEN = "\U0010fffd"
"""Stands for a message's character while the template's own special tokens are looked for."""


def encode(tokenizer: Any, text: str, origins: str, messages: Sequence[str]) -> list[int]:
    """Encode a rendered conversation as the tokenizer does, without special tokens that a message spells.

    Args:
        tokenizer: one of Transformers.
        text: the conversation as its template writes it.
        origins: of each character, as in `workbench.service.traced_template`.
        messages: all texts of the messages. A special token of unknown origin that occurs in one, in any case of its
            letters, is plain text.

    Raises:
        PromptError: the vocabulary has a special token's text as a piece that plain text is cut into.
    """
    special = {content: i for i, content in _special(tokenizer).items()}
    pattern = re.compile("|".join(map(re.escape, sorted(filter(None, special), key=len, reverse=True))) or "(?!)")
    own = _own(pattern, text, origins, messages)
    found = [match.span() for match in pattern.finditer(text)]
    if found == own:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not hasattr(tokenizer, "backend_tokenizer"):
        return _by_pieces(tokenizer, text, own, special)
    plain = _PlainTokenizer.of(tokenizer)
    inside = {place for start, end in own for place in range(start + 1, end)}
    for breaks in ([], [start + 1 for start, end in {*found} - {*own} if start + 1 not in inside]):
        ids, leaked = plain.encode(text, own, breaks)
        if not leaked:
            return ids
    raise PromptError(
        f"A message has the text of the special token {leaked!r}, which this tokenizer cannot write as plain text.",
        "Leave it out.",
    )


def _special(tokenizer: Any) -> dict[int, str]:
    """Return the special tokens: id → text."""
    return {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}


def _own(pattern: re.Pattern[str], text: str, origins: str, messages: Sequence[str]) -> list[tuple[int, int]]:
    """Where the template wrote a special token: no character of it is a message's."""
    shown = "".join(_HIDDEN if origin == MESSAGE else char for char, origin in zip(text, origins, strict=True))
    found: list[tuple[int, int]] = []
    place = 0
    while match := pattern.search(shown, place):
        start, end = match.span()
        doubtful = "".join(char for char, origin in zip(match[0], origins[start:end], strict=True) if origin == UNKNOWN)
        if doubtful and any(doubtful.casefold() in message.casefold() for message in messages):
            hidden = "".join(
                _HIDDEN if origin == UNKNOWN else char
                for char, origin in zip(match[0], origins[start:end], strict=True)
            )
            shown = shown[:start] + hidden + shown[end:]
        else:
            found.append((start, end))
            place = end
    return found


def _by_pieces(tokenizer: Any, text: str, own: Sequence[tuple[int, int]], special: dict[str, int]) -> list[int]:
    """Encode each piece between special tokens by itself, for a tokenizer that is written in Python."""
    ids: list[int] = []
    place = 0
    for start, end in [*own, (len(text), len(text))]:
        if piece := text[place:start]:
            ids += tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        ids += [special[text[start:end]]] if end > start else []
        place = end
    return ids


_copies: WeakKeyDictionary[Any, _PlainTokenizer] = WeakKeyDictionary()


class _PlainTokenizer:
    """A copy of a tokenizer that finds special tokens under other names, which no text contains.

    One call encodes the whole text, so words are cut and merged across the ends of messages as in the original, and
    no prefix space is added after a special token. The original is shared between threads and stays as it is.
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
        self._texts = _special(tokenizer)
        self._unknown = tokenizer.unk_token_id

    @classmethod
    def of(cls, tokenizer: Any) -> _PlainTokenizer:
        """Return the copy of a tokenizer, made at the first call and when special tokens were added."""
        found = _copies.get(tokenizer)
        if found is None or found._texts != _special(tokenizer):
            found = _copies[tokenizer] = cls(tokenizer)
        return found

    def encode(self, text: str, own: Sequence[tuple[int, int]], breaks: Sequence[int]) -> tuple[list[int], str]:
        """Return the ids, and the text of a special token that came out of plain text ("": none did).

        Args:
            text: of the conversation.
            own: beginnings and ends of special tokens.
            breaks: places at which no piece of the vocabulary may reach over.
        """
        changes = [(start, end, self._names[text[start:end]]) for start, end in own]
        changes = sorted([*changes, *((place, place, self._break) for place in breaks)])
        pieces: list[str] = []
        place = 0
        for start, end, name in changes:
            pieces += [text[place:start], name]
            place = end
        encoded = self._tokenizer.encode("".join([*pieces, text[place:]]), add_special_tokens=False).ids
        broken = self._tokenizer.token_to_id(self._break)
        leaked = next((self._texts[i] for i in encoded if i in self._texts and i != self._unknown), "")
        return [self._ids.get(i, i) for i in encoded if i != broken], leaked
