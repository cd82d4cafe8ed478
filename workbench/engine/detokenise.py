"""Incremental detokenisation: return only whole characters, and for each token the span of text that it completes."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenizers import decoders

_INCOMPLETE = "�"
HOLD = 8
"""Number of prompt tokens that the detokeniser uses as context.

It is also the maximum number of tokens per character if the bytes of the tokens are unknown.
"""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokeniser:
    """Incremental detokeniser; the result equals `tokenizer.decode` of all tokens after the prompt.

    A token may decode differently after another token than at the start of a text (a leading space, "##"). So the text
    of a token is the text that it adds after the previous token. This takes two short decodes, for a text of any
    length. Tokens that are single bytes ("byte fallback") are joined to characters here. A token that does not complete
    a character has an empty span; the span of the token that completes the character contains the whole character.

    Special tokens have no text, as with `skip_special_tokens=True`. An invalid UTF-8 byte gives one replacement
    character, as in `decode`. There is one difference: `decode` also drops valid characters that precede the invalid
    byte in a run of byte tokens; here these have already been returned.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt: tokens of the prompt, as context for the first token that is added.
        pieces: bytes and kinds of the tokenizer's vocabulary entries, if already computed.
    """

    ERRORS = "surrogateescape"  # one surrogate character for every invalid byte

    def __init__(self, tokenizer: Any, prompt: list[int], pieces: Pieces | None = None) -> None:
        self._tokenizer = tokenizer
        self._pieces = pieces or Pieces(tokenizer)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(self.ERRORS)
        self._before: list[int] = []  # the tokens of the previous unit; empty at the start of everything
        self._pending: list[int] = []
        self.text = ""
        for token in [t for t in prompt[-2 * HOLD :] if t not in self._pieces.special][-HOLD:]:
            self.add(token)
        self.text = ""

    def add(self, token: int) -> tuple[str, int, int]:
        """Add one token; return the text that it completes, with start and end as offsets in the generated text."""
        start = len(self.text)
        if token in self._pieces.special:
            return "", start, start
        new = self._completed_text(token)
        self.text += new
        return new, start, start + len(new)

    def flush(self) -> str:
        """Return the text of tokens whose character is incomplete at the end, with replacement characters."""
        new = _visible(self._utf8.decode(b"", final=True)) + (self._behind(self._pending) if self._pending else "")
        self._pending = []
        self.text += new
        return new

    def _completed_text(self, token: int) -> str:
        """Return the text that a token completes when it is added to the generated text."""
        byte = self._pieces.byte(token)
        if byte is not None:
            completed = _visible(self._utf8.decode(byte))
            if not self._before and completed == " ":  # some decoders strip a leading space
                completed = self._decode([token])
            self._before = [token]
            return completed
        replacement = _visible(self._utf8.decode(b"", final=True))  # no further byte can complete the character
        self._pending.append(token)
        n_complete = len(self._pending)
        completed = self._behind(self._pending)
        if self._pieces.has_partial_chars and completed.endswith(_INCOMPLETE) and not self._pieces.is_mark(token):
            # An incomplete character has at most 3 bytes.
            n_complete = len(self._pending) - 3 if len(self._pending) > HOLD else 0
            completed = self._behind(self._pending[:n_complete]) if n_complete else ""
        if n_complete:
            self._before, self._pending = self._pending[:n_complete], self._pending[n_complete:]
        return replacement + completed

    def _behind(self, unit: list[int]) -> str:
        context = self._decode(self._before) if self._before else ""
        return self._decode([*self._before, *unit])[len(context) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


class ByteDetokeniser(Detokeniser):
    """Detokeniser for byte-level tokenizers. The UTF-8 bytes of their tokens are joined without the tokenizer."""

    ERRORS = "replace"  # one replacement per incomplete character, as in the byte-level decoder

    def _completed_text(self, token: int) -> str:
        return self._utf8.decode(self._pieces.token_bytes(token))


def detokeniser(tokenizer: Any, prompt: list[int], pieces: Pieces | None = None) -> Detokeniser:
    """Return an incremental detokeniser for a tokenizer."""
    pieces = pieces or Pieces(tokenizer)
    return (ByteDetokeniser if pieces.is_byte_level else Detokeniser)(tokenizer, prompt, pieces)


@dataclass(slots=True)
class TextOutput:
    """Text that was generated for a sequence.

    Attributes:
        detokeniser: detokeniser of the sequence; None before prefill.
        cut_at: number of characters after which a stop condition cuts the text; None: the text is not cut.
    """

    detokeniser: Detokeniser | None = None
    cut_at: int | None = None

    @property
    def text(self) -> str:
        """Return the text that the sequence has generated so far."""
        return "" if self.detokeniser is None else self.detokeniser.text[: self.cut_at]


def _visible(text: str) -> str:
    """Replace each surrogate in a text, which stands for an invalid byte, by the replacement character U+FFFD."""
    return "".join(_INCOMPLETE if "\udc80" <= c <= "\udcff" else c for c in text)


# -- the vocabulary ---------------------------------------------------------------------------------------------------


class Pieces:
    """Bytes and kinds of a tokenizer's vocabulary entries.

    Attributes:
        special: ids of the tokens without text.
        is_byte_level: whether all entries are bytes, in the alphabet of byte-level tokenizers.
        has_partial_chars: whether entries may contain parts of characters that are visible only after decoding.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._name, self._decode = tokenizer.convert_ids_to_tokens, tokenizer.decode
        added_tokens = getattr(tokenizer, "added_tokens_decoder", {})
        self.special = set(tokenizer.all_special_ids) | {i for i, token in added_tokens.items() if token.special}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        self.is_byte_level = isinstance(decoder, decoders.ByteLevel)
        self.has_partial_chars = backend is None or b'"ByteLevel"' in (decoder.__getstate__() if decoder else b"")
        model = getattr(backend, "model", None)
        # Added tokens are literal text, even if their letters are in the byte alphabet; `decode` would read bytes.
        self._whole = {i for i in added_tokens if model is not None and model.id_to_token(i) is None}
        self._bytes: dict[int, bytes | None] = {}
        self._levels: dict[int, bytes] = {}

    def byte(self, token: int) -> bytes | None:
        """Return the byte of a byte-fallback token; None for all other tokens."""
        if token not in self._bytes:
            name = self._name(token) or ""
            match = _BYTE_TOKEN.fullmatch(name)
            self._bytes[token] = bytes.fromhex(match[1]) if match and self._decode([token]) != name else None
        return self._bytes[token]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token in a byte-level vocabulary."""
        piece = self._levels.get(token)
        if piece is None:
            raw, table = self._name(token) or "", _byte_of_char()
            is_bytes = token not in self._whole and all(c in table for c in raw)
            piece = self._levels[token] = bytes(table[c] for c in raw) if is_bytes else raw.encode()
        return piece

    def is_mark(self, token: int) -> bool:
        """Return whether a token is the replacement character U+FFFD itself, not a part of another character."""
        raw = self._name(token) or ""
        return _INCOMPLETE in raw or "ï¿½" in raw


@lru_cache(maxsize=8)
def _byte_of_char() -> dict[str, int]:
    """Return the inverse of the printable alphabet in which byte-level tokenizers write bytes.

    Source: Radford et al. 2019, GPT-2, §2.2; printable bytes map to themselves, the others to characters from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    rest = (b for b in range(256) if b not in printable)
    table |= {chr(256 + i): b for i, b in enumerate(rest)}
    return table


