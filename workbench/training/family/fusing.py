"""Fusion of a target's hidden states from several layers: input scales, initialisation, and scaled training.

The hidden states are not normalised, and their magnitudes differ widely: 3 to 25 on average, with single values up to
300. No learning rate suits such inputs, so the fusion's weights are trained as if the inputs had magnitude 1. Shapes: T
captured layers of D values each are concatenated to T · D values per position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.errors import ParameterError
from workbench.methods.eagle_3.drafter import default_capture_layers
from workbench.training.family.drafter import pad_and_stack
from workbench.training.family.head_training import TrainingSetup

SCALE_TEXTS, MIN_SCALE = 64, 2.0**-10
"""Number of texts on which the scales of hidden states are measured, and the smallest scale that divides them."""
POSITIONS_PER_INPUT = 16
"""Number of text positions, per dimension of the input, to which the initial fusion matrix is fitted."""
RIDGE = 1e-3
"""Ridge term added to the mean square of each scaled input in the initial fusion's regression.

It makes redundant inputs harmless.
"""


def choose_capture_layers(options: Any, layers: int) -> tuple[int, ...]:
    """Return the target's layers whose hidden states are fused: those that the options name, or the default ones.

    Raises:
        ParameterError: the target has too few layers.
    """
    try:
        return options.taps or default_capture_layers(layers)
    except ValueError as error:
        raise ParameterError(
            f"The head cannot be trained: {error}.", "Use a method whose head reads only one layer of the target."
        ) from None


def check_capture_layers(setup: TrainingSetup) -> tuple[int, ...]:
    """Return the target's layers whose hidden states are fused; check that the readings (stored states) have them.

    Raises:
        ParameterError: the readings lack the hidden states of one of these layers.
    """
    options, captured = setup.options, setup.readings.facts["taps"]
    taps = choose_capture_layers(options, setup.teacher.config.num_hidden_layers)
    if missing := [tap for tap in taps if tap not in captured]:
        raise ParameterError(
            f"The stored hidden states (readings) in {options.readings} lack the target's layer {missing[0]}.",
            f"Create readings with taps={','.join(map(str, taps))} in another folder.",
        )
    return taps


def load_fusion_batch(
    setup: TrainingSetup, rows: list[int], capture_layers: tuple[int, ...]
) -> Float[Tensor, "B n TD"]:
    """Return the captured hidden states of several dialogues, concatenated over layers and padded to one length."""
    return pad_and_stack([load_fusion_input(setup, row, capture_layers) for row in rows])


def load_fusion_input(setup: TrainingSetup, row: int, capture_layers: tuple[int, ...]) -> Float[Tensor, "n TD"]:
    """Return the captured hidden states of one dialogue, concatenated over the T layers: the inputs of the fusion."""
    return torch.cat([setup.readings.hidden_states(f"tap-{tap}", row) for tap in capture_layers], -1).float()


def measure_scales(setup: TrainingSetup, capture_layers: tuple[int, ...]) -> Float[Tensor, " TD"]:
    """Return the scale of each of the fusion's T · D inputs (root mean square over texts), rounded to a power of 2.

    The texts' first tokens are left out: hidden states at attention sinks are a thousand times as large.
    """
    rows = setup.readings.split_indices(held_out=False)[:SCALE_TEXTS]
    mean_squares = (
        torch.cat([load_fusion_input(setup, row, capture_layers)[1:] for row in rows]).square().mean(0).sqrt()
    )
    return mean_squares.clamp_min(MIN_SCALE).log2().round().exp2()


def fit_fusion(
    setup: TrainingSetup,
    capture_layers: tuple[int, ...],
    scales: Float[Tensor, " TD"],
    regression_target: Callable[[Tensor], Tensor],
) -> Float[Tensor, "D TD"]:
    """Return the fusion matrix that best predicts a function of the target's features, by ridge regression.

    Args:
        setup: training setup with the texts.
        capture_layers: the target's layers whose hidden states are fused.
        scales: scale (root mean square) of each input of the fusion, by which the input is divided.
        regression_target: function of the target's features [n, D] that returns the output that the fusion should have
            at these positions.
    """
    squares, products, n = scales.new_zeros(len(scales), len(scales)), list[Tensor](), 0
    for row in setup.readings.split_indices(held_out=False):
        x, y = (
            load_fusion_input(setup, row, capture_layers)[1:] / scales,
            regression_target(setup.readings.dialogue(row).features[1:].float()),
        )
        squares = torch.addmm(squares, x.mT, x)
        products = [x.mT @ y + (products[0] if products else 0)]
        n += len(x)
        if n >= POSITIONS_PER_INPUT * len(scales):
            break
    squares.diagonal().add_(RIDGE * n)
    return torch.cholesky_solve(products[0].double(), torch.linalg.cholesky(squares.double())).mT.float()


def normalise_inputs(layer: nn.Linear, scales: Float[Tensor, " i"]) -> None:
    """Make a layer train as if its inputs were divided by `scales`, while its saved weights apply to undivided inputs.

    Dividing the inputs or the weights by the scales gives the same outputs. Scales are powers of 2, so that saving and
    loading changes no weight.
    """

    def scale_inputs(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0] / scales.to(inputs[0].device), *inputs[1:])

    def scale_weights(by: Tensor) -> Callable[..., None]:
        def change(_: nn.Module, weights: dict[str, Tensor], prefix: str, *__: Any) -> None:
            name = f"{prefix}weight"
            weights[name] = weights[name] * by.to(weights[name].device)

        return change

    layer.register_forward_pre_hook(scale_inputs)
    layer.register_state_dict_post_hook(scale_weights(1 / scales))
    layer.register_load_state_dict_pre_hook(scale_weights(scales))
