"""Who sees whom: attention masks for ragged batches of trees over one cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.kernels.attention_span import AttentionSpans

STEP = 512
"""Positions by which what is read of the cache grows, where it grows in steps; up to this, by a quarter of it."""


class MaskMaker:
    """Builds additive masks: 0 where a token may look, the dtype's minimum where it may not."""

    def __init__(self, spans: AttentionSpans, dtype: torch.dtype, device: torch.device, reach: int = 4096) -> None:
        self.spans, self.dtype, self.device, self.reach = spans, dtype, device, reach
        self.positional = spans.limited  # whether some layer looks at positions, not only at order
        self.floor = torch.finfo(dtype).min
        self._zeros = torch.zeros(1, 1, 1, 64, dtype=dtype, device=device)
        self._strips: dict[int, Tensor] = {}

    def zeros(self, used: int) -> Float[Tensor, "1 1 1 used"]:
        """Mask of one token that sees everything; a view, never written to."""
        if self._zeros.shape[-1] < used:
            self._zeros = torch.zeros(1, 1, 1, 2 * used, dtype=self.dtype, device=self.device)
        return self._zeros[..., :used]

    def causal(self, n: int) -> Float[Tensor, "n n"]:
        """Upper triangle of n tokens in a chain, the diagonal left free."""
        return torch.full((n, n), self.floor, dtype=self.dtype, device=self.device).triu_(1)

    def chain(self, start: int, n: int, used: int) -> Float[Tensor, "1 1 n used"]:
        """Mask of n tokens in a chain behind `start` entries that all see: a view into a kept strip, never written to.

        The strip is [free … free | triangle | shut … shut]; sliding along it gives the mask for every length. On a GPU
        it is a copy of that view: torch's attention reads masks 16 bytes at a time there, and looks at their strides
        but not at where they begin ("CUDA error: misaligned address", torch 2.11 on an H200).
        """
        if n == 1 and used == start + 1:
            return self.zeros(used)
        if n > 64:
            return self.tree([start], [None], n, used)
        strip = self._strips.get(n)
        if strip is None or strip.shape[-1] < self.reach + n + STEP:
            strip = torch.zeros(1, 1, n, self.reach + n + STEP, dtype=self.dtype, device=self.device)
            strip[..., self.reach : self.reach + n] = self.causal(n)
            strip[..., self.reach + n :] = self.floor
            self._strips[n] = strip
        if start > self.reach or used - start > n + STEP:
            return self.tree([start], [None], n, used)
        mask = strip[..., self.reach - start : self.reach - start + used]
        return mask if self.device.type == "cpu" else mask.clone()  # of one token it would be its own contiguous copy

    def tree(
        self, starts: Sequence[int], sees: Sequence[Tensor | None], n: int, used: int
    ) -> Float[Tensor, "B 1 n used"]:
        """Full-attention mask of a ragged batch.

        Args:
            starts: of each row; every entry before is seen by all of the row's tokens.
            sees: for each row a bool [n_i, s_i + n_i] from `starts` on (s_i older nodes and the n_i new ones), or None
                for a chain of n tokens.
            n: tokens a row, padding included. Padding sees the committed part and itself.
            used: positions read from the cache.
        """
        mask = torch.full((len(starts), 1, n, used), self.floor, dtype=self.dtype, device=self.device)
        for b, (start, seen) in enumerate(zip(starts, sees, strict=True)):
            row = mask[b, 0]
            row[:, :start] = 0
            if seen is None:
                row[:, start : start + n] = self.causal(n)
                continue
            n_i, width = seen.shape
            row[:n_i, start : start + width].masked_fill_(seen, 0)
            if start == 0 and n_i < n:
                row[n_i:, 0] = 0  # a token that sees nothing would be NaN
        return mask

    def of_kinds(
        self, full: Float[Tensor, "B 1 n used"], query: Int[Tensor, "B n"], key: Int[Tensor, "B used"] | None
    ) -> Tensor | dict[str, Tensor]:
        """Return what the model takes: one mask, or one by layer type. `query`, `key`: positions in the text."""
        if not self.positional or key is None:
            return full
        q, k = query[:, None, :, None], key[:, None, None, :]
        masks = dict[str, Tensor]()
        for kind, span in self.spans.spans.items():
            masks[kind] = full
            if span.window is not None:
                masks[kind] = torch.where(q - k < span.window, full, self.floor)
            if span.chunk is not None:
                masks[kind] = torch.where(q // span.chunk == k // span.chunk, full, self.floor)
        return masks if self.spans.by_layer_type else next(iter(masks.values()))
