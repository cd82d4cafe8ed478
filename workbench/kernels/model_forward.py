"""Run a model's own forward pass over a `TreeCache`, and capture hidden states."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.kernels.kv_cache import TreeCache
from workbench.kernels.segment import Output

Mask = Tensor | dict[str, Tensor]
"""Type of an attention mask: additive [B, 1, n, used], or a dict of such masks by layer type."""


class ModelForward:
    """Function that calls a model with an explicit attention mask, explicit positions and a `TreeCache`.

    Hooks capture hidden states.

    Args:
        head: the model's LM head.
        layers: the model's decoder layers.
    """

    def __init__(self, head: nn.Module, layers: nn.ModuleList) -> None:
        self._hidden: Tensor | None = None
        self._taps: dict[int, Tensor] = {}
        self._asked: Collection[int] = ()
        head.register_forward_pre_hook(self._keep_hidden)
        for i, layer in enumerate(layers):
            layer.register_forward_hook(self._tap(i))

    def __call__(
        self,
        model: PreTrainedModel,
        cache: TreeCache,
        ids: Tensor,
        mask: Mask,
        positions: Tensor,
        capture_layers: Collection[int] = (),
        last_only: bool = False,
    ) -> Output:
        """Run one forward pass of a model over the KV-cache positions in `cache.window`.

        Args:
            model: the whole model, a part of it or a weight-sharing copy, with the same modules as LM head and layers.
            cache: KV cache; `cache.window` determines which positions are written and read.
            ids: int64 [B, n], token ids.
            mask: attention mask.
            positions: int64 [B, n], or [3, B, n] (time, height, width), positions in the sequences.
            capture_layers: indices of the layers after which hidden states are captured.
            last_only: compute logits of the last position only.
        """
        self._taps, self._asked = {}, capture_layers
        try:
            logits = model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
                use_cache=True, logits_to_keep=int(last_only),
            ).logits  # fmt: skip
        finally:
            self._asked = ()  # direct calls of the model capture nothing
        assert self._hidden is not None
        return Output(logits, self._hidden, self._taps)

    def _keep_hidden(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._hidden = args[0]

    def _tap(self, index: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if index in self._asked:
                self._taps[index] = output[0] if isinstance(output, tuple) else output

        return hook
