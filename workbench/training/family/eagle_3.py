"""How EAGLE-3 learns: from the target's laws alone, over its draft vocabulary, in drafts as it will meet them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.methods.drafters.eagle_3 import Eagle3Net, usual_taps
from workbench.training.family.drafter import Curve, Teacher, beside
from workbench.training.family.lesson import Course, begun, keeping
from workbench.training.family.unrolled import train_unrolled
from workbench.training.heads.trainer import begin_at
from workbench.training.loop import RunResult

SHARE = 4
"""Of so many of the target's tokens its own LM head has one, unless it is told otherwise: as released, 32,000 of
128,256."""
LATER = 0.8
"""Weight of each step's loss over that of the step before."""
SOME, LEAST = 64, 2.0**-10
"""Texts of which the streams' sizes are taken, and the least size of a number."""


def keeps(options: Any, teacher: Teacher) -> int:
    """Size of the draft vocabulary."""
    if options.draft_vocab_size:
        return options.draft_vocab_size
    return max(1, len(teacher.head) // SHARE) if options.head_learns else options.vocabulary


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


def train(course: Course) -> tuple[RunResult, Curve]:
    """Train the layer, its fusion and its LM head, where it has one: `ttt` steps of a draft, the i-th weighing 0.8ⁱ.

    The streams that are fused are as large as the target left them, and of very different sizes: 3 to 25 on average,
    single numbers of them 300. One rate suits no such inputs, so the fusion learns as if all were of size 1.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3.2; the weights 0.8ⁱ are those of the released code.

    Raises:
        ParameterError: the readings hold nothing of a layer that is to be fused.
    """
    options, teacher, taps = course.options, course.teacher, taps_in(course)
    net = begun(options.seed, lambda: fresh(options, course, taps))
    steady(net.fuse, sizes(course, taps))

    def theirs(state: Tensor) -> Tensor:
        return F.linear(net.said(state), course.table)

    return train_unrolled(
        course,
        net,
        lambda rows, _: tapped(course, rows, taps),
        net.logits if net.speaks else theirs,
        [LATER**step for step in range(options.ttt)],
        vocab_size=len(teacher.head),
        **({} if net.speaks else keeping(course.kept, teacher)),
    )


def fresh(options: Any, course: Course, taps: tuple[int, ...]) -> Eagle3Net:
    """A net whose LM head, where it has one, begins as the target's, over the tokens that it keeps."""
    table = course.table
    net = Eagle3Net(table.shape[1], options.heads, options.ffn, taps, len(table) if options.head_learns else 0)
    begin_at(net, course.teacher.last_norm)
    if not net.speaks:
        return net
    with torch.no_grad():
        net.lm_head.weight.copy_(table)
        net.d2t.copy_(course.kept - torch.arange(len(table), device=table.device))
    return net


def sizes(course: Course, taps: tuple[int, ...]) -> Float[Tensor, " TD"]:
    """How large each number of the streams that are fused is, a power of 2 (root mean square, over some texts).

    Their first tokens are left out: what targets let attention rest on is a thousand times as large there.
    """
    some = course.readings.part(held=False)[:SOME]
    streams = [torch.cat([course.readings.stream(f"tap-{tap}", row)[1:].float() for row in some]) for tap in taps]
    found = torch.cat([stream.square().mean(0).sqrt() for stream in streams])
    return found.clamp_min(LEAST).log2().round().exp2()


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


def tapped(course: Course, rows: list[int], taps: tuple[int, ...]) -> Float[Tensor, "B n TD"]:
    """The target's streams that are fused, dialogues side by side."""
    streams = [beside([course.readings.stream(f"tap-{tap}", row) for row in rows]) for tap in taps]
    return torch.cat(streams, -1).float()
