"""Text as it grows: never half a character, and for each token the exact span it completes."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Any

from tokenizers import decoders

_INCOMPLETE = "�"
HOLD = 8
"""Tokens looked back at in a prompt; and that are waited for at most, where a tokenizer hides which bytes they hold."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokeniser:
    """Turns tokens into text one at a time: together, what `tokenizer.decode` makes of them behind the prompt.

    A piece may read differently behind another than at the beginning of a text (a leading space, "##"). So the text of
    a token is what it adds behind the token before it, which takes two short decodes, however long the text is. Tokens
    that are single bytes ("byte fallback") are put together here. A token that completes nothing yet has an empty span;
    the one that completes a character gets it.

    Special tokens have no text, as with `skip_special_tokens=True`. A byte that is no UTF-8 gives one replacement
    character, as in `decode`; only that `decode` then gives up the characters of the same run of byte tokens too, which
    were released before it was known.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt: the tokens before the first one that will be added, for context.
        pieces: of the tokenizer, where they are known already.
    """

    ERRORS = "surrogateescape"  # one character for every byte that is none

    def __init__(self, tokenizer: Any, prompt: list[int], pieces: Pieces | None = None) -> None:
        self._tokenizer = tokenizer
        self._pieces = pieces or Pieces(tokenizer)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(self.ERRORS)
        self._before: list[int] = []  # the unit before; empty at the beginning of everything
        self._pending: list[int] = []
        self.text = ""
        for token in [t for t in prompt[-2 * HOLD :] if t not in self._pieces.special][-HOLD:]:
            self.add(token)
        self.text = ""

    def add(self, token: int) -> tuple[str, int, int]:
        """Add one token; returns (text completed by it, start, end), offsets in characters of the generated text."""
        start = len(self.text)
        if token in self._pieces.special:
            return "", start, start
        new = self._of(token)
        self.text += new
        return new, start, start + len(new)

    def flush(self) -> str:
        """Release what an incomplete end left over; returns the text added."""
        new = _shown(self._utf8.decode(b"", final=True)) + (self._behind(self._pending) if self._pending else "")
        self._pending = []
        self.text += new
        return new

    def _of(self, token: int) -> str:
        """What a token completes."""
        byte = self._pieces.byte(token)
        if byte is not None:
            new = _shown(self._utf8.decode(byte))
            if not self._before and new == " ":  # some decoders take a space from the beginning
                new = self._decode([token])
            self._before = [token]
            return new
        broken = _shown(self._utf8.decode(b"", final=True))  # no byte follows that would complete a character
        self._pending.append(token)
        done = len(self._pending)
        new = self._behind(self._pending)
        if self._pieces.hidden and new.endswith(_INCOMPLETE) and not self._pieces.is_mark(token):
            done = len(self._pending) - 3 if len(self._pending) > HOLD else 0  # a begun character has 3 bytes at most
            new = self._behind(self._pending[:done]) if done else ""
        if done:
            self._before, self._pending = self._pending[:done], self._pending[done:]
        return broken + new

    def _behind(self, unit: list[int]) -> str:
        known = self._decode(self._before) if self._before else ""
        return self._decode([*self._before, *unit])[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


class ByteDetokeniser(Detokeniser):
    """The same for byte-level tokenizers: pieces of UTF-8, put together directly and faster."""

    ERRORS = "replace"  # one character for every one that was begun, as their decoder has it

    def _of(self, token: int) -> str:
        return self._utf8.decode(self._pieces.level(token))


def detokeniser(tokenizer: Any, prompt: list[int], pieces: Pieces | None = None) -> Detokeniser:
    """The kind that fits the tokenizer."""
    pieces = pieces or Pieces(tokenizer)
    return (ByteDetokeniser if pieces.is_level else Detokeniser)(tokenizer, prompt, pieces)


def _shown(text: str) -> str:
    """Text decoded with "surrogateescape", with the replacement character for each byte that is none."""
    return "".join(_INCOMPLETE if "\udc80" <= c <= "\udcff" else c for c in text)


# -- the vocabulary ---------------------------------------------------------------------------------------------------


class Pieces:
    """What a tokenizer's entries are made of.

    Attributes:
        special: tokens without a text.
        is_level: whether all entries are bytes, in the alphabet of byte-level tokenizers.
        hidden: whether entries may hold parts of characters that only decoding shows.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._name, self._decode = tokenizer.convert_ids_to_tokens, tokenizer.decode
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.special = set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        self.is_level = isinstance(decoder, decoders.ByteLevel)
        self.hidden = backend is None or b'"ByteLevel"' in (decoder.__getstate__() if decoder else b"")
        model = getattr(backend, "model", None)
        # Added tokens stand for themselves, even where their letters are in the alphabet; `decode` reads bytes there.
        self._whole = {i for i in added if model is not None and model.id_to_token(i) is None}
        self._bytes: dict[int, bytes | None] = {}
        self._levels: dict[int, bytes] = {}

    def byte(self, token: int) -> bytes | None:
        """The byte that a token of a byte-fallback vocabulary is; None for all others."""
        if token not in self._bytes:
            raw = self._name(token) or ""
            found = _BYTE_TOKEN.fullmatch(raw)
            self._bytes[token] = bytes.fromhex(found[1]) if found and self._decode([token]) != raw else None
        return self._bytes[token]

    def level(self, token: int) -> bytes:
        """The bytes of a token of a byte-level vocabulary."""
        piece = self._levels.get(token)
        if piece is None:
            raw, table = self._name(token) or "", _byte_of_char()
            is_bytes = token not in self._whole and all(c in table for c in raw)
            piece = self._levels[token] = bytes(table[c] for c in raw) if is_bytes else raw.encode()
        return piece

    def is_mark(self, token: int) -> bool:
        """Whether the token itself is the replacement character, and not half of another."""
        raw = self._name(token) or ""
        return _INCOMPLETE in raw or "ï¿½" in raw


@lru_cache(maxsize=8)
def _byte_of_char() -> dict[str, int]:
    """Inverse of the printable alphabet that byte-level tokenizers write bytes with.

    Source: Radford et al. 2019, GPT-2, §2.2; printable bytes stand for themselves, the others follow from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    rest = (b for b in range(256) if b not in printable)
    table |= {chr(256 + i): b for i, b in enumerate(rest)}
    return table


class TokenText:
    """The text of single tokens for display: spaces kept, lone bytes in hexadecimal between angle quotes.

    Attributes:
        pieces: of the tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.pieces = Pieces(tokenizer)
        self._cache: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        """Text of one token."""
        text = self._cache.get(token)
        if text is None:
            text = self._cache[token] = self._make(token)
        return text

    def data(self, token: int) -> bytes:
        """The bytes that one token adds to a text; of special tokens, those of their name."""
        if self.pieces.is_level and token not in self.pieces.special:
            return self.pieces.level(token)
        byte = self.pieces.byte(token)
        return self(token).encode() if byte is None else byte

    def _make(self, token: int) -> str:
        raw = self._tokenizer.convert_ids_to_tokens(token)
        if raw is None:
            return f"\u2039{token}\u203a"
        is_level = self.pieces.is_level and token not in self.pieces.special
        data = self.pieces.level(token) if is_level else self.pieces.byte(token)
        if data is not None:
            text = data.decode(errors="surrogateescape")
            return "".join(f"\u2039{ord(c) - 0xDC00:02X}\u203a" if "\udc80" <= c <= "\udcff" else c for c in text)
        text = self._tokenizer.decode([token], clean_up_tokenization_spaces=False)
        if _INCOMPLETE in text:
            return raw
        if raw.startswith("▁") and not text.startswith(" "):
            return " " + text
        return text
