"""Base class of decoders that replace a model's own forward pass, faster for few tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.kernels.kv_cache import TreeCache


class FewTokenDecoder(ABC):
    """Decoder that replaces a Hugging Face model's forward pass and gives the same results, up to rounding.

    Subclasses implement the layers.

    Attributes:
        table: token embeddings, [V, D].
        last_norm: RMS norm before the LM head.
        layers: decoder layers.
    """

    table: Tensor
    last_norm: nn.Module
    layers: Sequence[Any]

    def _watch_weights(self, model: nn.Module) -> None:
        """Store the versions and addresses of a model's weights, so that `_has_changed` can detect changes."""
        self._watched = list(model.parameters())
        self._seen = self._versions()

    def _has_changed(self) -> bool:
        """Return whether a weight of the model was changed or moved since `_watch_weights` was called."""
        return self._versions() != self._seen

    def _versions(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self._watched]

    @property
    def has_float32_stream(self) -> bool:
        """Return whether the residual stream is kept in float32 between layers, whatever the model's dtype."""
        return False

    @abstractmethod
    def fresh(self) -> FewTokenDecoder:
        """Return this decoder, or a new one if the model's weights have changed."""

    @abstractmethod
    def supports(self, shape: Sequence[int]) -> bool:
        """Return whether this decoder runs a forward pass of a given shape: (sequences, tokens per sequence)."""

    @abstractmethod
    def run_layers(
        self,
        order: Sequence[int],
        x: Float[Tensor, "T D"],
        mask: Float[Tensor, "B 1 n used"],
        positions: Int[Tensor, "B n"],
        cache: TreeCache,
        capture_layers: Collection[int] = (),
        skipped_halves: Collection[int] = (),
    ) -> tuple[Float[Tensor, "T D"], dict[int, Tensor]]:
        """Run some decoder layers on a residual stream.

        Args:
            order: indices of the layers, in the order in which they run.
            x: residual stream before the first of these layers.
            mask: additive attention mask.
            positions: positions of the tokens in their sequences.
            cache: KV cache, written and read at the positions in `cache.window`.
            capture_layers: layers after which hidden states are captured.
            skipped_halves: attention or MLP halves of layers that are left out (see `workbench.kernels.layers`).

        Returns:
            The residual stream after these layers; and captured hidden states [B, n, D] by layer.
        """

    @abstractmethod
    def project_to_logits(self, x: Float[Tensor, "T D"]) -> tuple[Float[Tensor, "T V"], Float[Tensor, "T D"]]:
        """Return the logits for the last layer's residual stream, and the LM head's input."""

    def normalise(self, x: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Return the LM head's input for the last layer's residual stream."""
        return norm(self.last_norm, x)

    def __call__(
        self,
        ids: Int[Tensor, "B n"],
        mask: Float[Tensor, "B 1 n used"],
        positions: Int[Tensor, "B n"],
        cache: TreeCache,
        layers: Sequence[int] | None = None,
        last_only: bool = False,
        capture_layers: Collection[int] = (),
        head: bool = True,
        states: Float[Tensor, "B n D"] | None = None,
        skipped_halves: Collection[int] = (),
        everywhere: bool = False,
    ) -> tuple[Float[Tensor, "B m V"], Float[Tensor, "B k D"], dict[int, Tensor]]:
        """Run a forward pass over the KV-cache positions in `cache.window`, which the caller has set.

        Args:
            ids: token ids.
            mask: additive attention mask.
            positions: positions of the tokens in their sequences.
            cache: KV cache, written and read at the positions in `cache.window`.
            layers: indices of the layers to run; all by default.
            last_only: compute logits of the last position only (m = 1).
            capture_layers: layers after which hidden states are captured.
            head: whether to compute logits. If not, the first result is empty, and the second is the residual stream
                after the last of `layers` instead of the LM head's input (in float32 from compiled layers).
            states: residual stream before the first of `layers`; None: the tokens' embeddings.
            skipped_halves: attention or MLP halves of layers that are left out (see `workbench.kernels.layers`).
            everywhere: whether to return the LM head's input at every position even with `last_only` (k = n, else m).

        Returns:
            Logits; the LM head's input; and captured hidden states [B, n, D] by layer.
        """
        order = range(len(self.layers)) if layers is None else layers
        n_rows, size = ids.shape[0], self.table.shape[0]
        x = torch.embedding(self.table, ids.view(-1)) if states is None else states.reshape(ids.numel(), -1)
        x, tap_states = self.run_layers(order, x, mask, positions, cache, capture_layers, skipped_halves)
        if not head:
            return self.table.new_empty(n_rows, 0, size), x.view(n_rows, -1, x.shape[1]), tap_states
        all_positions = x
        if last_only and ids.shape[1] > 1:
            x = x.view(*ids.shape, -1)[:, -1]
        logits, hidden = self.project_to_logits(x)
        if everywhere and all_positions is not x:
            hidden = self.normalise(all_positions.to(self.table.dtype))
        return logits.view(n_rows, -1, size), hidden.view(n_rows, -1, hidden.shape[1]), tap_states


def norm(module: nn.Module, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
    """Apply RMS norm with a norm module's weight; float64 is computed in float32, as in the Hugging Face classes."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    eps: float = module.variance_epsilon  # type: ignore[assignment]
    if x.dtype != torch.float64:
        return torch.rms_norm(x, weight.shape, weight, eps)
    single = x.float()
    return weight * (single * (single.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
