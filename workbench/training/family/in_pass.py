"""Training of probes: learned inputs from which a frozen target predicts later tokens in one forward pass.

The labels are the target's own distributions. The target first processes a batch of texts. Probes follow many
positions of each text. A second pass processes all probes over the KV cache of the first pass. The probes after one
position attend to the text up to it, but not to the probes after other positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.kernels.packed import unpack_temporarily
from workbench.methods import registry
from workbench.methods.common.probe_drafter import ProbeLayout, ProbeNet, probe_layout
from workbench.models.pretrained import load_model
from workbench.training.family.head_training import (
    TrainingSetup,
    answer_continues,
    build_seeded,
    sample_indices,
    shift_left,
)
from workbench.training.family.levels import AnswerBatch, train_levels
from workbench.training.family.options import ChatHeadOptions
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve

MAX_ANCHORS = 24
"""Largest number of positions per text that are followed by probes (learned inputs)."""


@dataclass(frozen=True, slots=True)
class ProbedTexts:
    """Batch of texts in which some positions are followed by probes (learned inputs).

    Attributes:
        ids: padded texts, int64 [B, n].
        at: position that each probe follows, int64 [B, P].
        layout: anchor, step and ensemble index of each of the P probes of a text; the same for all texts.
        mask: additive attention mask of the probes over text and probes, [B, 1, P, n + P].
        position_ids: positions of the probes in the sequence, int64 [B, P].
    """

    ids: Int[Tensor, "B n"]
    at: Int[Tensor, "B P"]
    layout: ProbeLayout
    mask: Float[Tensor, "B 1 P n_plus_P"]

    @property
    def position_ids(self) -> Int[Tensor, "B P"]:
        return self.at + self.layout.step + 1


RunProbes = Callable[[Any, Any, ProbedTexts], Tensor]
"""Type of a function (net, target, texts with probes) that runs the target on learned inputs (probes) after texts.

It returns the inputs of the target's LM head at the probes, [B, P, D].
"""


@dataclass
class ProbeOptions(ChatHeadOptions):
    """Options for training probes, learned inputs from which a frozen target predicts later tokens."""

    loss: str = "ce_soft:1"

    def draft_vocabulary_size(self, vocab_size: int) -> int:
        return vocab_size  # the target itself drafts, with all of its tokens


def train_probes(
    setup: TrainingSetup,
    run_probes: RunProbes,
    loss_decay: float,
    init_net: Callable[[Any, Any], None] = lambda net, model: None,
) -> tuple[RunResult, Curve]:
    """Train probes (learned inputs of a frozen target that predict later tokens); the target's weights do not change.

    Args:
        setup: target, data and options.
        run_probes: function that runs the target on the probes.
        loss_decay: weight of the loss of each probe relative to the probe before it.
        init_net: function (net, target) that sets the initial weights of a new net.
    """
    options, teacher = setup.options, setup.teacher
    model = load_model(options.target, setup.device, torch.float32).requires_grad_(False)
    table = teacher.lm_head

    def build_untrained() -> ProbeNet:
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        with torch.no_grad():
            init_net(net, model)
        return net

    net = build_seeded(options.seed, build_untrained)

    def predict(
        batch: AnswerBatch, generator: torch.Generator, places: int | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        ids, features, _, answer = batch
        anchors = sample_anchors(answer, MAX_ANCHORS, generator)
        for states, truth in guesses(net, model, run_probes, ids, features, anchors):
            yield states.mean(1).float(), net.probe_logits(F.linear(states, table))[:, 0], truth

    with unpack_temporarily(model):  # packed products have no gradients
        return train_levels(setup, net, net.levels, predict, "token", lambda level: loss_decay**level / net.levels)


@dataclass(frozen=True, slots=True)
class ProbeAnchors:
    """Positions of texts that are followed by probes (learned inputs), equally many in every text.

    Attributes:
        at: the positions, int64 [B, c].
        answer: positions that predict a token of the answer, bool [B, n].
    """

    at: Int[Tensor, "B c"]
    answer: Bool[Tensor, "B n"]


def sample_anchors(answer: Bool[Tensor, "B n"], n: int, generator: torch.Generator) -> ProbeAnchors:
    """Sample at most `n` positions of each text after which a probe (learned input) can predict an answer's token."""
    mask = answer_continues(answer, 1)
    candidates = [row.nonzero().flatten() for row in mask]
    n_cuts = max(1, min(n, max(map(len, candidates))))
    chosen_positions = torch.zeros(len(answer), n_cuts, dtype=torch.long, device=answer.device)
    for b, positions in enumerate(candidates):
        if len(positions):
            sample = positions[sample_indices(len(positions), n_cuts, generator)]
            chosen_positions[b] = sample[torch.arange(n_cuts) % len(sample)]
    return ProbeAnchors(chosen_positions, answer)


def guesses(
    net: ProbeNet,
    model: Any,
    run_probes: RunProbes,
    ids: Int[Tensor, "B n"],
    features: Float[Tensor, "B n D"],
    anchors: ProbeAnchors,
) -> Iterator[tuple[Float[Tensor, "N v D"], Float[Tensor, "N D"]]]:
    """Yield for each draft level the LM head's inputs at the probes, and the true text's features at these positions.

    Probe j (from 1) after position s has position s + j, like the true token at s + j. The label is the target's
    prediction from the feature at s + j of the true text.

    Args:
        net: net that computes the probes.
        model: the target, with frozen weights.
        run_probes: function that runs the target on the probes.
        ids: token ids of the padded texts.
        features: the target's features.
        anchors: positions that are followed by probes.
    """
    (rows, n), n_cuts = ids.shape, anchors.at.shape[1]
    layout = probe_layout((net.levels,) * n_cuts, net.ensemble, ids.device)
    positions = anchors.at[:, layout.anchor]  # [B, P]
    visible = torch.cat(
        [torch.arange(n, device=positions.device) <= positions[..., None], layout.mask.expand(rows, -1, -1)], -1
    )
    lowest = torch.finfo(model.dtype).min  # with another dtype than the model's, results are silently wrong
    mask = torch.zeros(visible.shape, dtype=model.dtype, device=positions.device).masked_fill(~visible, lowest)[:, None]
    states = run_probes(net, model, ProbedTexts(ids, positions, layout, mask)).view(
        rows, n_cuts, net.levels, net.ensemble, -1
    )
    for step in range(net.levels):
        in_answer = answer_continues(anchors.answer, step + 1).gather(1, anchors.at)
        truth = shift_left(features, step + 1).gather(1, anchors.at[..., None].expand(-1, -1, features.shape[2]))
        if in_answer.any():
            yield states[:, :, step][in_answer], truth[in_answer].float()
