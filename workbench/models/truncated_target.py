"""The beginning of a model, its first layers or others in their places, over the model's own cache."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from workbench.kernels.fused import Fused
from workbench.kernels.layers import shallow, with_layers
from workbench.kernels.lean import LeanDecoder, LeanLayer
from workbench.kernels.quantised import stored
from workbench.kernels.weight_sharing import Twin
from workbench.models.runner import Runner


def beginning(runner: Runner, layers: Sequence[nn.Module]) -> Twin:
    """Embedding, these in the places of as many first layers, final norm and LM head.

    It runs as the model does, to the bit where a layer is the same: lean where that is, compiled where that is (but not
    in bytes).

    Args:
        runner: the whole.
        layers: where it has lean ones, of the kind of its own.
    """
    with torch.inference_mode(False), torch.no_grad():  # weights know their versions
        model, whole = with_layers(runner.model, layers, range(len(layers))), runner.lean
        if whole is None:
            return Twin(model)
        lean: LeanDecoder = copy.copy(whole)
        lean.layers = [LeanLayer(layer) for layer in layers]
        is_compiled = whole.fused is not None and stored(model) != torch.int8
        lean.fused = Fused.of(model, whole.capacity) if is_compiled else None
        return Twin(model, lean)


def with_weights(layer: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a layer that shares all weights but these, which are named as in it: "self_attn.q_proj.weight"."""
    twin = shallow(layer)
    for name, weight in weights.items():
        at, (*path, last) = twin, name.split(".")
        for part in path:
            at._modules[part] = shallow(at.get_submodule(part))
            at = at.get_submodule(part)
        own = at.get_parameter(last)
        at._parameters = {**at._parameters, last: nn.Parameter(weight.detach().to(own), requires_grad=False)}
        for copied in ("_matrix", "_seen", "int8"):  # of the layer's weight
            at.__dict__.pop(copied, None)
    return twin
