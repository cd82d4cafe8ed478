"""Text as it grows: never half a character, and for each token the exact span it completes."""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Any

from tokenizers import decoders

_INCOMPLETE = "�"


class Detokeniser:
    """Turns tokens into text one at a time.

    Some tokens are only part of a character; others change how their neighbours read (a leading space, say). So a token
    is decoded together with the few before it, and text is released once it no longer ends in an incomplete character.
    A token that completes nothing yet has an empty span; the one that completes a character gets it.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt: the tokens before the first one that will be added, for context.
    """

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._window = [t for t in prompt[-8:] if t not in self._special]
        self._released = len(self._decode(self._window))
        self.text = ""

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def add(self, token: int) -> tuple[str, int, int]:
        """Add one token; returns (text completed by it, start, end), offsets in characters of the generated text."""
        start = len(self.text)
        if token in self._special:
            return "", start, start
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(_INCOMPLETE) and not self._is_real(token) and len(self._window) < 64:
            return "", start, start
        new = text[self._released :]
        self.text += new
        if len(self._window) > 16:
            self._window = self._window[-6:]
            text = self._decode(self._window)
        self._released = len(text)
        return new, start, len(self.text)

    def flush(self) -> str:
        """Release what an incomplete end left over; returns the text added."""
        text = self._decode(self._window)
        new = text[self._released :]
        self._released = len(text)
        self.text += new
        return new

    def _is_real(self, token: int) -> bool:
        """Whether the token itself is the replacement character, and not half of another."""
        return self._decode([token]).strip() == _INCOMPLETE and "ï¿½" in self._tokenizer.convert_ids_to_tokens(token)


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


class ByteDetokeniser(Detokeniser):
    """The same for byte-level tokenizers: pieces of UTF-8, put together directly and faster."""

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pieces: dict[int, bytes] = {}
        before = b"".join(self._bytes(t) for t in prompt[-8:] if t not in self._special)
        self._utf8.decode(before.lstrip(bytes(range(0x80, 0xC0))))  # not from the middle of a character
        self.text = ""

    def add(self, token: int) -> tuple[str, int, int]:
        start = len(self.text)
        if token in self._special:
            return "", start, start
        new = self._utf8.decode(self._bytes(token))
        self.text += new
        return new, start, start + len(new)

    def flush(self) -> str:
        new = self._utf8.decode(b"", final=True)
        self.text += new
        return new

    def _bytes(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            raw, table = self._tokenizer.convert_ids_to_tokens(token) or "", _byte_of_char()
            # An added token stands for itself.
            piece = bytes(table[c] for c in raw) if all(c in table for c in raw) else raw.encode()
            self._pieces[token] = piece
        return piece


def detokeniser(tokenizer: Any, prompt: list[int]) -> Detokeniser:
    """The kind that fits the tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    direct = isinstance(getattr(backend, "decoder", None), decoders.ByteLevel)
    return (ByteDetokeniser if direct else Detokeniser)(tokenizer, prompt)


class TokenText:
    """The text of single tokens for display: spaces kept, lone bytes in hexadecimal between angle quotes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        """Text of one token."""
        text = self._cache.get(token)
        if text is None:
            text = self._cache[token] = self._make(token)
        return text

    def _make(self, token: int) -> str:
        text = self._tokenizer.decode([token], clean_up_tokenization_spaces=False)
        raw = self._tokenizer.convert_ids_to_tokens(token)
        if raw is None:
            return f"\u2039{token}\u203a"
        if _INCOMPLETE in text:
            table = _byte_of_char()
            if all(c in table for c in raw):
                return "".join(f"\u2039{table[c]:02X}\u203a" for c in raw)
            return raw
        if raw.startswith("▁") and not text.startswith(" "):
            return " " + text
        return text
