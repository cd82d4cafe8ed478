"""Training of probes: learned inputs from which a frozen target predicts later tokens in its own forward pass.

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
from workbench.methods.drafters.medusa import RANKS
from workbench.methods.drafters.probe_drafter import ProbeLayout, ProbeNet, probe_layout
from workbench.models.pretrained import load_model
from workbench.training.family.drafter import Teacher, load_batch
from workbench.training.family.head_training import (
    EVAL_BATCH_SIZE,
    TrainingSetup,
    answer_continues,
    build_seeded,
    sample_indices,
    shift_left,
    sum_losses,
)
from workbench.training.heads.losses import LossInputs, WeightedLoss
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve

MAX_ANCHORS = 24
"""Largest number of positions per text that are followed by probes."""


@dataclass(frozen=True, slots=True)
class ProbedTexts:
    """Texts with probes after some positions of each.

    Attributes:
        ids: padded texts, int64 [B, n].
        at: position that each probe follows, int64 [B, P].
        layout: layout of the P probes after c positions, the same for all texts.
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
"""(net, target, texts with probes) → inputs of the target's LM head at the probes, [B, P, D]."""


def draft_vocabulary_size(options: Any, teacher: Teacher) -> int:
    """Return the vocabulary size: the target itself drafts, with all of its tokens."""
    return len(teacher.lm_head)


def train_probes(
    setup: TrainingSetup,
    run_probes: RunProbes,
    loss_decay: float,
    init_net: Callable[[Any, Any], None] = lambda net, model: None,
) -> tuple[RunResult, Curve]:
    """Train the probes; the target's weights do not change.

    Args:
        setup: training setup.
        run_probes: runs the target on the probes.
        loss_decay: weight of each probe's loss relative to the one before.
        init_net: sets the initial weights of a new net.
    """
    options, teacher = setup.options, setup.teacher
    model = load_model(options.target, setup.device, torch.float32).requires_grad_(False)
    table, loss = teacher.lm_head, WeightedLoss.parse(options.loss)

    def build_untrained() -> ProbeNet:
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        with torch.no_grad():
            init_net(net, model)
        return net

    net = build_seeded(options.seed, build_untrained)

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = load_batch(setup.readings, rows)
        losses: dict[str, Tensor] = {}
        with half_precision(options.half):
            sample = sample_anchors(answer, MAX_ANCHORS, generator)
            for step, (states, truth) in enumerate(guesses(net, model, run_probes, ids, features, sample)):
                with torch.no_grad():
                    target_logits = F.linear(truth, table)
                logits = net.probe_logits(F.linear(states, table))[:, 0]
                guess = states.mean(1).float()
                losses[f"token {step + 1}"], _ = loss(LossInputs(guess, truth, logits.float(), target_logits.float()))
        shares = [loss_decay**step / net.levels for step in range(len(losses))]
        return int(answer.sum()), losses, sum_losses([a * b for a, b in zip(shares, losses.values(), strict=True)])

    def measure() -> dict[str, float]:
        net.accuracy = tuple(map(tuple, hit_rates(net, model, run_probes, setup)))
        return {f"agreement {step + 1}": row[0] for step, row in enumerate(net.accuracy)}

    with unpack_temporarily(model):  # packed products have no gradients
        return setup.run(net, step_losses, measure, vocab_size=len(teacher.lm_head))


@dataclass(frozen=True, slots=True)
class ProbeAnchors:
    """Positions of texts that are followed by probes, equally many per text.

    Attributes:
        at: the positions, int64 [B, c].
        answer: positions that predict a token of the answer, bool [B, n].
    """

    at: Int[Tensor, "B c"]
    answer: Bool[Tensor, "B n"]


def sample_anchors(answer: Bool[Tensor, "B n"], n: int, generator: torch.Generator) -> ProbeAnchors:
    """Sample at most n positions of each text after which there is an answer token for a probe to predict."""
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
    """Yield per probe the inputs of the target's LM head at the probe, and the features of the true text there.

    Probe j (from 1) after position s has the position s + j, that of the true token; the feature at s + j predicts the
    token that it should predict.

    Args:
        net: computes the probes.
        model: the target, with frozen weights.
        run_probes: runs the target on the probes.
        ids: padded texts.
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


@torch.inference_mode()
def hit_rates(net: ProbeNet, model: Any, run_probes: RunProbes, setup: TrainingSetup) -> list[list[float]]:
    """Return how often the r-th best guess of each probe is the target's most probable token, r = 1 … 10: [m, 10]."""
    hits = torch.zeros(net.levels, RANKS, device=setup.device)
    total = hits.new_zeros(net.levels)
    generator = torch.Generator().manual_seed(0)
    for start in range(0, len(setup.held_out), EVAL_BATCH_SIZE):
        ids, features, _, answer = load_batch(setup.readings, setup.held_out[start : start + EVAL_BATCH_SIZE])
        with half_precision():
            sample = sample_anchors(answer, MAX_ANCHORS, generator)
            for step, (states, truth) in enumerate(guesses(net, model, run_probes, ids, features, sample)):
                logits = net.probe_logits(F.linear(states, setup.teacher.lm_head))[:, 0]
                target_tokens = setup.teacher.greedy_tokens(truth)
                hits[step] += (logits.topk(RANKS, dim=-1).indices == target_tokens[:, None]).float().sum(0)
                total[step] += len(target_tokens)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
