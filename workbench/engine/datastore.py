"""A datastore of text for drafting: tokens and their suffix array, memory-mapped from disk.

A datastore is a folder with `tokens.npy`, `suffixes.npy` and `card.json`. Tokens are big-endian, so that byte order
equals token order and a suffix can be compared as a slice of bytes. Each text ends with an id that is not a token, so
that no match extends into the next text. A corrupted file can only make drafts worse: reads past the end of an array
return its last element.
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

from workbench.core.errors import ModelError, TokenizerMismatchError, system_reason
from workbench.trace.files import check_regular, read_regular

FORMAT, VERSION = "workbench-datastore", 1
CARD, TOKENS, SUFFIXES = "card.json", "tokens.npy", "suffixes.npy"
ORDERED = 32
"""Number of tokens by which the suffixes of a datastore are sorted: longest match plus tokens drafted after it."""
BUILD = "Build a datastore: workbench datastore build FILES… --out FOLDER --target {target}."


@dataclass(frozen=True, slots=True)
class Card:
    """Description of a datastore.

    Attributes:
        tokens: number of tokens, including the end-of-text ids.
        vocabulary: number of ids of the tokenizer; the id with this value ends a text.
        tokenizer: `tokenizer_hash` of the tokenizer.
        target: name of a target model with this tokenizer.
        text_bytes: size of the texts in UTF-8, in bytes.
        texts: name of each text, and the position of its first token in the datastore.
        sha256: checksums of the two array files.
        format: always "workbench-datastore".
        version: version of the format.
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
        """Return the description of the datastore as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Hit:
    """Occurrences of the last tokens of a context in a datastore, as a range of ranks in the suffix array.

    Attributes:
        matched: number of matching tokens; 0: no occurrence.
        first: rank of the first occurrence.
        end: rank after the last occurrence.
    """

    matched: int = 0
    first: int = 0
    end: int = 0

    def __len__(self) -> int:
        return self.end - self.first


class Datastore:
    """Tokens of texts and their suffix array.

    Attributes:
        card: description of the datastore.
        tokens: big-endian uint16 or uint32 [n], token ids of all texts.
        suffixes: int32 [n], token positions in the order of the suffixes that start there.
    """

    def __init__(self, card: Card, tokens: np.ndarray, suffixes: np.ndarray) -> None:
        self.card = card
        self.tokens, self.suffixes = np.asarray(tokens), np.asarray(suffixes)  # plain arrays: indexing a memmap is slow
        self._raw, self._width = self.tokens.data.cast("B"), self.tokens.itemsize

    def __len__(self) -> int:
        return self.card.tokens

    def find(self, context: Sequence[int], longest: int, shortest: int = 1) -> Hit:
        """Return the occurrences of the longest suffix of `context` that the datastore contains.

        The matching suffix has at least `shortest` and at most `longest` tokens. Its length is found by bisection.
        Testing one length takes two bisections of the suffix array.
        """
        best, low, high = Hit(), shortest, min(longest, len(context))
        while low <= high:
            n = (low + high + 1) // 2 if best.matched else low  # first test whether the shortest suffix occurs
            if hit := self._range(context[len(context) - n :]):
                best, low = hit, n + 1
            else:
                high = n - 1
        return best

    def _range(self, tokens: Sequence[int]) -> Hit | None:
        pattern = np.asarray(tokens, dtype=np.int64)
        if pattern.min() < 0 or pattern.max() >= self.card.vocabulary:
            return None
        prefix, raw, width = pattern.astype(self.tokens.dtype).tobytes(), self._raw, self._width

        def bytes_at(position: Any) -> bytes:
            start = int(position) * width
            return raw[start : start + len(prefix)].tobytes()

        first = bisect.bisect_left(self.suffixes, prefix, key=bytes_at)  # pyright: ignore[reportArgumentType]
        end = bisect.bisect_right(self.suffixes, prefix, first, key=bytes_at)  # pyright: ignore[reportArgumentType]
        return Hit(len(tokens), first, end) if end > first else None

    def following(self, hit: Hit, length: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens that follow occurrences of a context in the datastore's texts.

        Args:
            hit: occurrences, as `find` returned them.
            length: number of tokens to return for each occurrence.
            most: maximum number m of occurrences. If there are more, the m occurrences are evenly spaced among them.

        Returns:
            Positions of the occurrences, int64 [m], and the tokens after each, int64 [m, length]. Entries after the
            end of a text are `Card.vocabulary`.
        """
        ranks = np.arange(hit.first, hit.end)
        if len(ranks) > most:
            ranks = hit.first + np.arange(most) * len(ranks) // most
        positions = self.suffixes[ranks].astype(np.int64)
        indices = positions[:, None] + hit.matched + np.arange(length)
        rows = self.tokens.take(indices, mode="clip").astype(np.int64)  # the last id ends a text
        after_end = np.logical_or.accumulate(rows >= self.card.vocabulary, axis=1)
        return positions, np.where(after_end, self.card.vocabulary, rows)

    def text_at(self, place: int) -> str:
        """Return the name of the datastore's text that contains a token position."""
        starts = [start for _, start in self.card.texts]
        return self.card.texts[max(bisect.bisect_right(starts, place) - 1, 0)][0] if starts else ""

    def check_tokenizer(self, tokenizer: Any, name: str, target: str) -> None:
        """Raise an error if the datastore was built with another tokenizer.

        Args:
            tokenizer: tokenizer of the target.
            name: name of the datastore, for the error message.
            target: name of the target.

        Raises:
            TokenizerMismatchError: the tokenizers differ; the message has the command that builds a datastore for this
                target.
        """
        if self.card.tokenizer != tokenizer_hash(tokenizer):
            raise TokenizerMismatchError(
                f"The datastore {name} was made with the tokenizer of {self.card.target or 'another model'}: "
                f"its token ids stand for other tokens in {target or 'this target'}.",
                BUILD.format(target=target or "TARGET"),
            )


