"""The first layers of a model with other weights in some of their products, over the model's own cache."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.engine.fused import Fused
from workbench.engine.layers import shallow, with_layers
from workbench.engine.lean import LeanDecoder, LeanLayer
from workbench.engine.quantised import stored
from workbench.engine.runner import Runner
from workbench.engine.twin import Twin

Weights = Mapping[str, Float[Tensor, "o i"]]
"""Name of a product in its layer ("self_attn.q_proj") → its weight."""


def reweighted(runner: Runner, layers: Sequence[Weights]) -> Twin:
    """Embedding, as many of the first layers as there are weights for, final norm and LM head.

    It runs as the model does, to the bit where a weight is the same: lean where that is, compiled where that is (but
    not in bytes). Weights that are not given are shared.

    Args:
        runner: the whole.
        layers: of each of its first layers the weights that differ, of the shapes of its own.
    """
    with torch.inference_mode(False), torch.no_grad():  # weights know their versions
        instead = [_with(own, weights) for own, weights in zip(runner.layers, layers, strict=False)]
        model, whole = with_layers(runner.model, instead, range(len(instead))), runner.lean
        if whole is None:
            return Twin(model)
        lean: LeanDecoder = copy.copy(whole)
        lean.layers = [LeanLayer(layer) for layer in instead]
        is_compiled = whole.fused is not None and stored(model) != torch.int8
        lean.fused = Fused.of(model, whole.capacity) if is_compiled else None
        return Twin(model, lean)


def _with(layer: nn.Module, weights: Weights) -> nn.Module:
    """A copy of a layer that shares all weights but these, and what stands on the way to them."""
    twin = shallow(layer)
    for name, weight in weights.items():
        at, (*path, last) = twin, name.split(".")
        for part in path:
            at._modules[part] = shallow(at.get_submodule(part))
            at = at.get_submodule(part)
        own = at.get_submodule(last)
        new = shallow(own)
        like = own.get_parameter("weight")
        new._parameters = dict(own._parameters)
        new._parameters["weight"] = nn.Parameter(weight.detach().to(like), requires_grad=False)
        for copied in ("_matrix", "_seen", "int8"):  # of the model's weight
            new.__dict__.pop(copied, None)
        at._modules[last] = new
    return twin
