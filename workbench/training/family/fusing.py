"""Fusing a target's streams of several depths: what they are like, how a fusion begins, and how it learns.

The streams are as large as the target left them, and of very different sizes: 3 to 25 on average, single numbers of
them 300. One rate suits no such inputs, so that all that is learnt about them is learnt as if they were of size 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.errors import ParameterError
from workbench.methods.drafters.eagle_3 import usual_taps
from workbench.training.family.drafter import beside
from workbench.training.family.lesson import Course

SOME, LEAST = 64, 2.0**-10
"""Texts of which the streams' sizes are taken, and the least size of a number."""
PLACES = 16
"""Places from which a fusion is guessed, for each number that enters it."""
RIDGE = 1e-3
"""What is added to the mean square of each number that enters, so that streams that say the same do not matter."""


def taps_of(options: Any, layers: int) -> tuple[int, ...]:
    """The layers that are fused; these must be among the readings' taps.

    Raises:
        ParameterError: the target has too few.
    """
    try:
        return options.taps or usual_taps(layers)
    except ValueError as error:
        raise ParameterError(f"It cannot be trained: {error}.", "Take a method that reads one layer.") from None


def taps_in(course: Course) -> tuple[int, ...]:
    """The layers that are fused, whose streams are in the readings.

    Raises:
        ParameterError: the readings hold nothing of one of them.
    """
    options, there = course.options, course.readings.facts["taps"]
    taps = taps_of(options, course.teacher.config.num_hidden_layers)
    if missing := [tap for tap in taps if tap not in there]:
        raise ParameterError(
            f"{options.readings} holds nothing of layer {missing[0]}.",
            f"Make readings with taps={','.join(map(str, taps))} in another folder.",
        )
    return taps


def tapped(course: Course, rows: list[int], taps: tuple[int, ...]) -> Float[Tensor, "B n TD"]:
    """The target's streams that are fused, dialogues side by side."""
    return beside([entering(course, row, taps) for row in rows])


def entering(course: Course, row: int, taps: tuple[int, ...]) -> Float[Tensor, "n TD"]:
    """The target's streams that are fused, of one dialogue."""
    return torch.cat([course.readings.stream(f"tap-{tap}", row) for tap in taps], -1).float()


def sizes(course: Course, taps: tuple[int, ...]) -> Float[Tensor, " TD"]:
    """How large each number of the streams that are fused is, a power of 2 (root mean square, over some texts).

    Their first tokens are left out: what targets let attention rest on is a thousand times as large there.
    """
    some = course.readings.part(held=False)[:SOME]
    found = torch.cat([entering(course, row, taps)[1:] for row in some]).square().mean(0).sqrt()
    return found.clamp_min(LEAST).log2().round().exp2()


def guessed(
    course: Course, taps: tuple[int, ...], size: Float[Tensor, " TD"], wanted: Callable[[Tensor], Tensor]
) -> Float[Tensor, "D TD"]:
    """The fusion that comes nearest to something that is known of the target's features: ridge regression.

    Args:
        course: whose texts are read.
        taps: the layers that are fused.
        size: of the numbers that enter, by which they are divided.
        wanted: the target's features [n, D] → what the fusion is to make of the streams of the same places.
    """
    squares, products, n = size.new_zeros(len(size), len(size)), list[Tensor](), 0
    for row in course.readings.part(held=False):
        x, y = entering(course, row, taps)[1:] / size, wanted(course.readings.dialogue(row).features[1:].float())
        squares = torch.addmm(squares, x.mT, x)
        products = [x.mT @ y + (products[0] if products else 0)]
        n += len(x)
        if n >= PLACES * len(size):
            break
    squares.diagonal().add_(RIDGE * n)
    return torch.cholesky_solve(products[0].double(), torch.linalg.cholesky(squares.double())).mT.float()


def steady(layer: nn.Linear, size: Float[Tensor, " i"]) -> None:
    """Let a layer learn as if its inputs were divided by their sizes; its saved weights take them as they are.

    Both are the same function. Sizes are powers of 2, so that what is saved and read again is what it was.
    """

    def divided(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0] / size.to(inputs[0].device), *inputs[1:])

    def times(by: Tensor) -> Callable[..., None]:
        def change(_: nn.Module, weights: dict[str, Tensor], prefix: str, *__: Any) -> None:
            name = f"{prefix}weight"
            weights[name] = weights[name] * by.to(weights[name].device)

        return change

    layer.register_forward_pre_hook(divided)
    layer.register_state_dict_post_hook(times(1 / size))
    layer.register_load_state_dict_pre_hook(times(size))
