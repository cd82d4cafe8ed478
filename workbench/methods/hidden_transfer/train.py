"""Training of hidden transfer's matrices: gradients flow through the frozen layers to the pseudo hidden states."""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from workbench.core.errors import ParameterError
from workbench.kernels.layers import LayerSubsets, decoder_layers, override_layer_input, text_config
from workbench.methods.hidden_transfer.drafter import Transfers
from workbench.training.family.head_training import TrainingSetup
from workbench.training.family.in_pass import ProbedTexts, ProbeOptions, train_probes
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve


@dataclass
class Options(ProbeOptions):
    """Options for training the matrices of hidden transfer.

    Attributes:
        transfers: Number of future tokens whose hidden states are predicted.
        transfer_layer: Layer after which the hidden states of future tokens are predicted.
    """

    method: str = Transfers.kind
    transfers: int = 3
    transfer_layer: int = 4
    depth_shares: ClassVar[Mapping[str, int]] = {"transfer_layer": 3}


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the transfer matrices, which are initialised as the identity. All weights of the target are frozen.

    Raises:
        ParameterError: the target has no layer with the number `transfer_layer`.

    Source: Wu et al. 2024, Parallel decoding via hidden transfer, arXiv:2404.12022, §3 (distillation from the target's
    distribution at the true token's position; all steps have equal weight).
    """
    layer, layers = setup.options.transfer_layer, text_config(setup.teacher.config).num_hidden_layers
    if not 1 <= layer <= layers:
        raise ParameterError(f"transfer_layer={layer}, but the target has {layers} layers.", f"Use 1 to {layers}.")
    return train_probes(setup, run_probes, 1.0)


def run_probes(net: Transfers, model: Any, texts: ProbedTexts) -> Float[Tensor, "B P D"]:
    """Return the LM head's inputs at the pseudo hidden states, which enter the target after layer l."""
    _, layers = decoder_layers(model)
    layer_outputs: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        layer_outputs.append(output[0] if isinstance(output, tuple) else output)

    hook = layers[net.transfer_layer - 1].register_forward_hook(keep)
    try:
        with torch.no_grad():
            cache = DynamicCache()
            model.model(texts.ids, past_key_values=cache, use_cache=True)
    finally:
        hook.remove()
    n_positions = texts.at.shape[1] // net.levels
    index = texts.at[:, :: net.levels].unsqueeze(-1).expand(-1, n_positions, net.width)
    pseudo_states = net(layer_outputs[0].gather(1, index)).flatten(
        1, 2
    )  # in the layout's order: position by position, step by step
    if net.transfer_layer == len(layers):
        return model.model.norm(pseudo_states)
    upper_layers = LayerSubsets(model)(range(net.transfer_layer, len(layers)), ())
    with override_layer_input(layers[net.transfer_layer], pseudo_states):
        return upper_layers.model(
            inputs_embeds=pseudo_states,
            past_key_values=cache,
            attention_mask=texts.mask,
            position_ids=texts.position_ids,
            use_cache=True,
        )[0]
