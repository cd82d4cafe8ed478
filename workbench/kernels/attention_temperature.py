"""Scale queries by the position of their token, in Llama 4's layers without rotary embedding.

These layers multiply queries by 1 + a · ln(1 + ⌊(position + 1) / f⌋) (Nakanishi 2025, Scalable-softmax,
arXiv:2501.19399). Transformers derives that position from the cache's length, which is wrong for a token of a draft
tree or of a shorter sequence in the batch. In a forward pass with a `TreeCache`, the layer's own scaling is off, and
the hooks scale the query projection by the forward pass's `position_ids`. All other calls of the model are unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workbench.kernels.kv_cache import TreeCache

ATTENTION = "Llama4TextAttention"


def scale_by_position(model: nn.Module) -> None:
    """Install hooks that scale queries by position on all layers of a model that need this; change no other model."""
    for layer in model.modules():
        attention: Any = dict(layer.named_children()).get("self_attn")
        if type(attention).__name__ == ATTENTION and attention.attn_temperature_tuning and not attention.use_rope:
            _Temperature(layer, attention)


class _Temperature:
    """Hooks that scale the queries of one layer by the positions of their tokens.

    Several runners of a model may each install hooks; only one set acts per forward pass.
    """

    def __init__(self, layer: nn.Module, attention: Any) -> None:
        self._attention = attention
        self._positions: Tensor | None = None
        layer.register_forward_pre_hook(self._begin, with_kwargs=True)
        layer.register_forward_hook(self._end, always_call=True)
        attention.q_proj.register_forward_hook(self._scale)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._attention.attn_temperature_tuning and isinstance(named.get("past_key_values"), TreeCache):
            self._positions = named["position_ids"]
            self._attention.attn_temperature_tuning = False

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if self._positions is not None:
            self._positions = None
            self._attention.attn_temperature_tuning = True

    def _scale(self, module: nn.Module, args: tuple[Any, ...], queries: Tensor) -> Tensor:
        """Return queries [B, n, H · D] scaled by their tokens' positions, computed in float32 as in Transformers."""
        if self._positions is None:
            return queries
        chunks = torch.floor((self._positions.float() + 1.0) / self._attention.floor_scale)
        scales = torch.log1p(chunks) * self._attention.attn_scale + 1.0
        return (queries * scales.unsqueeze(-1)).to(queries.dtype)
