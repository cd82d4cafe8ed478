"""Training of S2D's sizes: all at once, from the target's distributions at the same positions (sorted fine-tuning).

Each size is a prefix of every larger one, so its layers have two tasks: to predict at their own exit, and to compute
the input of the layers after it. Equal weights of all exits' losses train both.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.drafters.s2d_net import S2DNet
from workbench.training.distill import draft_model_losses
from workbench.training.family.drafter import Curve, together
from workbench.training.family.head_training import HELD_ROWS, TrainingSetup, begun, keeping, some_of
from workbench.training.heads.losses import Places, ce_soft
from workbench.training.loop import RunResult
from workbench.training.models import half_precision


def train(course: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train all layers on the mean of the exits' losses, at positions of prompts and of answers.

    Positions count if the target's most probable token is in the draft vocabulary.

    Source: Kavehzadeh et al. 2024, S2D, arXiv:2407.01955, §3 (sorted fine-tuning); the paper trains on the text.

    Raises:
        ParameterError: there is no such loss, or it compares features, which a language model does not predict.
    """
    options, teacher, kept = course.options, course.teacher, course.kept
    loss, vocabulary = draft_model_losses(options.loss), len(teacher.head)

    def fresh() -> S2DNet:
        shape = vars(options) | {"vocabulary": vocabulary}
        net = registry.heads()[options.method].build(teacher.head.shape[1], shape)
        for weight in net.layers.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        begin_like(net.embed.weight, teacher.head)
        return net

    net = begun(options.seed, fresh)
    names = [f"after {n} layer{'s' * (n > 1)}" for n in net.exits]

    def said(state: Float[Tensor, "N W"]) -> Float[Tensor, "N K"]:
        return F.linear(state, net.embed.weight[kept]).float()

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, text, _ = together(course.readings, rows)
        places = text.flatten().nonzero().flatten()
        places = places[some_of(len(places), options.places, generator)]
        wanted = teacher.logits(features.flatten(0, 1)[places])
        counts = torch.isin(wanted.argmax(-1), kept)
        places, wanted = places[counts], wanted[counts][:, kept]
        named = dict[str, Tensor]()
        with half_precision(options.half):
            for name, states in zip(names, net(ids), strict=True):
                state = states.flatten(0, 1)[places]
                named[name], _ = loss(Places(state, state, said(state), wanted))
        return int(text.sum()), named, torch.stack(list(named.values())).mean()

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        """Return agreement with the target and cross-entropy (nats) of each size, the whole drafter first."""
        right, lost = torch.zeros(2, len(names), device=kept.device)
        count = compared = 0
        for start in range(0, len(course.held), HELD_ROWS):
            ids, features, _, answer = together(course.readings, course.held[start : start + HELD_ROWS])
            with half_precision(options.half):
                states = [state[answer] for state in net(ids)]
                for places in torch.arange(int(answer.sum()), device=kept.device).split(512):
                    wanted = teacher.logits(features[answer][places])
                    theirs = wanted.argmax(-1)
                    counts = torch.isin(theirs, kept)
                    count, compared = count + len(places), compared + int(counts.sum())
                    for size, state in enumerate(states):
                        mine = said(state[places])
                        right[size] += (kept[mine.argmax(-1)] == theirs).sum()
                        lost[size] += ce_soft(Places(mine, mine, mine[counts], wanted[counts][:, kept])).sum()
        held = {f"agreement {name}": float(n) / max(1, count) for name, n in zip(names, right, strict=True)}
        loss_of = {f"ce_soft {name}": float(n) / max(1, compared) for name, n in zip(names, lost, strict=True)}
        return dict(reversed(held.items())) | loss_of

    return course.run(net, step_losses, measure, **keeping(kept, teacher))


@torch.no_grad()
def begin_like(rows: Float[Tensor, "V W"], table: Float[Tensor, "V D"]) -> None:
    """Initialise token rows from those of a wider LM head, in the directions in which these differ most.

    If the rows are as wide or wider, use all directions; the additional numbers are small and random.
    """
    _, directions = torch.linalg.eigh(table.T @ table)  # ascending eigenvalues
    narrow = table @ directions.flip(1)[:, : rows.shape[1]]
    nn.init.normal_(rows, std=0.02)
    rows[:, : narrow.shape[1]] = narrow.to(rows.device)
