"""A store of text to draft from: its tokens and their suffix array, read from disk as far as they are looked at.

A folder of `tokens.npy`, `suffixes.npy` and `card.json`. Tokens are big-endian, so that the order of their bytes is
theirs, and a suffix is compared as a slice of bytes. Texts end with an id that is no token: nothing matches over it. A
file that was tampered with can spoil drafts, and nothing else: what is read beyond the text is its end.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import ModelError, TokenizerMismatchError
from workbench.trace.files import check_regular, read_regular

FORMAT, VERSION = "workbench-datastore", 1
CARD, TOKENS, SUFFIXES = "card.json", "tokens.npy", "suffixes.npy"
ORDERED = 32
"""Tokens by which suffixes are in order: the longest match and what is drafted behind it, together."""
BUILD = "Build one: workbench datastore build FILES… --out FOLDER --target {target}."


@dataclass(frozen=True, slots=True)
class Card:
    """What a store says of itself.

    Attributes:
        tokens: how many it holds, the ends of texts among them.
        vocabulary: ids of the tokenizer; the id of this number ends a text.
        tokenizer: `tokenizer_hash` of it.
        target: the model whose tokenizer it is.
        text_bytes: of the texts, in UTF-8.
        texts: name of each text, and its first token's place.
        sha256: of the two arrays' files.
        format: always "workbench-datastore".
        version: of the format.
    """

    tokens: int
    vocabulary: int
    tokenizer: str
    target: str = ""
    text_bytes: int = 0
    texts: Sequence[tuple[str, int]] = ()
    sha256: dict[str, str] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Hit:
    """Occurrences of the newest tokens, side by side in the order of suffixes.

    Attributes:
        matched: tokens; 0: none occurs.
        first: rank of the first one.
        end: rank behind the last one.
    """

    matched: int = 0
    first: int = 0
    end: int = 0

    def __len__(self) -> int:
        return self.end - self.first


class Datastore:
    """Tokens and their suffix array.

    Attributes:
        card: what it says of itself.
        tokens: big-endian uint16 or uint32 [n].
        suffixes: int32 [n], places in the order of what stands there.
    """

    def __init__(self, card: Card, tokens: np.ndarray, suffixes: np.ndarray) -> None:
        self.card = card
        self.tokens, self.suffixes = np.asarray(tokens), np.asarray(suffixes)  # plain views: a memmap's are slow
        self._raw, self._width = self.tokens.data.cast("B"), self.tokens.itemsize

    def __len__(self) -> int:
        return self.card.tokens

    def find(self, context: Sequence[int], longest: int, shortest: int = 1) -> Hit:
        """Where the longest suffix of a context occurs, of `shortest` to `longest` tokens: bisections, bisected."""
        best, low, high = Hit(), shortest, min(longest, len(context))
        while low <= high:
            n = (low + high + 1) // 2 if best.matched else low  # whether there is a match at all is asked first
            if hit := self._range(context[len(context) - n :]):
                best, low = hit, n + 1
            else:
                high = n - 1
        return best

    def _range(self, tokens: Sequence[int]) -> Hit | None:
        pattern = np.asarray(tokens, dtype=np.int64)
        if pattern.min() < 0 or pattern.max() >= self.card.vocabulary:
            return None
        wanted, raw, width = pattern.astype(self.tokens.dtype).tobytes(), self._raw, self._width

        def standing(place: Any) -> bytes:
            start = int(place) * width
            return raw[start : start + len(wanted)].tobytes()

        first = bisect.bisect_left(self.suffixes, wanted, key=standing)  # pyright: ignore[reportArgumentType]
        end = bisect.bisect_right(self.suffixes, wanted, first, key=standing)  # pyright: ignore[reportArgumentType]
        return Hit(len(tokens), first, end) if end > first else None

    def following(self, hit: Hit, length: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        """What stands behind occurrences, `most` of them at most, spread evenly over all.

        Returns:
            Their places, int64 [m], and tokens int64 [m, length], in order; `vocabulary` from the end of a text on.
        """
        ranks = np.arange(hit.first, hit.end)
        if len(ranks) > most:
            ranks = hit.first + np.arange(most) * len(ranks) // most
        places = self.suffixes[ranks].astype(np.int64)
        at = places[:, None] + hit.matched + np.arange(length)
        rows = self.tokens.take(at, mode="clip").astype(np.int64)  # its last id ends a text
        ended = np.logical_or.accumulate(rows >= self.card.vocabulary, axis=1)
        return places, np.where(ended, self.card.vocabulary, rows)

    def text_at(self, place: int) -> str:
        """Name of the text that holds a place."""
        starts = [start for _, start in self.card.texts]
        return self.card.texts[max(bisect.bisect_right(starts, place) - 1, 0)][0] if starts else ""

    def check_tokenizer(self, tokenizer: Any, name: str, target: str) -> None:
        """Refuse a store whose ids mean something else to a tokenizer.

        Args:
            tokenizer: the target's.
            name: of the store, for the message.
            target: name of the target.

        Raises:
            TokenizerMismatchError: with the command that makes one for this target.
        """
        if self.card.tokenizer != tokenizer_hash(tokenizer):
            raise TokenizerMismatchError(
                f"The datastore {name} was made with the tokenizer of {self.card.target or 'another model'}: its ids "
                f"mean other tokens to {target or 'this target'}.",
                BUILD.format(target=target or "TARGET"),
            )


def tokenizer_hash(tokenizer: Any) -> str:
    """64 hexadecimal digits for which id means which token."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def n_ids(tokenizer: Any) -> int:
    """One more than a tokenizer's largest id."""
    return max(tokenizer.get_vocab().values()) + 1


