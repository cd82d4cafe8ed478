"""Training of EAGLE-3: on the target's distributions alone, over its draft vocabulary, in multi-step drafts."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.eagle_3.drafter import Eagle3Net
from workbench.training.family.fusing import (
    SCALE_TEXTS,
    check_capture_layers,
    choose_capture_layers,
    fit_fusion,
    load_fusion_batch,
    measure_scales,
    normalise_inputs,
)
from workbench.training.family.head_training import TrainingSetup, build_seeded, draft_vocabulary_config
from workbench.training.family.options import LayerOptions
from workbench.training.family.unrolled import train_unrolled
from workbench.training.heads.trainer import init_weights
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve

VOCAB_DIVISOR = 4
"""Divisor of the target's vocabulary size, which gives the default size of the drafter's own LM head. The released
drafter's LM head has 32,000 of 128,256 tokens."""
LOSS_DECAY = 0.8
"""Weight of the loss of a draft step, relative to the weight of the previous step's loss."""
COPIED_WEIGHTS = ("norm_embed.weight", "out.weight", "between.weight", "gate_up.weight", "down.weight", "after.weight")
"""Names of the weights that an EAGLE-3 layer copies unchanged from an EAGLE layer at initialisation."""


@dataclass
class Options(LayerOptions):
    """Options for training EAGLE-3's layer.

    Attributes:
        head_learns: Give the layer an LM head of its own, as in the paper, initialised with the target's rows for the
            draft vocabulary. Otherwise it uses the target's LM head, as EAGLE does, and needs fewer training steps.
        draft_vocab_size: Size of the draft vocabulary in tokens; 0: the option `vocabulary`, or a quarter of the
            target's vocabulary if the layer has an LM head of its own.
        ttt: Number of draft steps that are unrolled in training (training-time test).
        taps: Target layers whose outputs are fused, counted from 1; none: a low, a middle and a high layer.
    """

    method: str = Eagle3Net.kind
    loss: str = "ce_soft:1"
    head_learns: bool = False
    draft_vocab_size: int = 0
    ttt: int = 3
    taps: tuple[int, ...] = ()
    starts_from_eagle: ClassVar[bool] = True
    """Whether training may start from a trained EAGLE layer: yes, most of its weights have a counterpart here."""

    def capture_layers(self, layers: int) -> tuple[int, ...]:
        return choose_capture_layers(self, layers)

    def draft_vocabulary_size(self, vocab_size: int) -> int:
        if self.draft_vocab_size:
            return self.draft_vocab_size
        return max(1, vocab_size // VOCAB_DIVISOR) if self.head_learns else self.vocabulary


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train EAGLE-3's layer, its fusion and its LM head, if it has one, on drafts of `ttt` steps.

    The loss of step i = 0, 1, … has the weight 0.8ⁱ. Training may start from a finished EAGLE layer. The paper starts
    from random weights, and trains on half a million dialogues. With few dialogues the start matters: a layer that
    started from EAGLE's predicted 39 % of SmolLM2's held-out tokens after training on 39,000 tokens; a layer that
    started from random weights predicted 25 % after 330,000 tokens.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3.2; the weights 0.8ⁱ are those of the released code.

    Raises:
        ParameterError: the training data lacks the hidden states of a fused layer, or the EAGLE layer from which the
            training starts has a different shape.
    """
    options, teacher, taps = setup.options, setup.teacher, check_capture_layers(setup)
    net = build_seeded(options.seed, lambda: build_net(options, setup, taps))
    size = measure_scales(setup, taps)
    normalise_inputs(net.fuse, size)
    if setup.start_layer is not None:
        init_from_eagle(setup, net, setup.start_layer, size)

    def target_head_logits(state: Tensor) -> Tensor:
        return F.linear(net.lm_head_input(state), setup.lm_head_rows)

    return train_unrolled(
        setup,
        net,
        lambda rows, _: load_fusion_batch(setup, rows, taps),
        net.logits if net.has_lm_head else target_head_logits,
        [LOSS_DECAY**step for step in range(options.ttt)],
        vocab_size=len(teacher.lm_head),
        **({} if net.has_lm_head else draft_vocabulary_config(setup.draft_vocabulary, teacher)),
    )


def build_net(options: Any, setup: TrainingSetup, capture_layers: tuple[int, ...]) -> Eagle3Net:
    """Return an untrained EAGLE-3 net.

    If it has its own LM head, that starts as the target's LM head over the draft vocabulary.

    Raises:
        ParameterError: the EAGLE layer from which the training starts has parts that this net lacks.
    """
    table, layer = setup.lm_head_rows, setup.start_layer
    heads, ffn = options.heads, options.ffn
    if layer is not None:
        if extra := set(layer.sizes) - {"width", "heads", "ffn"}:
            raise ParameterError(
                f"The layer in {options.begin} has weights that EAGLE-3's layer lacks: {', '.join(sorted(extra))}.",
                "Start from a layer of `workbench train chat-heads --set method=eagle`, or leave `begin` out.",
            )
        heads, ffn = layer.heads, layer.down.in_features
    net = Eagle3Net(table.shape[1], heads, ffn, capture_layers, len(table) if options.head_learns else 0)
    init_weights(net, setup.teacher.last_norm)
    if not net.has_lm_head:
        return net
    with torch.no_grad():
        net.lm_head.weight.copy_(table)
        net.d2t.copy_(setup.draft_vocabulary - torch.arange(len(table), device=table.device))
    return net


@torch.no_grad()
def init_from_eagle(setup: TrainingSetup, net: Eagle3Net, layer: FeatureNet, scales: Float[Tensor, " TD"]) -> None:
    """Initialise the net from a finished EAGLE layer, as closely as the different inputs allow.

    EAGLE's residual stream is x = A e + B f, where e is the token's embedding and f the target's feature, both
    normalised. Its queries, keys and values are computed from x, normalised. EAGLE-3's residual stream g has no term
    for e; its queries, keys and values are computed from e and g. The fusion is initialised so that g approximates B f,
    and the query, key and value weights so that A e and g replace x. The missing term A e of g is left to training.

    Args:
        setup: training setup, with the texts on which the approximation is computed.
        net: the net to initialise.
        layer: the finished EAGLE layer.
        scales: scale of each component of the concatenated hidden states, see `normalise_inputs`.
    """
    layer = layer.to(setup.device)
    for_token, for_feature = layer.fuse.weight.chunk(2, -1)

    def part(features: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        return F.linear(layer.norm_feature(features), for_feature)

    net.fuse.weight.copy_(fit_fusion(setup, net.taps, scales, part))
    texts = [setup.readings.dialogue(row) for row in setup.readings.split_indices(held_out=False)[:SCALE_TEXTS]]
    features = torch.cat([text.features[1:-1].float() for text in texts])
    next_embeds = setup.teacher.embedding[torch.cat([text.ids[2:] for text in texts])]
    of_feature, of_pair = (rms(x) for x in (part(features), layer.make_pairs(next_embeds, features)))
    qkv = layer.qkv.weight * (layer.before.get_parameter("weight") / of_pair)
    for name in COPIED_WEIGHTS:
        net.get_parameter(name).copy_(layer.get_parameter(name))
    net.qkv.weight.copy_(torch.cat([qkv @ for_token, qkv * of_feature], -1))


def rms(x: Float[Tensor, "n D"]) -> Float[Tensor, ""]:
    """Return the root mean square of the D entries of each of n vectors, averaged over the vectors."""
    return x.square().mean(-1).sqrt().mean()
