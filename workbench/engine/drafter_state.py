"""What a drafter remembers belongs to somebody: it can be looked at, saved, loaded and emptied.

A state that says so is an `Owned`. It knows its size and its bound, what stands in it, and how to become arrays and be
made of them again; `keeping.py` does that for a row, and `statefile.py` writes the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from workbench.core.errors import MethodUnavailableError, ModelError

Arrays = Mapping[str, np.ndarray]
"""What a state is when it is saved: arrays by name."""


@dataclass(frozen=True, slots=True)
class Top:
    """An entry of a state.

    Attributes:
        before: tokens that it is found by.
        after: tokens that it drafts.
        count: what of it is counted: see `Look.counted`.
        words: its name, where it is no tokens.
    """

    before: Sequence[int]
    after: Sequence[int]
    count: float
    words: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What a state shows of itself.

    Attributes:
        entries: how many it has; its `unit` says of what.
        bound: how many it has at most.
        n_bytes: about what they take in memory; a test holds it against what is measured.
        most_bytes: the same at its bound.
        counted: what `Top.count` counts ("times seen").
        top: entries with the largest counts, falling.
    """

    entries: int
    bound: int
    n_bytes: int
    most_bytes: int
    counted: str
    top: Sequence[Top] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """What a row left behind: how its drafter's state looked, and its file, or why there is none."""

    look: dict[str, Any]
    data: bytes | None
    why: str = ""


class Owned(ABC):
    """State of a drafter that outlives a round and can be looked at.

    Attributes:
        title: what it is, for people.
        unit: what an entry is, in the plural.
        asked: rounds in which a draft was asked of it.
        hits: those in which it had one.
        kept: tokens of its drafts that became text.
        shared: other requests draft from it, too, because they chose to.
        sources: who proposed a node that came of it (`DraftTree.source`); none: it drafts alone.
    """

    title: str
    unit: ClassVar[str]
    asked: int = 0
    hits: int = 0
    kept: int = 0
    shared: bool = False
    sources: Collection[str] = ()

    def count(self, source: Sequence[str], path: Sequence[int]) -> None:
        """Take in a round that it was asked in.

        Args:
            source: who proposed each node of the draft.
            path: the nodes that were kept.
        """
        self.asked += 1
        self.hits += any(map(self.made, source))
        self.kept += sum(self.made(source[node]) for node in path)

    def made(self, source: str) -> bool:
        """Whether a node of this source came of it."""
        return not self.sources or source in self.sources

    @abstractmethod
    def look(self, n: int) -> Look:
        """Size, bound, and its `n` top entries."""

    def pack(self) -> Arrays:
        """All of it as arrays.

        Raises:
            MethodUnavailableError: it cannot be saved.
        """
        raise MethodUnavailableError(f"The {self.title.lower()} cannot be saved.", "It is on disk already.")

    def take(self, arrays: Arrays, vocabulary: int) -> None:
        """Take in what `pack` gave, beside what is there.

        Args:
            arrays: of a file: anything may stand in them.
            vocabulary: tokens of the target.

        Raises:
            ModelError: they are not such arrays.
        """
        raise MethodUnavailableError(f"The {self.title.lower()} cannot be loaded.", "Choose it by its folder instead.")

    def clear(self) -> None:
        """Forget what others share; what one request alone has is made anew instead."""
        return


def owned_of(state: Any) -> Owned | None:
    """What of a drafter's state can be looked at; None: it keeps nothing beyond a round, or nothing that is a table."""
    found = state if isinstance(state, Owned) else getattr(state, "owned", None)
    return found if isinstance(found, Owned) else None


MOST_BYTES = 8 << 20
"""Of a state's file. The largest tables of the bundled targets take a quarter of that."""
BROKEN = "Give a file that this program saved."


def numbers(
    arrays: Arrays, name: str, shape: tuple[int | None, ...], low: float, high: float, whole: bool = False
) -> np.ndarray:
    """An array of a file, checked.

    Args:
        arrays: of the file.
        name: of the array.
        shape: None: any length.
        low: no number is below it.
        high: each is below it.
        whole: they are integers, such as indices.

    Returns:
        The array, int64 or float64.

    Raises:
        ModelError: it is missing, has another shape or kind, or a number is out of range.
    """
    found = arrays.get(name)
    if found is None:
        raise ModelError(f"The file is broken: {name} is missing in it.", BROKEN)
    wanted = np.float64 if found.dtype.kind == "f" else np.int64
    fits = found.ndim == len(shape) and all(w is None or w == n for w, n in zip(shape, found.shape, strict=True))
    if not fits or found.dtype.kind not in ("iu" if whole else "fiu"):
        raise ModelError(f"The file is broken: {name} has another shape or dtype than expected.", BROKEN)
    found = found.astype(wanted)
    if found.size and not (np.isfinite(found).all() and found.min() >= low and found.max() < high):
        raise ModelError(f"The file is broken: {name} contains invalid numbers.", BROKEN)
    return found


def tokens_in(arrays: Arrays, name: str, vocabulary: int, shape: tuple[int | None, ...], least: int = 0) -> np.ndarray:
    """Token ids of a file, checked: `least` (−1 where nothing may stand) to `vocabulary` − 1."""
    return numbers(arrays, name, shape, least, vocabulary, whole=True)


def in_rows(rows: Sequence[Sequence[float]], width: int, dtype: Any = np.int32, fill: float = -1) -> np.ndarray:
    """Rows of different lengths as an array [n, width], filled up with `fill`."""
    found = np.full((len(rows), width), fill, dtype)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found
