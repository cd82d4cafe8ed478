"""KV cache for draft trees and for sequences of different lengths.

Every layer has a preallocated buffer of [rows, heads, capacity, head size]; each row holds one sequence. A forward pass
writes its tokens after the committed length of each row and reads all positions up to the longest row. The attention
mask decides which of these positions a token attends to. Committing a path moves its entries to consecutive positions;
rejecting drafted tokens moves nothing. Layers with a sliding window keep old positions, too, and no buffer grows during
a sequence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from workbench.kernels.single_thread import allocate_lazy_zeros, move_single_threaded


@dataclass(slots=True)
class Window:
    """Cache positions that the current forward pass writes and reads; the runner sets them before each forward pass.

    Attributes:
        rows: slice of the cache rows (sequences) of the forward pass, [lo, hi).
        start: first position written, if it is the same for all rows; else None.
        index: int64 [B, n], position written for each token, if the first positions differ between rows; else None.
        used: number of positions read, from the first on.
    """

    rows: slice = field(default_factory=lambda: slice(0, 1))
    start: int | None = 0
    index: Tensor | None = None
    used: int = 0


@runtime_checkable
class KVCache(Protocol):
    """KV cache of several sequences, one per row. Implemented by `TreeCache`.

    An entry is the keys and values of one position in all layers. The `Retention` of a sequence's slot decides which
    committed entries are kept: all entries, or attention sinks and a window.
    """

    capacity: int
    n_rows: int

    @property
    def n_bytes(self) -> int:
        """Return the memory of the KV cache in bytes."""
        ...

    def grow(self, rows: int) -> None:
        """Grow the KV cache to `rows` rows (sequences); existing entries stay."""
        ...

    def clear_row(self, row: int) -> None:
        """Remove the keys and values of one row (sequence) from the KV cache."""
        ...

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row (sequence) of the KV cache to another row."""
        ...

    def commit(self, row: int, length: int, path: Sequence[int]) -> None:
        """Commit the accepted nodes of a sequence: move entries `length + path[i]` to `length + i`, in all layers.

        `length` is the number of committed entries; `path` increases strictly.
        """
        ...

    def drop(self, row: int, start: int, stop: int, length: int, rotate: Callable[[Tensor], Tensor]) -> None:
        """Drop entries `start` … `stop − 1` of one row (sequence) of the KV cache, in all layers.

        Entries `stop` … `length − 1` move to `start` and after.

        Args:
            row: row of the sequence.
            start: first entry that is dropped.
            stop: first entry after the dropped ones.
            length: number of entries of the sequence.
            rotate: function that rotates keys to positions that are smaller by `stop − start`.
        """
        ...


