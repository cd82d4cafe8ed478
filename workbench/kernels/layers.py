"""Find the decoder layers of a Hugging Face model, and make copies of the model with some of its layers.

A layer has two *halves*, each added to the residual stream: half 2 i is the attention of layer i, half 2 i + 1 its
MLP. A forward pass may leave out any of the halves.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from workbench.core.errors import ModelError

_M = TypeVar("_M", bound=nn.Module)
_P = TypeVar("_P", bound=PreTrainedModel)

HALVES = (("self_attn", "attn", "attention", "self_attention"), ("mlp", "feed_forward", "ffn"))
"""Attribute names of a layer's attention, and of its MLP, in the supported families."""
MAX_CACHED_SUBSETS = 64
"""Maximum number of subsets of a model's layers that are cached."""
RECURRENT = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "ssm", "rwkv", "hybrid", "moe_mamba")


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of the decoder of a language or vision-language model."""
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def refuse_unverifiable(model: PreTrainedModel) -> None:
    """Refuse a model with a recurrent state, which cannot be rolled back to an earlier token after a rejection.

    A model of a hybrid family whose layers are all attention has no such state and is accepted; the self-test at
    loading checks it.

    Raises:
        ModelError: the model has a recurrent state; the message names the layer type and an alternative.
    """
    config = text_config(model.config)
    name = type(model).__name__
    types = list(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or [])
    recurrent_types = sorted({t for t in types if any(word in t for word in RECURRENT)})
    is_attention = bool(types) and all("attention" in t for t in types)
    if recurrent_types or (getattr(model, "_is_stateful", False) and not is_attention):
        where = f" in its layers of type {', '.join(recurrent_types)}" if recurrent_types else ""
        raise ModelError(
            f"{name} keeps a recurrent state{where}, which cannot be rolled back to the accepted part of a draft tree.",
            "Use a target whose layers are all attention (Llama, Qwen2/3, Mistral, Gemma 3, …).",
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise encoder_decoder_error(name, model.config)


def encoder_decoder_error(name: str, config: PretrainedConfig) -> ModelError:
    """Return the error for an encoder–decoder model (T5, BART), whose decoder attends to another, encoded text."""
    return ModelError(
        f"{name} ({config.model_type}) is an encoder–decoder model: its decoder attends to a separately encoded "
        f"text, but a target has to continue its prompt.",
        "Use a decoder-only language model as the target (Llama, Qwen2/3, Mistral, Gemma 3, GPT-2, …).",
    )


def longest_context(config: PretrainedConfig, scratch: int = 0) -> tuple[int, str]:
    """Return the maximum number of tokens that a decoder can process, and the reason why it is limited.

    The limits exist where later tokens would change the results of earlier ones:

    - LongRoPE (Phi-3) rotates queries and keys by other factors as soon as one sequence of a batch is longer than the
      model's original context. Keys in the cache were rotated by the old factors, and the results of shorter sequences
      in the batch change.
    - Dynamic NTK scaling changes the factors with every token after the trained length.
    - Doge attends to only some keys if the KV cache has more than `keep_window_size` keys; keys of drafts count, too.

    Args:
        config: configuration of the decoder.
        scratch: number of KV-cache positions after the context, for drafted tokens.
    """
    trained_length = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 2048
    rope_parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [rope_parameters, *(part for part in rope_parameters.values() if isinstance(part, dict))]
    limits = [(trained_length, "")]
    for kind in kinds:
        rope = kind.get("rope_type")
        end = (
            kind.get("original_max_position_embeddings")
            if rope == "longrope"
            else trained_length
            if rope == "dynamic"
            else None
        )
        if end and (rope == "dynamic" or end < trained_length):
            limits.append((
                end,
                f"after {end:,} tokens this model rotates its keys by other factors (RoPE type {rope}), which "
                f"would make all cached keys in the batch invalid",
            ))  # fmt: skip
    if getattr(config, "model_type", "") == "doge" and (window := config.keep_window_size) - scratch < trained_length:
        limits.append((
            window - scratch,
            f"with more than {window:,} cached keys, including those of drafted tokens, this model attends to "
            f"only some of them",
        ))  # fmt: skip
    return min(limits, key=lambda end: (end[0], not end[1]))


def has_rotary_positions(model: PreTrainedModel) -> bool:
    """Return whether a decoder uses only rotary positions, so that it can run past its trained length."""
    is_rotary = any(name.endswith("inv_freq") and "vis" not in name for name, _ in model.named_buffers())
    tables = (name for name, module in model.named_modules() if isinstance(module, nn.Embedding) and "vis" not in name)
    return is_rotary and not any("pos" in name or name.endswith("wpe") for name in tables)


def decoder_layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Return the dotted name of a model's list of decoder layers, and the list.

    Raises:
        ModelError: no list of attention layers of the configured length was found.
    """
    n_layers = text_config(model.config).num_hidden_layers
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) != n_layers or "vision" in name:
            continue
        if any(hasattr(m, "layer_idx") for m in module[0].modules()):
            return name, module
    raise ModelError(
        f"No list of {n_layers} attention layers was found in {type(model).__name__}.",
        "Use a model that caches one key and one value per layer and token, such as Llama or Qwen.",
    )


