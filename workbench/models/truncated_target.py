"""Build a truncated target: a model's first layers, or replacements for them, over the model's own KV cache."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from workbench.kernels.fused import FusedDecoder
from workbench.kernels.layers import shallow_copy, with_layers
from workbench.kernels.lean import LeanDecoder, LeanLayer
from workbench.kernels.quantised import weight_dtype
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.models.runner import Runner


def truncate_target(runner: Runner, layers: Sequence[nn.Module]) -> WeightSharingCopy:
    """Return a truncated target: embedding, the given first layers, final norm and LM head.

    The model's own layers give bit-identical results in the truncated target. It uses a lean decoder (few operations
    per layer) or a compiled one if the whole model does, but no compiled decoder for int8 weights.

    Args:
        runner: runner of the whole model.
        layers: first layers, the model's own or replacements; with a lean decoder they must have the same architecture.
    """
    with torch.inference_mode(False), torch.no_grad():  # parameters created here need version counters
        model, whole = with_layers(runner.model, layers, range(len(layers))), runner.lean
        if whole is None:
            return WeightSharingCopy(model)
        lean: LeanDecoder = copy.copy(whole)
        lean.layers = [LeanLayer(layer) for layer in layers]
        is_compiled = whole.fused is not None and weight_dtype(model) != torch.int8
        lean.fused = FusedDecoder.from_model(model, whole.capacity) if is_compiled else None
        return WeightSharingCopy(model, lean)


def with_weights(layer: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a decoder layer with some weights replaced; the copy shares all other weights.

    Args:
        layer: layer to copy.
        weights: replaced weights by name ("self_attn.q_proj.weight").
    """
    shared_copy = shallow_copy(layer)
    for name, weight in weights.items():
        module, (*path, last) = shared_copy, name.split(".")
        for part in path:
            module._modules[part] = shallow_copy(module.get_submodule(part))
            module = module.get_submodule(part)
        parameter = module.get_parameter(last)
        module._parameters = {
            **module._parameters,
            last: nn.Parameter(weight.detach().to(parameter), requires_grad=False),
        }
        for cache_name in ("_matrix", "_seen", "int8"):  # cached copies of the layer's weight
            module.__dict__.pop(cache_name, None)
    return shared_copy
