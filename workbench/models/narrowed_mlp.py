"""Narrow a model's MLPs to some of their columns, and measure the activity of each column on a text.

A *column* of an MLP is one of its inner dimensions: an output of the input projections (gate, up) and an input of the
output projection (down). Without a column, its contribution to the residual stream is missing. A layer with another
kind of MLP (a mixture of experts) stays unchanged.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from workbench.kernels.fused import FusedDecoder
from workbench.kernels.layers import decoder_layers, name_of, shallow_copy, with_layers
from workbench.kernels.lean import LeanDecoder
from workbench.kernels.packed import unpack_temporarily
from workbench.kernels.quantised import weight_dtype
from workbench.kernels.segment import Slot
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.models.runner import Runner
from workbench.models.side_passes import recompute_logits


class FeedForward(NamedTuple):
    """Linear layers of an MLP.

    Attributes:
        width: number of columns (inner dimensions).
        into: names of the input projections; each maps the residual stream to all columns, or to twice as many outputs
            (fused gate and up).
        out: name of the output projection.
    """

    width: int
    into: tuple[str, ...]
    out: str


def feed_forward_of(module: nn.Module, size: int) -> FeedForward | None:
    """Return the linear layers of an MLP; None if it does not consist of input projections and one output projection.

    Args:
        module: MLP of a layer.
        size: width of the residual stream.
    """
    parts = {
        name: part for name, part in module.named_modules() if next(part.parameters(recurse=False), None) is not None
    }
    if not parts or not all(isinstance(part, nn.Linear | Conv1D) for part in parts.values()):
        return None
    *into, out = parts
    width = _weight(parts[out]).shape[1]
    fits = all(w.shape[1] == size and w.shape[0] in (width, 2 * width) for w in map(_weight, map(parts.get, into)))
    return FeedForward(width, tuple(into), out) if into and fits and _weight(parts[out]).shape[0] == size else None


@torch.inference_mode()
def activity(runner: Runner, slot: Slot, start: int, tokens: Sequence[int]) -> dict[int, Float[Tensor, " I"]]:
    """Return, for each layer, the mean contribution of its I MLP columns to the residual stream over some tokens.

    The contribution of a column is |activation| · ‖output weights of the column‖. Layers with another kind of MLP are
    left out.

    Args:
        runner: runner of the model.
        slot: slot of the sequence; it is not changed.
        start: first position of the tokens.
        tokens: tokens from `start` on; at least one.
    """
    contributions: dict[int, Tensor] = {}

    def watch(layer: int, out: nn.Module) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            activation = args[0].flatten(0, -2).float().abs().mean(0)
            contributions[layer] = activation * _weight(out).float().norm(dim=0)

        return out.register_forward_pre_hook(hook)

    with contextlib.ExitStack() as stack:
        for i, layer in enumerate(runner.layers):
            if (mlp := _find_mlp(layer, runner.hidden_size)) is not None:
                stack.callback(watch(i, mlp[0].get_submodule(mlp[1].out)).remove)
        stack.enter_context(unpack_temporarily(runner.model))
        recompute_logits(runner, slot, start, tokens, shared_copy=WeightSharingCopy(runner.model))
    return contributions


def narrow_mlps(runner: Runner, columns: Mapping[int, Int[Tensor, " k"]]) -> WeightSharingCopy:
    """Return a copy of a model with narrowed MLPs. It shares all weights except those of the narrowed MLPs.

    Args:
        runner: runner of the whole model.
        columns: layer → indices of the MLP columns that remain, equally many in each of these layers. Other layers keep
            all columns.
    """
    with torch.inference_mode(False), torch.no_grad():  # parameters created here need version counters
        layers = [
            _narrow(layer, columns[i], runner.hidden_size) if i in columns else layer
            for i, layer in enumerate(runner.layers)
        ]
        model = with_layers(runner.model, layers)
        return WeightSharingCopy(model, None if runner.lean is None else _lean(runner.lean, model, columns))


def _lean(whole: LeanDecoder, model: PreTrainedModel, columns: Mapping[int, Tensor]) -> LeanDecoder:
    """Return a decoder with few operations per layer for a model with narrowed MLPs.

    It is compiled if the whole model's decoder is compiled, all layers are narrowed, and weights are not int8.
    """
    layers, shared_copy = decoder_layers(model)[1], copy.copy(whole)
    shared_copy.layers = [
        layer.with_mlp(layers[i].get_submodule("mlp")) if i in columns else layer
        for i, layer in enumerate(whole.layers)
    ]
    is_compiled = whole.fused is not None and len(columns) == len(layers) and weight_dtype(model) != torch.int8
    shared_copy.fused = FusedDecoder.from_model(model, whole.capacity) if is_compiled else None
    return shared_copy


def _find_mlp(layer: nn.Module, size: int) -> tuple[nn.Module, FeedForward] | None:
    name = name_of(layer, 1)
    module = None if name is None else layer.get_submodule(name)
    parts = None if module is None else feed_forward_of(module, size)
    return None if module is None or parts is None else (module, parts)


def _narrow(layer: nn.Module, columns: Int[Tensor, " k"], size: int) -> nn.Module:
    mlp, name = _find_mlp(layer, size), name_of(layer, 1)
    assert mlp is not None
    assert name is not None
    (module, parts), shared_copy = mlp, shallow_copy(layer)
    inner = shallow_copy(module)
    for part in parts.into:
        is_fused = _weight(module.get_submodule(part)).shape[0] > parts.width  # gate and up in one
        _replace_linear(inner, part, torch.cat([columns, columns + parts.width]) if is_fused else columns, 0)
    _replace_linear(inner, parts.out, columns, 1)
    shared_copy._modules[name] = inner
    return shared_copy


def _replace_linear(module: nn.Module, name: str, chosen: Int[Tensor, " k"], dim: int) -> None:
    """Replace a linear layer of an MLP by a linear layer with some of its rows or columns.

    Args:
        module: shallow copy of an MLP, which is changed.
        name: name of the linear layer in the module.
        chosen: indices of the rows or columns that remain.
        dim: 0: rows (outputs); 1: columns (inputs).
    """
    *path, last = name.split(".")
    for part in path:
        module._modules[part] = shallow_copy(module.get_submodule(part))
        module = module.get_submodule(part)
    linear: Any = module.get_submodule(last)
    new = shallow_copy(linear)
    new._parameters = dict(linear._parameters)
    is_transposed = isinstance(linear, Conv1D)
    weight = linear.weight.detach().index_select(dim ^ is_transposed, chosen).contiguous()
    new.weight = nn.Parameter(weight, requires_grad=False)
    if dim == 0 and linear.bias is not None:
        new.bias = nn.Parameter(linear.bias.detach()[chosen], requires_grad=False)
    outputs, inputs = new.weight.shape[::-1] if is_transposed else new.weight.shape
    if is_transposed:
        new.nf, new.nx = outputs, inputs
    else:
        new.out_features, new.in_features = outputs, inputs
    for cache_name in ("_matrix", "_seen", "int8"):  # cached copies of the whole weight
        new.__dict__.pop(cache_name, None)
    module._modules[last] = new


def _weight(part: Any) -> Float[Tensor, "o i"]:
    return part.weight.t() if isinstance(part, Conv1D) else part.weight