def subset(model: PreTrainedModel, keep: Sequence[int], skipped_halves: Collection[int] = ()) -> PreTrainedModel:
    """Return a copy of a model with only the layers `keep`.

    The copy shares the weights and, through `layer_idx`, the KV cache of the model.

    Args:
        model: the whole model.
        keep: indices of layers.
        skipped_halves: attention or MLP halves of layers that are left out. If the attribute names of a layer's halves
            are unknown, the whole layer runs unless both halves are left out.
    """
    _, layers = decoder_layers(model)
    remaining = [i for i in keep if not {2 * i, 2 * i + 1} <= set(skipped_halves)]
    keep = remaining or keep[-1:]  # if no layer remains, use one with both halves left out, which returns its input
    width = text_config(model.config).hidden_size
    missing_halves = [[h for h in (0, 1) if 2 * i + h in skipped_halves] for i in keep]
    return with_layers(
        model,
        [_without_halves(layers[i], missing, width) for i, missing in zip(keep, missing_halves, strict=True)],
        keep,
    )


def with_layers(model: _P, new_layers: Sequence[nn.Module], replaced: Sequence[int] | None = None) -> _P:
    """Return a copy of a model with other decoder layers.

    Only the modules on the path to the layer list are copied, shallowly.

    Args:
        model: the model; it is not changed.
        new_layers: the new layers.
        replaced: index of the layer that each new layer replaces; by default, the new layers replace all layers in
            order.
    """
    path = decoder_layers(model)[0].split(".")
    top = shallow_copy(model)
    parent: Any = top
    for part in path[:-1]:
        shared_copy = shallow_copy(parent.get_submodule(part))
        parent._modules[part] = shared_copy
        parent = shared_copy
    parent._modules[path[-1]] = nn.ModuleList(new_layers)
    types = getattr(getattr(parent, "config", None), "layer_types", None)
    if types and replaced is not None:
        config: Any = copy.copy(parent.config)
        config.layer_types = [types[i] for i in replaced]
        parent.config = config
    return top


class LayerSubsets:
    """Maker of copies of a model without some layers or layer halves (see `subset`); the last few copies are cached.

    Args:
        model: the whole model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._kept: dict[tuple[tuple[int, ...], frozenset[int]], PreTrainedModel] = {}

    def __call__(self, layers: Sequence[int] | None, skipped_halves: Collection[int]) -> PreTrainedModel:
        """Return a copy of the model with some layers (default: all), without `skipped_halves`; cached if possible."""
        if layers is None and not skipped_halves:
            return self.model
        all_layers = range(len(decoder_layers(self.model)[1]))
        key = tuple(all_layers if layers is None else layers), frozenset(skipped_halves)
        if key not in self._kept:
            if len(self._kept) == MAX_CACHED_SUBSETS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = subset(self.model, *key)
        return self._kept[key]


def name_of(layer: nn.Module, half: int) -> str | None:
    """Return the attribute name of a layer's attention (0) or MLP (1); None if it is not among `HALVES`."""
    return next((name for name, _ in layer.named_children() if name in HALVES[half]), None)


def _without_halves(layer: nn.Module, without: Sequence[int], width: int) -> nn.Module:
    """Return a copy of a layer whose attention or MLP is replaced by a module that adds nothing.

    If the attribute name of a half (attention or MLP) is unknown, the layer is returned unchanged.

    Args:
        layer: the layer; it is not changed.
        without: halves to replace: 0 is the attention, 1 the MLP.
        width: width of the residual stream.
    """
    names = [name_of(layer, index) for index in without]
    if not names or None in names:
        return layer
    shared_copy = shallow_copy(layer)
    for index, name in zip(without, names, strict=True):
        shared_copy._modules[str(name)] = _Nothing(
            1 if index == 0 else _count_extra_outputs(layer.get_submodule(str(name)), width)
        )
    return shared_copy


def _count_extra_outputs(feed_forward: nn.Module, width: int) -> int:
    """Call an MLP once, and return how many outputs it has besides the first (routing in a mixture of experts).

    Args:
        feed_forward: the MLP.
        width: width of its input.
    """
    like = next(feed_forward.parameters())
    with torch.inference_mode():
        output = feed_forward(torch.zeros(1, 1, width, dtype=like.dtype, device=like.device))
    return len(output) - 1 if isinstance(output, tuple) else 0


class _Nothing(nn.Module):
    """Module that replaces an attention or MLP: it returns zeros, and None for each further output."""

    def __init__(self, besides: int) -> None:
        super().__init__()
        self.besides = besides

    def forward(self, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
        zeros = torch.zeros_like(hidden_states)
        return (zeros, *[None] * self.besides) if self.besides else zeros


def override_input(
    embedding: nn.Module, layers: nn.ModuleList, first: int, states: Float[Tensor, "B n D"] | None
) -> contextlib.AbstractContextManager[None]:
    """Replace the input of the first decoder layer that is run by `states` within this context.

    For layer 0, the output of the input embedding is replaced.

    Args:
        embedding: input embedding of the model.
        layers: decoder layers of the model.
        first: index of the first layer that is run.
        states: new input [B, n, D] of that layer; None: nothing is replaced.
    """
    if states is None:
        return contextlib.nullcontext()
    return override_layer_input(layers[first], states) if first else override_embeddings(embedding, states)


@contextlib.contextmanager
def override_embeddings(embedding: nn.Module, states: Float[Tensor, "B n D"]) -> Iterator[None]:
    """Make an input embedding return `states`, whatever the token ids, within this context."""
    hook = embedding.register_forward_hook(lambda module, args, output: states)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def override_layer_input(layer: nn.Module, states: Float[Tensor, "B n D"]) -> Iterator[None]:
    """Make a decoder layer read the residual streams `states` instead of its input within this context."""

    def instead(
        module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ((states, *args[1:]), named) if args else (args, named | {"hidden_states": states})

    hook = layer.register_forward_pre_hook(instead, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def shallow_copy(module: _M) -> _M:
    """Return a copy of a module that shares its weights and submodules; submodules can be replaced in the copy."""
    shared_copy = copy.copy(module)
    shared_copy._modules = dict(module._modules)
    return shared_copy
