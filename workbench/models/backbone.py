"""Interface through which decoders and drafters use a loaded model on one device. `Runner` implements it.

Each model has its own device, dtype and KV cache, so a draft model and its target may run on different devices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import torch

from workbench.kernels.kv_cache import KVCache
from workbench.kernels.segment import Output, Segment, Slot


@runtime_checkable
class Backbone(Protocol):
    """A language model with its KV cache, for any number of sequences.

    Attributes:
        device: device of the weights and the KV cache.
        dtype: dtype of the hidden states.
        context: maximum length of a text in tokens.
        cache: KV cache of all sequences.
    """

    device: torch.device
    dtype: torch.dtype
    context: int

    @property
    def cache(self) -> KVCache:
        """Return the KV cache of all sequences."""
        ...

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size of the model: the number of logits per position."""
        ...

    def open(self, owner: int | None = None) -> Slot:
        """Open an empty slot (row) of the KV cache for a sequence; `owner` is the sequence's `id`, None if unknown."""
        ...

    def close(self, slot: Slot) -> None:
        """Release a sequence's slot of the KV cache."""
        ...

    def rewind(self, slot: Slot, length: int) -> None:
        """Drop all tokens of a sequence after its first `length` positions from the KV cache.

        Args:
            slot: slot of the sequence.
            length: number of positions that stay.
        """
        ...

    def commit(self, slot: Slot, path: Sequence[int], kept: Sequence[int] = ()) -> None:
        """Commit the accepted nodes of a sequence's draft in the KV cache, and drop all other drafted nodes.

        The nodes `path` are committed; the nodes `kept` remain as uncommitted scratch nodes.

        Args:
            slot: slot of the sequence.
            path: nodes to commit, strictly increasing.
            kept: nodes that remain scratch nodes, strictly increasing and after `path`.
        """
        ...

    def prefill(self, slot: Slot, tokens: Sequence[int], chunk: int = 512) -> None:
        """Prefill: run the next tokens of a sequence, `chunk` tokens per forward pass, and commit them."""
        ...

    def forward(
        self,
        batch: Sequence[Segment],
        last_only: bool = False,
        layers: Sequence[int] | None = None,
        head: bool = True,
        capture_layers: Collection[int] = (),
    ) -> Output:
        """Run new tokens of several sequences in one forward pass; the tokens become uncommitted scratch nodes.

        Args:
            batch: one segment of new tokens per sequence.
            last_only: whether to compute logits for the last position only.
            layers: indices of the layers to run; None: all.
            head: whether to compute logits.
            capture_layers: indices of the layers after which hidden states are captured.
        """
        ...
