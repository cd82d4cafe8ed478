"""Drafter state that users can inspect, save, load and clear.

Such a state (for example an n-gram table) is an `InspectableState`. It reports its size, its limit and its top entries,
and can be packed into arrays and restored from them. `state_actions.py` does this for a sequence, and `state_file.py`
writes the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from workbench.core.errors import MethodUnavailableError, ModelError

Arrays = Mapping[str, np.ndarray]
"""Saved form of a drafter's state: arrays by name."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One entry of a drafter's state (such as an n-gram), for display.

    Attributes:
        before: tokens that form the entry's key.
        after: tokens drafted from the entry.
        count: count of the entry; `StateSummary.count_meaning` says what is counted.
        words: name of the entry if its key has no tokens.
    """

    before: Sequence[int]
    after: Sequence[int]
    count: float
    words: str = ""


@dataclass(frozen=True, slots=True)
class StateSummary:
    """Summary of a drafter's state: size, limit, and top entries.

    Attributes:
        entries: number of entries; the state's `unit` is their name.
        bound: maximum number of entries.
        n_bytes: approximate memory of the entries in bytes; a test compares it with a measurement.
        most_bytes: memory in bytes with the maximum number of entries.
        count_meaning: meaning of `StateEntry.count` ("times seen").
        top: entries with the largest counts, in descending order.
    """

    entries: int
    bound: int
    n_bytes: int
    most_bytes: int
    count_meaning: str
    top: Sequence[StateEntry] = ()


@dataclass(frozen=True, slots=True)
class FinishedState:
    """Drafter state of a finished sequence: a summary, and the saved file or the reason why there is no file."""

    summary: dict[str, Any]
    data: bytes | None
    why: str = ""


class InspectableState(ABC):
    """State of a drafter that outlives a round and can be inspected.

    Attributes:
        title: display name.
        unit: plural noun for the entries, such as "n-grams".
        n_queries: number of rounds in which the drafter looked for a draft in the state.
        hits: number of these rounds in which the state provided a draft.
        n_accepted: number of accepted tokens from drafts that the state provided.
        shared: whether other requests with the same setting use the same state.
        sources: values of `DraftTree.source` for nodes drafted from this state; empty: all nodes are drafted from it.
    """

    title: str
    unit: ClassVar[str]
    n_queries: int = 0
    hits: int = 0
    n_accepted: int = 0
    shared: bool = False
    sources: Collection[str] = ()

    def count(self, source: Sequence[str], path: Sequence[int]) -> None:
        """Count a round in which the drafter looked for a draft in this state.

        Args:
            source: source of each node of the draft.
            path: accepted nodes of the draft.
        """
        self.n_queries += 1
        self.hits += any(map(self.is_own_source, source))
        self.n_accepted += sum(self.is_own_source(source[node]) for node in path)

    def is_own_source(self, source: str) -> bool:
        """Return whether a node with this `DraftTree.source` was drafted from this state."""
        return not self.sources or source in self.sources

    @abstractmethod
    def summarise(self, n: int) -> StateSummary:
        """Return a summary of the drafter's state: size, limit, and the `n` top entries."""

    def pack(self) -> Arrays:
        """Return the drafter's whole state as arrays, which can be saved in a file.

        Raises:
            MethodUnavailableError: this kind of state cannot be saved.
        """
        raise MethodUnavailableError(
            f"The {self.title.lower()} cannot be saved.", "This state is always on disk; no copy is needed."
        )

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        """Merge a saved state (arrays from `pack`) into this state.

        Args:
            arrays: arrays of a file, which are checked because they are not trusted.
            vocabulary: number of tokens of the target.

        Raises:
            ModelError: the arrays are invalid.
        """
        raise MethodUnavailableError(
            f"The {self.title.lower()} cannot be loaded.", "Set the folder of this state before the run instead."
        )

    def clear(self) -> None:
        """Clear a drafter state that several requests use. One of a single request is replaced by a new one instead."""
        return


def inspectable_state_of(state: Any) -> InspectableState | None:
    """Return the `InspectableState` in a drafter's state; None if users cannot inspect the state."""
    inspectable = state if isinstance(state, InspectableState) else getattr(state, "inspectable", None)
    return inspectable if isinstance(inspectable, InspectableState) else None


MOST_BYTES = 8 << 20
"""Maximum size in bytes of a file with a drafter's state.

The largest tables for the bundled targets take a quarter of that.
"""
BROKEN = "Give a state file that the workbench saved."


def check_array(
    arrays: Arrays, name: str, shape: tuple[int | None, ...], low: float, high: float, whole: bool = False
) -> np.ndarray:
    """Check an array in a file with a drafter's state, and return it.

    Args:
        arrays: arrays of the file.
        name: name of the array.
        shape: expected shape; None: any length.
        low: smallest allowed value.
        high: upper limit (exclusive).
        whole: whether values must be integers, such as indices.

    Returns:
        The array, as int64 or float64.

    Raises:
        ModelError: the array is missing, has another shape or dtype, or a value is out of range.
    """
    array = arrays.get(name)
    if array is None:
        raise ModelError(f"The state file is damaged: the array {name} is missing.", BROKEN)
    dtype = np.float64 if array.dtype.kind == "f" else np.int64
    fits = array.ndim == len(shape) and all(w is None or w == n for w, n in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in ("iu" if whole else "fiu"):
        raise ModelError(f"The state file is damaged: the array {name} has an unexpected shape or dtype.", BROKEN)
    array = array.astype(dtype)
    if array.size and not (np.isfinite(array).all() and array.min() >= low and array.max() < high):
        raise ModelError(f"The state file is damaged: the array {name} contains invalid numbers.", BROKEN)
    return array


def check_token_ids(
    arrays: Arrays, name: str, vocabulary: int, shape: tuple[int | None, ...], least: int = 0
) -> np.ndarray:
    """Return an array of token ids from a file, after checking that they are from `least` to `vocabulary` − 1."""
    return check_array(arrays, name, shape, least, vocabulary, whole=True)


def pad_rows(rows: Sequence[Sequence[float]], width: int, dtype: Any = np.int32, fill: float = -1) -> np.ndarray:
    """Pad lists of different lengths to an array [n, width] with `fill`."""
    padded = np.full((len(rows), width), fill, dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded
