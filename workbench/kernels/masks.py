"""Build attention masks for batches of draft trees of different sizes over one KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.kernels.attention_span import AttentionSpans

STEP = 512
"""Step by which the number of KV-cache positions that a forward pass reads is rounded up on a GPU. A number up to
`STEP` is rounded up to a multiple of `STEP` / 4, a larger number to a multiple of `STEP`."""


class MaskMaker:
    """Builder of additive attention masks: 0 at positions that a token attends to, else the dtype's minimum."""

    def __init__(self, spans: AttentionSpans, dtype: torch.dtype, device: torch.device, reach: int = 4096) -> None:
        self.spans, self.dtype, self.device, self.reach = spans, dtype, device, reach
        self.positional = spans.limited  # whether the mask of some layer depends on positions, not only on order
        self.floor = torch.finfo(dtype).min
        self._zeros = torch.zeros(1, 1, 1, 64, dtype=dtype, device=device)
        self._strips: dict[int, Tensor] = {}

    def zeros(self, used: int) -> Float[Tensor, "1 1 1 used"]:
        """Return the attention mask of one token that attends to all positions; a view that must not be written to."""
        if self._zeros.shape[-1] < used:
            self._zeros = torch.zeros(1, 1, 1, 2 * used, dtype=self.dtype, device=self.device)
        return self._zeros[..., :used]

    def causal(self, n: int) -> Float[Tensor, "n n"]:
        """Return the causal attention mask of n tokens: entries above the diagonal are blocked."""
        return torch.full((n, n), self.floor, dtype=self.dtype, device=self.device).triu_(1)

    def chain(self, start: int, n: int, used: int) -> Float[Tensor, "1 1 n used"]:
        """Return the attention mask of a chain of n tokens that follows `start` cache entries.

        Each token attends to these entries, to itself and to earlier tokens of the chain. The result is a view of a
        cached strip and must not be written to. The strip is [open … open | triangle | blocked … blocked]; a shifted
        view gives the mask for every length. On a GPU the result is a copy of the view: torch's attention reads masks
        16 bytes at a time on GPUs, and checks their strides but not the alignment of their start ("CUDA error:
        misaligned address", torch 2.11 on an H200).

        Args:
            start: number of entries before the chain.
            n: number of tokens of the chain.
            used: number of cache positions that the forward pass reads.
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
        return mask if self.device.type == "cpu" else mask.clone()  # for n = 1, `contiguous()` would not copy

    def tree(
        self, starts: Sequence[int], attention_masks: Sequence[Tensor | None], n: int, used: int
    ) -> Float[Tensor, "B 1 n used"]:
        """Return the full-attention mask of a batch of draft trees and chains of different sizes.

        Args:
            starts: per sequence, the number of cache entries that all its tokens attend to.
            attention_masks: per sequence, a bool [n_i, s_i + n_i] from `starts` on (s_i older nodes and the n_i new
                tokens), or None for a chain of n tokens.
            n: tokens per sequence, padding included. Padding attends to at least one entry, as its output would
                otherwise be NaN.
            used: number of cache positions that the forward pass reads.
        """
        mask = torch.full((len(starts), 1, n, used), self.floor, dtype=self.dtype, device=self.device)
        for b, (start, visible) in enumerate(zip(starts, attention_masks, strict=True)):
            sequence_mask = mask[b, 0]
            sequence_mask[:, :start] = 0
            if visible is None:
                sequence_mask[:, start : start + n] = self.causal(n)
                continue
            n_i, width = visible.shape
            sequence_mask[:n_i, start : start + width].masked_fill_(visible, 0)
            if start == 0 and n_i < n:
                sequence_mask[n_i:, 0] = 0  # the output of a token that attends to nothing would be NaN
        return mask

    def by_layer_type(
        self, full: Float[Tensor, "B 1 n used"], query: Int[Tensor, "B n"], key: Int[Tensor, "B used"] | None
    ) -> Tensor | dict[str, Tensor]:
        """Return the attention mask in the form that the model takes: one mask, or a dict of masks by layer type.

        Args:
            full: mask of layers with full attention.
            query: sequence position of each new token.
            key: sequence position of each cache entry; None if no layer needs it.
        """
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
