"""How EAGLE-3 learns: from the target's laws alone, over its draft vocabulary, in drafts as it will meet them."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.methods.drafters.eagle_3 import Eagle3Net
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.training.family.drafter import Curve, Teacher
from workbench.training.family.fusing import SOME, guessed, sizes, steady, tapped, taps_in, taps_of
from workbench.training.family.lesson import Course, begun, keeping
from workbench.training.family.unrolled import train_unrolled
from workbench.training.heads.trainer import begin_at
from workbench.training.loop import RunResult

__all__ = ["GOES_ON", "keeps", "taps_of", "train"]
SHARE = 4
"""Of so many of the target's tokens its own LM head has one, unless it is told otherwise: as released, 32,000 of
128,256."""
LATER = 0.8
"""Weight of each step's loss over that of the step before."""
GOES_ON = True
"""From a finished layer of EAGLE's, whose weights say much the same of what enters there."""
SAME = ("norm_embed.weight", "out.weight", "between.weight", "gate_up.weight", "down.weight", "after.weight")
"""Of its weights, those that are these."""


def keeps(options: Any, teacher: Teacher) -> int:
    """Size of the draft vocabulary."""
    if options.draft_vocab_size:
        return options.draft_vocab_size
    return max(1, len(teacher.head) // SHARE) if options.head_learns else options.vocabulary


def train(course: Course) -> tuple[RunResult, Curve]:
    """Train the layer, its fusion and its LM head, where it has one: `ttt` steps of a draft, the i-th weighing 0.8ⁱ.

    It may go on from a finished layer of EAGLE's. The paper's does not, and learns from half a million dialogues. Where
    there are few it matters: of SmolLM2's held-out tokens it said 39% after 39,000, and a fresh one 25% after 330,000.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3.2; the weights 0.8ⁱ are those of the released code.

    Raises:
        ParameterError: the readings hold nothing of a layer that is to be fused; or the finished layer that it is to go
            on from has another form.
    """
    options, teacher, taps = course.options, course.teacher, taps_in(course)
    net = begun(options.seed, lambda: fresh(options, course, taps))
    size = sizes(course, taps)
    steady(net.fuse, size)
    if course.finished is not None:
        go_on(course, net, course.finished, size)

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
    """A net whose LM head, where it has one, begins as the target's, over the tokens that it keeps.

    Raises:
        ParameterError: it is to go on from a layer that has what this one does not.
    """
    table, layer = course.table, course.finished
    heads, ffn = options.heads, options.ffn
    if layer is not None:
        if other := set(layer.sizes) - {"width", "heads", "ffn"}:
            raise ParameterError(
                f"The layer in {options.begin} has {', '.join(sorted(other))} of its own, which EAGLE-3's cannot have.",
                "Begin with one of `workbench train chat-heads --set method=eagle`, or leave `begin` out.",
            )
        heads, ffn = layer.heads, layer.down.in_features
    net = Eagle3Net(table.shape[1], heads, ffn, taps, len(table) if options.head_learns else 0)
    begin_at(net, course.teacher.last_norm)
    if not net.speaks:
        return net
    with torch.no_grad():
        net.lm_head.weight.copy_(table)
        net.d2t.copy_(course.kept - torch.arange(len(table), device=table.device))
    return net


@torch.no_grad()
def go_on(course: Course, net: Eagle3Net, layer: FeatureNet, size: Float[Tensor, " TD"]) -> None:
    """Begin with a finished layer of EAGLE's, as near as that can be said of other inputs.

    Its stream is x = A e + B f, of the token's embedding and the target's feature, each normed, and queries, keys and
    values are made of x normed. Here they are made of e and the stream; that begins at B f, as near as the layers that
    are fused tell it. A e is missing from the stream itself, and is left to learn.

    Args:
        course: whose readings tell what streams and features are like.
        net: that begins.
        layer: that is finished.
        size: of the numbers that are fused, see `steady`.
    """
    layer = layer.to(course.device)
    for_token, for_feature = layer.fuse.weight.chunk(2, -1)

    def part(features: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        return F.linear(layer.norm_feature(features), for_feature)

    net.fuse.weight.copy_(guessed(course, net.taps, size, part))
    texts = [course.readings.dialogue(row) for row in course.readings.part(held=False)[:SOME]]
    features = torch.cat([text.features[1:-1].float() for text in texts])
    following = course.teacher.embedding[torch.cat([text.ids[2:] for text in texts])]
    of_feature, of_pair = (rms(x) for x in (part(features), layer.pairs(following, features)))
    asked = layer.qkv.weight * (layer.before.get_parameter("weight") / of_pair)
    for name in SAME:
        net.get_parameter(name).copy_(layer.get_parameter(name))
    net.qkv.weight.copy_(torch.cat([asked @ for_token, asked * of_feature], -1))


def rms(x: Float[Tensor, "n D"]) -> Float[Tensor, ""]:
    """How large rows are, the mean of their root mean squares."""
    return x.square().mean(-1).sqrt().mean()
