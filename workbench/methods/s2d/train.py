"""Training of S2D's drafter at all its sizes at once, on the target's distributions.

This is the sorted fine-tuning of the S2D paper. The layers of each size are the first layers of every larger size. So
they have two tasks: to predict at their own exit, and to compute the input of the later layers. The losses of all exits
have equal weights.
"""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.s2d.net import S2DNet
from workbench.training.distill import draft_model_losses
from workbench.training.family.drafter import load_batch
from workbench.training.family.head_training import (
    EVAL_BATCH_SIZE,
    TrainingSetup,
    build_seeded,
    draft_vocabulary_config,
    sample_indices,
)
from workbench.training.family.options import LayerOptions
from workbench.training.heads.losses import LossInputs, ce_soft
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve


@dataclass
class Options(LayerOptions):
    """Options for training S2D's drafters.

    Attributes:
        cond: Width of the layers.
        exits: Number of layers of each size of the drafter, ascending.
    """

    method: str = S2DNet.kind
    loss: str = "ce_soft:1"
    places: int = 2048
    cond: int = 96
    exits: tuple[int, ...] = (1, 2, 4)


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train all layers of S2D's drafter on the mean loss of its exits, at positions of prompts and answers.

    Only positions are used at which the target's most probable token is in the draft vocabulary.

    Source: Kavehzadeh et al. 2024, S2D, arXiv:2407.01955, §3 (sorted fine-tuning); the paper trains on the text.

    Raises:
        ParameterError: the loss is unknown, or it compares features, which a language model does not predict.
    """
    options, teacher, vocab = setup.options, setup.teacher, setup.draft_vocabulary
    loss, vocabulary = draft_model_losses(options.loss), len(teacher.lm_head)

    def build_untrained() -> S2DNet:
        shape = vars(options) | {"vocabulary": vocabulary}
        net = registry.heads()[options.method].build(teacher.lm_head.shape[1], shape)
        for weight in net.layers.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        init_from_lm_head(net.embed.weight, teacher.lm_head)
        return net

    net = build_seeded(options.seed, build_untrained)
    names = [f"after {n} layer{'s' * (n > 1)}" for n in net.exits]

    def compute_draft_logits(state: Float[Tensor, "N W"]) -> Float[Tensor, "N K"]:
        return F.linear(state, net.embed.weight[vocab]).float()

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, text, _ = load_batch(setup.readings, rows)
        positions = text.flatten().nonzero().flatten()
        positions = positions[sample_indices(len(positions), options.places, generator)]
        target_logits = teacher.logits(features.flatten(0, 1)[positions])
        in_vocab = torch.isin(target_logits.argmax(-1), vocab)
        positions, target_logits = positions[in_vocab], target_logits[in_vocab][:, vocab]
        losses = dict[str, Tensor]()
        with half_precision(options.half):
            for name, states in zip(names, net(ids), strict=True):
                state = states.flatten(0, 1)[positions]
                losses[name], _ = loss(LossInputs(state, state, compute_draft_logits(state), target_logits))
        return int(text.sum()), losses, torch.stack(list(losses.values())).mean()

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        """Return top-1 agreement with the target and cross-entropy (nats) of each drafter size, the largest first."""
        matches, losses = torch.zeros(2, len(names), device=vocab.device)
        count = n_in_vocab = 0
        for start in range(0, len(setup.held_out), EVAL_BATCH_SIZE):
            ids, features, _, answer = load_batch(setup.readings, setup.held_out[start : start + EVAL_BATCH_SIZE])
            with half_precision(options.half):
                states = [state[answer] for state in net(ids)]
                for positions in torch.arange(int(answer.sum()), device=vocab.device).split(512):
                    target_logits = teacher.logits(features[answer][positions])
                    target_tokens = target_logits.argmax(-1)
                    in_vocab = torch.isin(target_tokens, vocab)
                    count, n_in_vocab = count + len(positions), n_in_vocab + int(in_vocab.sum())
                    for size, state in enumerate(states):
                        draft_logits = compute_draft_logits(state[positions])
                        matches[size] += (vocab[draft_logits.argmax(-1)] == target_tokens).sum()
                        losses[size] += ce_soft(
                            LossInputs(
                                draft_logits, draft_logits, draft_logits[in_vocab], target_logits[in_vocab][:, vocab]
                            )
                        ).sum()
        held = {f"agreement {name}": float(n) / max(1, count) for name, n in zip(names, matches, strict=True)}
        loss_of = {f"ce_soft {name}": float(n) / max(1, n_in_vocab) for name, n in zip(names, losses, strict=True)}
        return dict(reversed(held.items())) | loss_of

    return setup.run(net, step_losses, measure, **draft_vocabulary_config(vocab, teacher))


@torch.no_grad()
def init_from_lm_head(rows: Float[Tensor, "V W"], table: Float[Tensor, "V D"]) -> None:
    """Initialise token embeddings from the rows of a wider LM head, projected to the head's principal directions.

    If the embeddings are as wide as the LM head or wider, all directions are used, and the additional components are
    small random numbers.

    Args:
        rows: the drafter's token embeddings, which are overwritten.
        table: rows of the wider LM head.
    """
    _, directions = torch.linalg.eigh(table.T @ table)  # ascending eigenvalues
    narrow = table @ directions.flip(1)[:, : rows.shape[1]]
    nn.init.normal_(rows, std=0.02)
    rows[:, : narrow.shape[1]] = narrow.to(rows.device)