def tokenizer_hash(tokenizer: Any) -> str:
    """Return a hash of a tokenizer's tokens and their ids, as 64 hexadecimal digits."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def n_ids(tokenizer: Any) -> int:
    """Return the largest token id of a tokenizer plus one."""
    return max(tokenizer.get_vocab().values()) + 1


def dtype_of(vocabulary: int) -> np.dtype:
    """Return the dtype of a datastore's tokens: the narrowest that holds all ids and the end-of-text id."""
    return np.dtype(">u2" if vocabulary < 1 << 16 else ">u4")


def open_store(folder: Path) -> Datastore:
    """Open a datastore in a folder; its arrays are memory-mapped.

    Raises:
        ModelError: the folder has no datastore, a datastore of another format, or a truncated file.
    """
    remedy = "Build the datastore again: workbench datastore build FILES… --out FOLDER --target NAME."
    try:
        card = json.loads(read_regular(folder / CARD))
    except OSError as error:
        raise ModelError(
            f"{folder} is not a datastore: {CARD} cannot be read: {system_reason(error)}.", remedy
        ) from None
    except ValueError:
        raise ModelError(f"{folder} is not a datastore: its {CARD} is not JSON.", remedy) from None
    if not isinstance(card, dict) or (card.get("format"), card.get("version")) != (FORMAT, VERSION):
        raise ModelError(f"{folder} is a datastore in the format of another version, according to its {CARD}.", remedy)
    try:
        values: dict[str, Any] = {name: card[name] for name in Card.__dataclass_fields__}
        values["texts"] = [(str(name), int(start)) for name, start in values["texts"]]
        description = Card(**values)
        is_valid = all(isinstance(n, int) and n > 0 for n in (description.tokens, description.vocabulary))
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise ModelError(f"{folder} is not a datastore: fields are missing in its {CARD}.", remedy)
    dtypes = {TOKENS: dtype_of(description.vocabulary), SUFFIXES: np.dtype(np.int32)}
    arrays = []
    for name, dtype in dtypes.items():
        try:
            check_regular(folder / name)
            arrays.append(array := np.load(folder / name, mmap_mode="r", allow_pickle=False))
        except OSError as error:
            raise ModelError(f"{folder / name} cannot be read: {system_reason(error)}.", remedy) from None
        except ValueError:  # replaces numpy's message about buffers and pickles
            raise ModelError(f"{folder / name} is truncated, or is not a NumPy array file.", remedy) from None
        if array.shape != (description.tokens,) or array.dtype != dtype:
            raise ModelError(f"{folder / name} is not the array described in {CARD}.", remedy)
    return Datastore(description, *arrays)
