"""A model whose feed-forwards have some of their columns, over its own cache; and how much a text asks of each column.

A *column* of a feed-forward is one of its inner numbers: a row of what leads in (gate, up) and a column of what leads
out. Dropping it drops what it would add to the stream. A layer whose feed-forward is made otherwise (a mixture of
experts) is left whole.
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

from workbench.kernels.fused import Fused
from workbench.kernels.layers import decoder_layers, name_of, shallow, with_layers
from workbench.kernels.lean import LeanDecoder
from workbench.kernels.packed import unpacked
from workbench.kernels.quantised import stored
from workbench.kernels.segment import Slot
from workbench.kernels.weight_sharing import Twin
from workbench.models.runner import Runner
from workbench.models.side_passes import read_again


class FeedForward(NamedTuple):
    """The products of a feed-forward, by their names in it.

    Attributes:
        width: its columns.
        into: those that lead in, each from the stream to all columns, or to twice as many (gate and up in one).
        out: the one that leads back.
    """

    width: int
    into: tuple[str, ...]
    out: str


def feed_forward_of(module: nn.Module, size: int) -> FeedForward | None:
    """How a feed-forward is made; None where it is none of products in and one product out.

    Args:
        module: of a layer.
        size: width of the stream.
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
    """How much each column adds to the stream, on the average over tokens: |a| · ‖its weights out‖, by layer.

    Layers whose feed-forward is made otherwise are missing.

    Args:
        runner: the model.
        slot: nothing of it is changed.
        start: the first position that is read.
        tokens: what stands there, and behind it; one at least.
    """
    found: dict[int, Tensor] = {}

    def watch(layer: int, out: nn.Module) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            asked = args[0].flatten(0, -2).float().abs().mean(0)
            found[layer] = asked * _weight(out).float().norm(dim=0)

        return out.register_forward_pre_hook(hook)

    with contextlib.ExitStack() as stack:
        for i, layer in enumerate(runner.layers):
            if (made := _made(layer, runner.hidden_size)) is not None:
                stack.callback(watch(i, made[0].get_submodule(made[1].out)).remove)
        stack.enter_context(unpacked(runner.model))
        read_again(runner, slot, start, tokens, twin=Twin(runner.model))
    return found


def narrowed(runner: Runner, columns: Mapping[int, Int[Tensor, " k"]]) -> Twin:
    """The model with some columns of some feed-forwards, all of one number. Only these are copied.

    Args:
        runner: the whole.
        columns: those that stay, in order, by layer; other layers keep theirs.
    """
    with torch.inference_mode(False), torch.no_grad():  # weights know their versions
        layers = [
            _narrow(layer, columns[i], runner.hidden_size) if i in columns else layer
            for i, layer in enumerate(runner.layers)
        ]
        model = with_layers(runner.model, layers)
        return Twin(model, None if runner.lean is None else _lean(runner.lean, model, columns))


def _lean(whole: LeanDecoder, model: PreTrainedModel, columns: Mapping[int, Tensor]) -> LeanDecoder:
    """The same decoder with the feed-forwards of a narrowed model; compiled where the whole is, and all are alike."""
    layers, twin = decoder_layers(model)[1], copy.copy(whole)
    twin.layers = [
        own.fed_by(layers[i].get_submodule("mlp")) if i in columns else own for i, own in enumerate(whole.layers)
    ]
    is_compiled = whole.fused is not None and len(columns) == len(layers) and stored(model) != torch.int8
    twin.fused = Fused.of(model, whole.capacity) if is_compiled else None
    return twin


def _made(layer: nn.Module, size: int) -> tuple[nn.Module, FeedForward] | None:
    name = name_of(layer, 1)
    module = None if name is None else layer.get_submodule(name)
    made = None if module is None else feed_forward_of(module, size)
    return None if module is None or made is None else (module, made)


def _narrow(layer: nn.Module, columns: Int[Tensor, " k"], size: int) -> nn.Module:
    made, name = _made(layer, size), name_of(layer, 1)
    assert made is not None
    assert name is not None
    (module, of), twin = made, shallow(layer)
    inner = shallow(module)
    for part in of.into:
        both = _weight(module.get_submodule(part)).shape[0] > of.width  # gate and up in one
        _put(inner, part, torch.cat([columns, columns + of.width]) if both else columns, 0)
    _put(inner, of.out, columns, 1)
    twin._modules[name] = inner
    return twin


def _put(module: nn.Module, name: str, chosen: Int[Tensor, " k"], dim: int) -> None:
    """Put a product of a shallow copy in its own place with some of its rows (0: outputs) or columns (1: inputs)."""
    *path, last = name.split(".")
    for part in path:
        module._modules[part] = shallow(module.get_submodule(part))
        module = module.get_submodule(part)
    old: Any = module.get_submodule(last)
    new = shallow(old)
    new._parameters = dict(old._parameters)
    is_turned = isinstance(old, Conv1D)
    weight = old.weight.detach().index_select(dim ^ is_turned, chosen).contiguous()
    new.weight = nn.Parameter(weight, requires_grad=False)
    if dim == 0 and old.bias is not None:
        new.bias = nn.Parameter(old.bias.detach()[chosen], requires_grad=False)
    outputs, inputs = new.weight.shape[::-1] if is_turned else new.weight.shape
    if is_turned:
        new.nf, new.nx = outputs, inputs
    else:
        new.out_features, new.in_features = outputs, inputs
    for copied in ("_matrix", "_seen", "int8"):  # of the whole weight
        new.__dict__.pop(copied, None)
    module._modules[last] = new


def _weight(part: Any) -> Float[Tensor, "o i"]:
    return part.weight.t() if isinstance(part, Conv1D) else part.weight
