"""One key–value cache for trees, rows of different lengths, and several readers.

Every layer holds a preallocated buffer of [rows, heads, capacity, head size]. A forward writes its tokens behind the
committed length of each row and reads everything up to the longest row; what a token may see is the mask's business.
Committing a path moves its entries to the front; rejecting moves nothing. No layer rolls, slides or grows by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(slots=True)
class Window:
    """Where the forward that is running writes and how far it reads. Set by the runner before each forward.

    Attributes:
        rows: slice of buffer rows that take part, [lo, hi).
        start: first position written, when it is the same for all rows; else None.
        index: int64 [B, n], position written for each token, when rows differ; else None.
        used: number of positions read back.
    """

    rows: slice = field(default_factory=lambda: slice(0, 1))
    start: int | None = 0
    index: Tensor | None = None
    used: int = 0


class TreeLayer(CacheLayerMixin):
    """Keys and values of one layer: a view of the cache's common buffer."""

    is_sliding = False

    def __init__(self, cache: TreeCache, layer: int) -> None:
        super().__init__()
        self.cache = cache
        self.layer = layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take buffers once the first keys and values show their shape."""
        self.keys, self.values = self.cache.allocate(self.layer, key_states, value_states)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self,
        key_states: Float[Tensor, "B H n D"],
        value_states: Float[Tensor, "B H n Dv"],
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write the new entries and return the part of the buffers that the mask covers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.cache.window
        keys, values = self.keys[window.rows], self.values[window.rows]
        if window.index is None:
            stop = window.start + key_states.shape[2]
            keys[:, :, window.start : stop] = key_states
            values[:, :, window.start : stop] = value_states
        else:
            row = torch.arange(keys.shape[0], device=keys.device).unsqueeze(1)
            keys[row, :, window.index] = key_states.transpose(1, 2)
            values[row, :, window.index] = value_states.transpose(1, 2)
        return keys[:, :, : window.used], values[:, :, : window.used]

    def get_seq_length(self) -> int:
        """Positions before the forward that is running (used by models only to guess position ids)."""
        return self.cache.window.start or 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(length, offset) of the keys for masks that a model builds by itself, as in a prefill with pixels."""
        return self.cache.window.used, 0

    def get_max_length(self) -> int:
        """Capacity in positions."""
        return self.cache.capacity


class TreeCache(Cache):
    """Buffers for `rows` requests of up to `capacity` positions each, shared by all layers.

    Layers of one shape live in one tensor [layers, 2, rows, H, capacity, D], so that a commit is one gather for the
    whole model. A layer with another shape has a tensor of its own.
    """

    def __init__(self, n_layers: int, rows: int, capacity: int) -> None:
        super().__init__(layers=[TreeLayer(self, i) for i in range(n_layers)])
        self.n_rows = rows
        self.capacity = capacity
        self.window = Window()
        self._stacks: list[Tensor] = []
        self._common: tuple[int, ...] | None = None

    def allocate(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Buffers for one layer; the first caller with equal key and value shapes allocates for all."""
        shape = (keys.shape[1], keys.shape[3])
        if keys.shape != values.shape or (self._common is not None and self._common != shape):
            pair = []
            for part in (keys, values):
                size = (1, 1, self.n_rows, part.shape[1], self.capacity, part.shape[3])
                self._stacks.append(torch.zeros(size, dtype=part.dtype, device=part.device))
                pair.append(self._stacks[-1][0, 0])
            return pair[0], pair[1]
        if self._common is None:
            self._common = shape
            size = (len(self.layers), 2, self.n_rows, shape[0], self.capacity, shape[1])
            self._stacks.insert(0, torch.zeros(size, dtype=keys.dtype, device=keys.device))
        return self._stacks[0][layer, 0], self._stacks[0][layer, 1]

    def grow(self, rows: int) -> None:
        """Make room for more rows; what is there stays."""
        if rows <= self.n_rows:
            return
        for i, old in enumerate(self._stacks):
            new = old.new_zeros((*old.shape[:2], rows, *old.shape[3:]))
            new[:, :, : self.n_rows] = old
            self._stacks[i] = new
        self.n_rows = rows
        own = 1
        for layer in self.layers:
            if not layer.is_initialized:
                continue
            if (
                self._common is not None
                and (layer.keys.shape[1], layer.keys.shape[3]) == self._common
                and (layer.keys.shape == layer.values.shape)
            ):
                layer.keys, layer.values = self._stacks[0][layer.layer, 0], self._stacks[0][layer.layer, 1]
            else:
                at = own if self._common is not None else own - 1
                layer.keys, layer.values = self._stacks[at][0, 0], self._stacks[at + 1][0, 0]
                own += 2

    def clear_row(self, row: int) -> None:
        """Zero a row. Masked entries are multiplied by 0, and 0 × NaN would be NaN: nothing stale may stay behind."""
        for stack in self._stacks:
            stack[:, :, row].zero_()

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row into another."""
        for stack in self._stacks:
            stack[:, :, target, :, :length] = stack[:, :, source, :, :length]

    def commit(self, row: int, length: int, path: Sequence[int]) -> None:
        """Move entries `length + path[i]` to `length + i`, for all layers at once. `path` increases strictly."""
        if all(i == node for i, node in enumerate(path)):
            return
        for stack in self._stacks:
            index = torch.tensor([length + node for node in path], device=stack.device)
            stack[:, :, row, :, length : length + len(path)] = stack[:, :, row].index_select(3, index)

    @property
    def n_bytes(self) -> int:
        """Memory of all buffers."""
        return sum(stack.numel() * stack.element_size() for stack in self._stacks)