def dtype_of(vocabulary: int) -> np.dtype:
    """Of a store's tokens: the narrowest that holds every id and the end of a text."""
    return np.dtype(">u2" if vocabulary < 1 << 16 else ">u4")


def open_store(folder: Path) -> Datastore:
    """A store in a folder; its arrays stay on disk until they are looked at.

    Raises:
        ModelError: there is none, it is of another kind, or a file of it was cut.
    """
    again = "Build it again: workbench datastore build FILES… --out FOLDER --target NAME."
    try:
        card = json.loads(read_regular(folder / CARD))
    except OSError as error:
        raise ModelError(f"{folder} is not a datastore: {CARD} cannot be read: {error.strerror}.", again) from None
    except ValueError:
        raise ModelError(f"{folder} is not a datastore: its {CARD} is not JSON.", again) from None
    if not isinstance(card, dict) or (card.get("format"), card.get("version")) != (FORMAT, VERSION):
        raise ModelError(f"{folder} is a datastore of another version, according to its {CARD}.", again)
    try:
        known: dict[str, Any] = {name: card[name] for name in Card.__dataclass_fields__}
        known["texts"] = [(str(name), int(start)) for name, start in known["texts"]]
        found = Card(**known)
        whole = all(isinstance(n, int) and n > 0 for n in (found.tokens, found.vocabulary))
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise ModelError(f"{folder} is not a datastore: fields are missing in its {CARD}.", again)
    wanted = {TOKENS: dtype_of(found.vocabulary), SUFFIXES: np.dtype(np.int32)}
    arrays = []
    for name, dtype in wanted.items():
        try:
            check_regular(folder / name)
            arrays.append(array := np.load(folder / name, mmap_mode="r", allow_pickle=False))
        except OSError as error:
            raise ModelError(f"{folder / name} cannot be read: {error.strerror or error}.", again) from None
        except ValueError:  # numpy's words speak of buffers and pickles
            raise ModelError(f"{folder / name} is truncated, or is not an array.", again) from None
        if array.shape != (found.tokens,) or array.dtype != dtype:
            raise ModelError(f"{folder / name} is not the array described in {CARD}.", again)
    return Datastore(found, *arrays)
