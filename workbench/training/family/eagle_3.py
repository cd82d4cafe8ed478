"""How EAGLE-3 learns: from the target's laws alone, over its draft vocabulary, in drafts as it will meet them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.core.errors import ParameterError
from workbench.methods.drafters.eagle_3 import Eagle3Net, usual_taps
from workbench.training.family.drafter import Curve, Teacher, beside, together
from workbench.training.family.lesson import HELD_ROWS, Course, begun, on, some_of, still
from workbench.training.heads.losses import Places, Weighted
from workbench.training.heads.trainer import begin_at
from workbench.training.loop import RunResult
from workbench.training.models import half_precision

SHARE = 4
"""Of so many of the target's tokens it proposes one, unless it is told otherwise: as released, 32,000 of 128,256."""
LATER = 0.8
"""Weight of each step's loss over that of the step before."""


def keeps(options: Any, teacher: Teacher) -> int:
    """Size of the draft vocabulary."""
    return options.draft_vocab_size or max(1, len(teacher.head) // SHARE)


def taps_of(options: Any, layers: int) -> tuple[int, ...]:
    """The layers that are fused; these must be among the readings' taps.

    Raises:
        ParameterError: the target has too few.
    """
    try:
        return options.taps or usual_taps(layers)
    except ValueError as error:
        raise ParameterError(f"EAGLE-3 cannot be trained: {error}.", "Take a method that reads one layer.") from None


def train(course: Course) -> tuple[RunResult, Curve]:
    """Train the layer, its fusion and its LM head: `ttt` steps of a draft, the i-th weighing 0.8ⁱ.

    A place counts where the target's likeliest token is in the draft vocabulary; the mean is over those that count, so
    that how many they are does not change how fast it learns.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3.2; the weights 0.8ⁱ are those of the released code.

    Raises:
        ParameterError: the readings hold nothing of a layer that is to be fused.
    """
    options, teacher, readings = course.options, course.teacher, course.readings
    taps = taps_of(options, teacher.config.num_hidden_layers)
    if missing := [tap for tap in taps if tap not in readings.facts["taps"]]:
        raise ParameterError(
            f"{options.readings} holds nothing of layer {missing[0]}.",
            f"Make readings with taps={','.join(map(str, taps))} in another folder.",
        )
    loss = Weighted.parse(options.loss)
    net = begun(options.seed, lambda: fresh(options, course, taps))

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = together(readings, rows)
        named, total = dict[str, Tensor](), torch.zeros(())
        with half_precision(options.half):
            streams = tapped(course, rows, taps)
            for step, (state, use) in enumerate(steps(net, course, ids, streams, answer, options.ttt)):
                some = some_of(int(use.sum()), options.places, generator)
                truth, guess = on(features, step + 1)[:, :-1][use][some].float(), state[use][some]
                said = teacher.logits(truth)
                counts = torch.isin(said.argmax(-1), course.kept)
                if counts.any():
                    logits, wanted = net.logits(guess[counts]).float(), said[counts][:, course.kept]
                    found, _ = loss(Places(guess[counts].float(), truth[counts], logits, wanted))
                    named[f"step {step + 1}"] = found
                    total = total + LATER**step * found
        return int(answer.sum()), named, total

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        right, count = torch.zeros(options.ttt), torch.zeros(options.ttt)
        for start in range(0, len(course.held), HELD_ROWS):
            rows = course.held[start : start + HELD_ROWS]
            ids, features, _, answer = together(readings, rows)
            with half_precision(options.half):
                streams = tapped(course, rows, taps)
                for step, (state, use) in enumerate(steps(net, course, ids, streams, answer, options.ttt)):
                    truth = on(features, step + 1)[:, :-1][use]
                    theirs = torch.cat([teacher.logits(part).argmax(-1) for part in truth.split(512)])
                    right[step] += (course.kept[net.logits(state[use]).argmax(-1)] == theirs).sum()
                    count[step] += len(theirs)
        return {f"agreement {i + 1}": share for i, share in enumerate((right / count.clamp_min(1)).tolist())}

    return course.run(net, step_losses, measure, vocab_size=len(teacher.head))


def fresh(options: Any, course: Course, taps: tuple[int, ...]) -> Eagle3Net:
    """A net whose LM head begins as the target's, over the tokens that it keeps."""
    table = course.teacher.head[course.kept]
    net = Eagle3Net(table.shape[1], options.heads, options.ffn, taps, len(table))
    begin_at(net, course.teacher.last_norm)
    with torch.no_grad():
        net.lm_head.weight.copy_(table)
        net.d2t.copy_(course.kept - torch.arange(len(table)))
    return net


def tapped(course: Course, rows: list[int], taps: tuple[int, ...]) -> Float[Tensor, "B n TD"]:
    """The target's streams that are fused, dialogues side by side."""
    streams = [beside([course.readings.stream(f"tap-{tap}", row) for row in rows]) for tap in taps]
    return torch.cat(streams, -1).float()


def steps(
    net: Eagle3Net, course: Course, ids: Tensor, streams: Float[Tensor, "B n TD"], answer: Bool[Tensor, "B n"], n: int
) -> Iterator[tuple[Float[Tensor, "B m D"], Bool[Tensor, "B m"]]]:
    """Of each step of a draft the states behind all pairs, m = n − 1, and where a token of an answer follows.

    The state of step i behind the pair at s guesses the token at s + 2 + i, which the feature at s + 1 + i decides.
    """
    embeds = course.teacher.embedding[ids]
    unrolled = net.unroll(lambda step: on(embeds, step + 1)[:, :-1], streams[:, :-1], n)
    for step, state in enumerate(unrolled):
        yield state, still(on(answer, 1), step)[:, :-1]
