"""Compute the positions of a batch's new tokens in the KV cache and in their sequences, and their attention masks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.core.errors import CapacityError
from workbench.core.transfer import to_device
from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.masks import STEP, MaskMaker
from workbench.kernels.segment import Segment, Slot


class ForwardInputBuilder:
    """Builder of the masks and positions for one model's forward passes.

    Args:
        masks: builder of the model's masks.
        reach: maximum number of positions per sequence in the KV cache.
        multi_rope: whether positions have time, height and width components (Qwen-VL).

    Attributes:
        is_length_rounded: whether the number of cache positions that a forward pass reads is rounded up, as on a GPU.
            Forward passes then have few shapes, and recorded forward passes can be replayed.
    """

    def __init__(self, masks: MaskMaker, reach: int, multi_rope: bool) -> None:
        self.masks, self.device, self.multi_rope = masks, masks.device, multi_rope
        self.is_length_rounded = self.device.type == "cuda"
        self._numbers = torch.arange(2 * reach, device=masks.device)

    def build(
        self, rows: Sequence[Segment | None], slots: Sequence[Slot], lo: int, cache: TreeCache, n: int
    ) -> tuple[Tensor | dict[str, Tensor], Tensor]:
        """Return attention mask and positions of a batch's new tokens; set `cache.window` (positions written and read).

        Args:
            rows: segment (new tokens) of each cache row from `lo` on; None: padding.
            slots: all open slots, by cache row.
            lo: first row.
            cache: KV cache, written after the entries of each row.
            n: tokens of the longest segment.

        Returns:
            Mask [B, 1, n, used] or one by layer type, and int64 positions [B, n] ([3, B, n] with `multi_rope`).

        Raises:
            CapacityError: the cache is too short.
        """
        slots_in_use = slots[lo : lo + len(rows)]
        if any(slot.on_device is not None for slot in slots_in_use):
            return self._build_on_device(rows, slots_in_use, lo, cache, n)
        single = rows[0] if len(rows) == 1 else None
        if single is not None and not self.masks.positional and not self.multi_rope:  # the usual case, handled quickly
            slot = single.slot
            begin = slot.length + slot.scratch
            end = None if single.attention_mask is None else slot.length + single.attention_mask.shape[1]
            used = self._used(begin + n, cache, end)
            cache.window = Window(slice(lo, lo + 1), begin, None, used)
            cache.mark_written(cache.window.rows, begin + n)
            position = begin + slot.rope_delta
            if single.attention_mask is None:
                return self.masks.chain(begin, n, used), self._numbers[position : position + n].unsqueeze(0)
            assert single.depth is not None
            mask = self.masks.tree([slot.length], [single.attention_mask], n, used)
            return mask, (single.depth + slot.length + slot.rope_delta).unsqueeze(0)
        slots = slots_in_use
        begins = [slot.length + slot.scratch for slot in slots]
        used = self._used(max(begins) + n, cache)
        if len(set(begins)) == 1:
            cache.window = Window(slice(lo, lo + len(rows)), begins[0], None, used)
        else:
            index = to_device(begins, self.device).unsqueeze(1) + self._numbers[:n]
            cache.window = Window(slice(lo, lo + len(rows)), None, index, used)
        cache.mark_written(cache.window.rows, max(begins) + n)
        if len(rows) == 1 and rows[0] is not None and rows[0].attention_mask is None:
            base = begins[0] + slots[0].rope_delta
            positions = self._numbers[base : base + n].unsqueeze(0)
            full = self.masks.chain(begins[0], n, used)
        else:
            positions = to_device([[s.length + s.rope_delta] for s in slots], self.device).repeat(1, n)
            starts, sees = list(begins), [None if segment is None else segment.attention_mask for segment in rows]
            for b, (slot, segment) in enumerate(zip(slots, rows, strict=True)):
                if segment is None:
                    continue
                n_i = len(segment.tokens)
                if segment.attention_mask is None:
                    positions[b, :n_i] += self._numbers[slot.scratch : slot.scratch + n_i]
                else:
                    assert segment.depth is not None
                    starts[b] = slot.length
                    positions[b, :n_i] += segment.depth
            full = self.masks.tree(starts, sees, n, used)
        mask = full
        if self.masks.positional:
            sequence_positions = positions - to_device([[slot.rope_delta] for slot in slots], self.device)
            mask = self.masks.by_layer_type(
                full, sequence_positions, self._key_positions(slots, sequence_positions, begins, n, used)
            )
        if self.multi_rope:
            positions = positions.unsqueeze(0).expand(3, -1, -1)
        return mask, positions

    def _build_on_device(
        self, rows: Sequence[Segment | None], slots: Sequence[Slot], lo: int, cache: TreeCache, n: int
    ) -> tuple[Tensor, Tensor]:
        """Return mask and positions as `build` does, for slots whose lengths only the device knows.

        Does not synchronise, and copies nothing from the host, so that a CUDA graph can record it. Every row that the
        forward pass writes is computed from the device's length, also rows without a segment.
        """
        assert not self.masks.positional  # see `why_not_on_device`
        assert not self.multi_rope
        lengths = [slot.on_device.length if slot.on_device is not None else self._numbers[slot.length : slot.length + 1]
                   for slot in slots]  # fmt: skip
        bounds = [slot.length if slot.on_device is None else slot.on_device.bound for slot in slots]
        end = max(bound + slot.scratch for bound, slot in zip(bounds, slots, strict=True)) + n
        used = self._used(end, cache)
        index = torch.stack([length + slot.scratch for length, slot in zip(lengths, slots, strict=True)])
        index = index + self._numbers[:n]  # [B, n]
        cache.window = Window(slice(lo, lo + len(rows)), None, index, used)
        cache.mark_written(cache.window.rows, end)
        visible = self._numbers[:used] <= index.unsqueeze(2)  # [B, n, used], as in a chain
        positions = index + 0
        for b, (segment, slot, length) in enumerate(zip(rows, slots, lengths, strict=True)):
            if segment is not None and segment.attention_mask is not None:
                assert segment.depth is not None
                n_i, width = segment.attention_mask.shape
                visible[b, :n_i] = self._numbers[:used] < length
                at = (length + self._numbers[:width]).expand(n_i, width)
                visible[b, :n_i] = visible[b, :n_i].scatter(1, at, segment.attention_mask)
                positions[b, :n_i] = length + segment.depth
            if slot.rope_delta:
                positions[b] += slot.rope_delta
        mask = torch.zeros_like(visible, dtype=self.masks.dtype).masked_fill_(~visible, self.masks.floor)
        return mask.unsqueeze(1), positions

    @property
    def why_not_on_device(self) -> str:
        """Return why the sequences' lengths cannot stay on the device with this model; "" if they can."""
        if self.multi_rope:
            return "a token's RoPE position has several components in this model (M-RoPE)"
        return "the model's masks depend on positions (sliding windows or chunks)" if self.masks.positional else ""

    def _used(self, needed: int, cache: TreeCache, end: int | None = None) -> int:
        """Return the number of cache positions that a forward pass reads, rounded up if `is_length_rounded`.

        Args:
            needed: number of positions that the forward pass writes and reads.
            cache: the KV cache.
            end: number of positions to read if no token attends to later ones; None: `needed`.
        """
        if needed > cache.capacity:
            raise CapacityError(
                f"A forward pass needs {needed} positions, but the KV cache has only {cache.capacity}.",
                "Draft a smaller tree.",
            )
        needed = needed if end is None else end
        if not self.is_length_rounded:
            return needed
        step = STEP if needed > STEP else STEP // 4
        return min(-(-needed // step) * step, cache.capacity)

    def _key_positions(self, slots: Sequence[Slot], positions: Tensor, begins: list[int], n: int, used: int) -> Tensor:
        """Return the position in the text of each KV-cache entry, int64 [B, used].

        The positions of scratch nodes and new tokens are stored in the slots.
        """
        key = torch.arange(used, device=self.device).repeat(len(slots), 1)
        for b, slot in enumerate(slots):
            if slot.scratch and slot.positions is not None:
                key[b, slot.length : slot.length + slot.scratch] = slot.positions[: slot.scratch]
            key[b, begins[b] : begins[b] + n] = positions[b]
            slot.positions = key[b, slot.length : begins[b] + n].clone()
        return key