class TreeLayer(CacheLayerMixin):
    """Keys and values of one layer, a view of the buffer that the layers of a `TreeCache` share."""

    is_sliding = False

    def __init__(self, cache: TreeCache, layer: int) -> None:
        super().__init__()
        self.cache = cache
        self.layer = layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the KV cache's buffers with the shape of the first keys and values."""
        self.keys, self.values = self.cache.allocate(self, key_states, value_states)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self,
        key_states: Float[Tensor, "B H n D"],
        value_states: Float[Tensor, "B H n Dv"],
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values, and return all keys and values that the forward pass's mask covers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.cache.window
        assert self.keys is not None
        assert self.values is not None
        keys, values = self.keys[window.rows], self.values[window.rows]
        if window.index is None:
            assert window.start is not None
            stop = window.start + key_states.shape[2]
            keys[:, :, window.start : stop] = key_states
            values[:, :, window.start : stop] = value_states
        else:
            row = torch.arange(keys.shape[0], device=keys.device).unsqueeze(1)
            keys[row, :, window.index] = key_states.transpose(1, 2)
            values[row, :, window.index] = value_states.transpose(1, 2)
        return keys[:, :, : window.used], values[:, :, : window.used]

    def get_seq_length(self) -> int:
        """Return the number of positions before the current forward pass (models use it only to infer position ids)."""
        return self.cache.window.start or 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys and the first key's index, for masks that the model itself builds.

        Models build masks themselves only in the prefill of a prompt with images.
        """
        return self.cache.window.used, 0

    def get_max_length(self) -> int:
        """Return the capacity of the KV cache: the maximum number of positions per sequence."""
        return self.cache.capacity


class TreeCache(Cache):
    """KV cache for `rows` sequences of up to `capacity` positions each, for all layers.

    Layers of equal shape share one tensor [layers, 2, rows, H, capacity, D], so that a commit is one gather for the
    whole model. A layer with another shape has its own tensor.
    """

    def __init__(self, n_layers: int, rows: int, capacity: int) -> None:
        super().__init__(layers=[TreeLayer(self, i) for i in range(n_layers)])
        self._views: dict[TreeLayer, Callable[[int], Tensor]] = {}
        self.n_rows = rows
        self.capacity = capacity
        self.window = Window()
        self._stacks: list[Tensor] = []
        self._common: tuple[int, int] | None = None
        self._common_at = 0
        self._reached = [0] * rows

    def allocate(self, layer: TreeLayer, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Allocate the KV cache's buffers for one layer, and return its keys and values.

        The first layer whose keys and values have the same shape allocates for all layers of this shape.
        """
        shape = (keys.shape[1], keys.shape[3])
        if keys.shape == values.shape and self._common in (None, shape):
            if self._common is None:
                self._common, self._common_at = shape, len(self._stacks)
                size = (len(self.layers), 2, self.n_rows, shape[0], self.capacity, shape[1])
                self._stacks.append(allocate_lazy_zeros(size, keys))
            at, index = self._common_at, layer.layer
            self._views[layer] = lambda part: self._stacks[at][index, part]
        else:
            first = len(self._stacks)
            for part in (keys, values):
                size = (1, 1, self.n_rows, part.shape[1], self.capacity, part.shape[3])
                self._stacks.append(allocate_lazy_zeros(size, part))
            self._views[layer] = lambda part: self._stacks[first + part][0, 0]
        return self._views[layer](0), self._views[layer](1)

    def buffer(self, heads: int, head_size: int, like: Tensor) -> Float[Tensor, "L two R H C D"]:
        """Return the KV cache's buffer for all layers, for forward passes that do not call `update`.

        The buffer is allocated at first use.

        Args:
            heads: number of key-value heads.
            head_size: size of a head.
            like: tensor with the dtype and device of the buffer.
        """
        if self._common is None:
            entry = like.new_empty(1, heads, 0, head_size)
            for layer in self.layers:
                assert isinstance(layer, TreeLayer)
                layer.lazy_initialization(entry, entry)
        return self._stacks[self._common_at]

    def addresses(self) -> tuple[int, ...]:
        """Return the number of rows and the addresses of the KV cache's buffers."""
        return self.n_rows, *(stack.data_ptr() for stack in self._stacks)

    def mark_written(self, rows: slice, stop: int) -> None:
        """Record that rows of the KV cache are written up to position `stop`; later positions are known to be zero.

        So only written positions are zeroed or copied: with whole rows, this took seconds (SmolLM2, AMD EPYC: 190 MB
        per row). The operating system allocates a page of zeros at its first access, and most of a long context is
        never accessed.
        """
        stop = min(stop, self.capacity)
        self._reached[rows] = [max(stop, length) for length in self._reached[rows]]

    @property
    def is_uniform(self) -> bool:
        """Return whether the keys and values of all layers have one shape; known after the first forward pass."""
        return len(self._stacks) == 1

    def grow(self, rows: int) -> None:
        """Grow the buffers of the KV cache to `rows` rows (sequences); existing entries stay."""
        if rows <= self.n_rows:
            return
        longest = max(self._reached)
        for i, old in enumerate(self._stacks):
            new = allocate_lazy_zeros((*old.shape[:2], rows, *old.shape[3:]), old)
            new[:, :, : self.n_rows, :, :longest] = old[..., :longest, :]
            self._stacks[i] = new
        self._reached += [0] * (rows - self.n_rows)
        self.n_rows = rows
        for layer, part in self._views.items():
            layer.keys, layer.values = part(0), part(1)

    def clear_row(self, row: int) -> None:
        """Set all entries of one row (sequence) to 0: attention multiplies masked entries by 0, and 0 × NaN is NaN."""
        for stack in self._stacks:
            stack[:, :, row, :, : self._reached[row]].zero_()
        self._reached[row] = 0

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row (sequence) of the KV cache to another row."""
        for stack in self._stacks:
            stack[:, :, target, :, :length] = stack[:, :, source, :, :length]
        self.mark_written(slice(target, target + 1), length)

    def commit(self, row: int, length: int, path: Sequence[int]) -> None:
        """Commit the accepted nodes of a sequence: move entries `length + path[i]` to `length + i`, in all layers.

        `length` is the number of committed entries; `path` increases strictly.
        """
        if all(i == node for i, node in enumerate(path)):
            return
        with torch.inference_mode():
            for stack in self._stacks:
                move_single_threaded(stack[:, :, row], [length + node for node in path], length)

    def move_on_device(self, row: int, source: Int64[Tensor, " n"], target: Int64[Tensor, " n"]) -> None:
        """Move entries of one row (sequence), in all layers, from and to positions that only the device knows.

        All entries are read before any is written. Does not synchronise.
        """
        for stack in self._stacks:
            entries = stack[:, :, row]
            entries.index_copy_(3, target, entries.index_select(3, source))

    def drop(self, row: int, start: int, stop: int, length: int, rotate: Callable[[Tensor], Tensor]) -> None:
        """Drop entries `start` … `stop − 1` of one row (sequence) of the KV cache, in all layers.

        Entries `stop` … `length − 1` move to `start` and after. The cache must be uniform (`is_uniform`).

        Args:
            row: row of the sequence.
            start: first entry that is dropped.
            stop: first entry after the dropped ones.
            length: number of entries of the sequence.
            rotate: function that rotates keys [L, H, n, D] to positions that are smaller by `stop − start`.
        """
        with torch.inference_mode():
            for stack in self._stacks:
                moved = stack[:, :, row, :, stop:length].clone()
                moved[:, 0] = rotate(moved[:, 0])
                stack[:, :, row, :, start : start + length - stop] = moved

    @contextlib.contextmanager
    def restore_on_exit(self, row: int, start: int, stop: int) -> Iterator[None]:
        """Restore entries `start` … `stop − 1` of a row of the KV cache, in all layers, when the block ends.

        If the buffers were allocated inside the block, these entries become zero.
        """
        saved = [stack[:, :, row, :, start:stop].clone() for stack in self._stacks]
        try:
            yield
        finally:
            for i, stack in enumerate(self._stacks):
                stack[:, :, row, :, start:stop] = saved[i] if i < len(saved) else 0

    @property
    def n_bytes(self) -> int:
        """Return the memory of all buffers of the KV cache in bytes."""
        return sum(stack.numel() * stack.element_size() for stack in self._stacks)
