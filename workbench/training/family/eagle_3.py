"""Training of EAGLE-3: on the target's distributions alone, over its draft vocabulary, in multi-step drafts."""

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
from workbench.training.family.head_training import TrainingSetup, begun, keeping
from workbench.training.family.unrolled import train_unrolled
from workbench.training.heads.trainer import begin_at
from workbench.training.loop import RunResult

__all__ = ["GOES_ON", "keeps", "taps_of", "train"]
SHARE = 4
"""By default, the share of the target's vocabulary that the head's own LM head has is 1 / SHARE: as released, 32,000 of
128,256 tokens."""
LATER = 0.8
"""Weight of each step's loss relative to the step before."""
GOES_ON = True
"""Training may start from a finished layer of EAGLE's, whose weights have similar functions."""
SAME = ("norm_embed.weight", "out.weight", "between.weight", "gate_up.weight", "down.weight", "after.weight")
"""Names of the weights that are copied unchanged from EAGLE's layer."""


def keeps(options: Any, teacher: Teacher) -> int:
    """Return the size of the draft vocabulary."""
    if options.draft_vocab_size:
        return options.draft_vocab_size
    return max(1, len(teacher.head) // SHARE) if options.head_learns else options.vocabulary


def train(course: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the layer, its fusion and its LM head, if it has one: `ttt` steps of a draft; step i has the weight 0.8ⁱ.

    It may start from a finished layer of EAGLE's. The paper's does not, and is trained on half a million dialogues.
    With few dialogues the start matters: of SmolLM2's held-out tokens it predicted 39% after 39,000 tokens; an
    untrained layer predicted 25% after 330,000.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3.2; the weights 0.8ⁱ are those of the released code.

    Raises:
        ParameterError: the readings lack the hidden states of a fused layer; or the finished layer to start from has
            another shape.
    """
    options, teacher, taps = course.options, course.teacher, taps_in(course)
    net = begun(options.seed, lambda: fresh(options, course, taps))
    size = sizes(course, taps)
    steady(net.fuse, size)
    if course.finished is not None:
        go_on(course, net, course.finished, size)

    def theirs(state: Tensor) -> Tensor:
        return F.linear(net.lm_head_input(state), course.table)

    return train_unrolled(
        course,
        net,
        lambda rows, _: tapped(course, rows, taps),
        net.logits if net.speaks else theirs,
        [LATER**step for step in range(options.ttt)],
        vocab_size=len(teacher.head),
        **({} if net.speaks else keeping(course.kept, teacher)),
    )


def fresh(options: Any, course: TrainingSetup, taps: tuple[int, ...]) -> Eagle3Net:
    """Return a net whose LM head, if it has one, is initialised with the target's rows of its tokens.

    Raises:
        ParameterError: it is to start from a layer with parts that this net lacks.
    """
    table, layer = course.table, course.finished
    heads, ffn = options.heads, options.ffn
    if layer is not None:
        if extra := set(layer.sizes) - {"width", "heads", "ffn"}:
            raise ParameterError(
                f"The layer in {options.begin} has {', '.join(sorted(extra))} of its own, which EAGLE-3's cannot have.",
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
def go_on(course: TrainingSetup, net: Eagle3Net, layer: FeatureNet, size: Float[Tensor, " TD"]) -> None:
    """Initialise the net from a finished layer of EAGLE's, as closely as the different inputs allow.

    EAGLE's residual stream is x = A e + B f, of the token's embedding e and the target's feature f, each normalised;
    queries, keys and values are computed from normalised x. Here they are computed from e and the stream. The stream is
    initialised to B f, as closely as it can be predicted from the fused layers. The term A e is missing from the stream
    itself, and is left to training.

    Args:
        course: training setup, whose readings provide the sizes of streams and features.
        net: the net to initialise.
        layer: the finished layer.
        size: sizes of the fused numbers, see `steady`.
    """
    layer = layer.to(course.device)
    for_token, for_feature = layer.fuse.weight.chunk(2, -1)

    def part(features: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        return F.linear(layer.norm_feature(features), for_feature)

    net.fuse.weight.copy_(guessed(course, net.taps, size, part))
    texts = [course.readings.dialogue(row) for row in course.readings.part(held=False)[:SOME]]
    features = torch.cat([text.features[1:-1].float() for text in texts])
    next_embeds = course.teacher.embedding[torch.cat([text.ids[2:] for text in texts])]
    of_feature, of_pair = (rms(x) for x in (part(features), layer.pairs(next_embeds, features)))
    qkv = layer.qkv.weight * (layer.before.get_parameter("weight") / of_pair)
    for name in SAME:
        net.get_parameter(name).copy_(layer.get_parameter(name))
    net.qkv.weight.copy_(torch.cat([qkv @ for_token, qkv * of_feature], -1))


def rms(x: Float[Tensor, "n D"]) -> Float[Tensor, ""]:
    """Return the mean of the rows' root mean squares."""
    return x.square().mean(-1).sqrt().mean()
