"""Measure which earlier positions each layer of a model attends to, from the masks of the model's own forward pass.

A model's configuration is not reliable: Mistral has its sliding window regardless of `use_sliding_window` (read by
Qwen2), and Llama has none regardless of `sliding_window`. So the model is called for one token at a late position of an
empty cache, with its layers replaced by recorders of the masks that they receive. This takes a few milliseconds.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.layers import decoder_layers, shallow_copy, text_config, with_layers

log = logging.getLogger(__name__)

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Range of earlier positions that a decoder layer attends to.

    Attributes:
        window: size of the sliding window in tokens, the current token included; None: unlimited.
        chunk: size in tokens of the chunks within which a layer attends; None: no chunks.
    """

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpans:
    """Attention spans of a model's layers: for each layer, the range of earlier positions that it attends to.

    Attributes:
        spans: layer type → span; a single entry if all layers use one mask.
        by_layer_type: whether the model takes a dict of masks by layer type; otherwise it takes one mask.
    """

    spans: dict[str, AttentionSpan]
    by_layer_type: bool = False

    @property
    def limited(self) -> bool:
        """Return whether at least one layer does not attend to the whole context."""
        return any(span != AttentionSpan() for span in self.spans.values())

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> AttentionSpans:
        """Return the attention spans that a model's configuration declares, if its masks cannot be measured."""
        kinds: tuple[str, ...] = tuple(dict.fromkeys(getattr(config, "layer_types", None) or ()))
        window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
        by_kind = {FULL: AttentionSpan(), SLIDING: AttentionSpan(window or None),
                   "chunked_attention": AttentionSpan(None, chunk)}  # fmt: skip
        if kinds and kinds != (FULL,):
            return cls({kind: by_kind.get(kind, AttentionSpan()) for kind in kinds}, True)
        kind = SLIDING if not kinds and window else FULL
        return cls({kind: by_kind[kind]})


@torch.inference_mode()
def attention_spans(model: PreTrainedModel, reach: int) -> AttentionSpans:
    """Measure a model's attention spans: the range of earlier positions that each layer attends to.

    Args:
        model: any decoder.
        reach: length of the longest sequence, in tokens; a window longer than this counts as unlimited.
    """
    try:
        return _Measurement(model, reach).spans()
    except Exception as error:  # families raise different errors; `model_self_test` checks the spans later
        log.debug(
            "Attention spans of %s could not be measured and are taken from its configuration: %s",
            type(model).__name__,
            error,
        )
        return AttentionSpans.from_config(text_config(model.config))


class _AllLayersReached(Exception):
    """Raised by the mask recorder that replaces the last layer, to end the forward pass: all masks are recorded."""