class TokenText:
    """Function from a token id to its text for display.

    Spaces are visible, and single bytes are shown in hexadecimal between angle quotes.

    Attributes:
        pieces: bytes and kinds of the tokenizer's vocabulary entries.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.pieces = Pieces(tokenizer)
        self._cache: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        """Return the text of one token for display."""
        text = self._cache.get(token)
        if text is None:
            text = self._cache[token] = self._make(token)
        return text

    def data(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; for a special token, return the bytes of its name."""
        if self.pieces.is_byte_level and token not in self.pieces.special:
            return self.pieces.token_bytes(token)
        byte = self.pieces.byte(token)
        return self(token).encode() if byte is None else byte

    def _make(self, token: int) -> str:
        raw = self._tokenizer.convert_ids_to_tokens(token)
        if raw is None:
            return f"\u2039{token}\u203a"
        is_level = self.pieces.is_byte_level and token not in self.pieces.special
        data = self.pieces.token_bytes(token) if is_level else self.pieces.byte(token)
        if data is not None:
            text = data.decode(errors="surrogateescape")
            return "".join(f"\u2039{ord(c) - 0xDC00:02X}\u203a" if "\udc80" <= c <= "\udcff" else c for c in text)
        text = self._tokenizer.decode([token], clean_up_tokenization_spaces=False)
        if _INCOMPLETE in text:
            return raw
        if raw.startswith("▁") and not text.startswith(" "):
            return " " + text
        return text