class _LayerTypes(dict[str, Tensor]):
    """Dict from layer type to mask, for a model whose layer types are unknown.

    When the model looks up a missing key, the dict adds a new copy of one mask under that key.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self._like = like

    def __missing__(self, kind: str) -> Tensor:
        self[kind] = self._like.clone()
        return self[kind]


class _Measurement:
    """Model whose layers are replaced by recorders of the attention masks passed to them."""

    def __init__(self, model: PreTrainedModel, reach: int) -> None:
        layers = decoder_layers(model)[1]
        self._reach, self._device, self._n = reach, model.device, len(layers)
        self._given: list[Tensor | None] = []
        self._cache = TreeCache(self._n, 1, reach)
        self._models = [with_layers(model, [self._recorder(layer, wrap) for layer in layers]) for wrap in (False, True)]
        self._dims = 3 if hasattr(getattr(model, "model", None), "rope_deltas") else 0

    def spans(self) -> AttentionSpans:
        """Return the measured attention spans of all layers."""
        last = self._reach - 1
        starts = self._starts(last)
        if not any(starts):
            return AttentionSpans({FULL: AttentionSpan()})
        kinds = self._layer_types()
        by_start = {start: self._span(starts.index(start), start) for start in sorted(set(starts))}
        names = kinds or [FULL if span == AttentionSpan() else SLIDING for span in (by_start[s] for s in starts)]
        span_by_type = dict(zip(names, (by_start[start] for start in starts), strict=True))
        if any(span_by_type[name] != by_start[start] for name, start in zip(names, starts, strict=True)):
            raise ValueError("layers of one type attend to different spans")
        if not kinds and len(span_by_type) > 1:
            raise ValueError("layers attend to different spans, but the model accepts one mask for all")
        return AttentionSpans(span_by_type, bool(kinds))

    def _span(self, layer: int, start: int) -> AttentionSpan:
        """Return the attention span of a layer in which the last position attends to keys from index `start` on.

        The start of a sliding window moves with every position; the start of a chunk stays until the chunk ends.
        """
        if not start:
            return AttentionSpan()
        last = self._reach - 1
        length = start - self._starts(start - 1)[layer]  # of the chunk; or of the window, minus 1 if it began at 0
        if self._starts(start)[layer] == start:
            return AttentionSpan(None, length)
        if (before := self._starts(last - 1)[layer]) != start - 1:
            raise ValueError(f"its mask begins at {before} and then at {start}")
        return AttentionSpan(last - start + 1)

    def _layer_types(self) -> list[str]:
        """Return the layer type whose mask each layer receives; [] if the model takes no dict of masks."""
        masks = _LayerTypes(torch.zeros(1, 1, 1, self._reach, device=self._device))
        try:
            self._call(self._reach - 1, masks)
        except Exception:  # raised by models that expect a tensor
            return []
        kinds = [next((kind for kind, mask in masks.items() if mask is layer_mask), "") for layer_mask in self._given]
        return kinds if all(kinds) else []

    def _starts(self, position: int) -> list[int]:
        """Return, for each layer, the index of the first key that a token at `position` attends to."""
        self._call(position, None)
        return [_start(mask, position) for mask in self._given]

    def _call(self, position: int, masks: dict[str, Tensor] | None) -> None:
        """Call the model with one token and record the attention masks of its layers.

        Args:
            position: position of the token.
            masks: dict of masks by layer type to pass to the model; None: the model creates its own mask.
        """
        positions = torch.full((1, 1), position, device=self._device)
        self._cache.window = Window(slice(0, 1), position, None, position + 1)
        for model, is_last in zip(self._models, (False, True), strict=True):
            self._given = []
            try:
                model(
                    input_ids=torch.ones_like(positions), attention_mask=masks, past_key_values=self._cache,
                    use_cache=True, position_ids=positions.expand(3, 1, 1) if self._dims else positions,
                )  # fmt: skip
            except _AllLayersReached:
                return
            except Exception:
                if is_last:
                    raise
        raise ValueError("a forward pass did not run all layers")

    def _recorder(self, layer: nn.Module, is_tuple: bool) -> nn.Module:
        """Return a copy of a layer that only records its mask and returns its input, as (input, None) if `is_tuple`."""
        copied = shallow_copy(layer)
        copied.forward = self._record_as_tuple if is_tuple else self._record
        return copied

    def _record(self, hidden_states: Tensor, *args: Any, **named: Any) -> Tensor:
        masks = [value for value in itertools.chain([named.get("attention_mask")], args) if _is_mask(value)]
        self._given.append(masks[0] if masks else None)
        if len(self._given) == self._n:
            raise _AllLayersReached
        return hidden_states

    def _record_as_tuple(self, hidden_states: Tensor, *args: Any, **named: Any) -> tuple[Tensor, None]:
        return self._record(hidden_states, *args, **named), None


def _is_mask(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 4 and value.shape[-2] == 1


def _start(mask: Tensor | None, position: int) -> int:
    """Return the index of the first key that a token's attention mask allows; 0 without a mask.

    Args:
        mask: attention mask of one token; None: no mask.
        position: position of the token.

    Raises:
        ValueError: the mask allows keys before a masked key.
    """
    if mask is None:
        return 0
    row = mask[0, 0, 0, : position + 1]
    is_open = row if row.dtype == torch.bool else row > torch.finfo(row.dtype).min / 2
    start = int(is_open.long().argmax())
    if not bool(is_open[start:].all()):
        raise ValueError("the attention mask has gaps")
    return start
