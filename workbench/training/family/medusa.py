"""Training of Medusa's heads: head k predicts the token k + 1 positions later from the features of answers."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.methods.drafters.medusa import RANKS, MedusaHeads
from workbench.training.family.drafter import Curve, together
from workbench.training.family.head_training import HELD_ROWS, TrainingSetup, begun, keeping, some_of, still, summed
from workbench.training.family.vocabulary import LEFT_OUT, places_among
from workbench.training.loop import RunResult
from workbench.training.models import half_precision

ONE_LOSS = "cross-entropy of what was written"
"""The fixed loss of these heads."""


def train(course: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the heads; their losses are summed. Each is the cross-entropy with the token of the text.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.2.1 (Medusa-1: the target stays as it is).
    """
    options, table, size = course.options, course.table, len(course.teacher.head)
    heads = begun(options.seed, lambda: MedusaHeads(table.shape[1], options.blocks))
    vocab_index = places_among(course.kept, size)

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = together(course.readings, rows)
        inputs, tokens = ahead(ids, features, answer, options.blocks)
        sample = some_of(len(inputs), options.places, generator)
        labels = vocab_index[tokens[:, sample]].masked_fill(tokens[:, sample] < 0, LEFT_OUT)
        with half_precision(options.half):
            logits = F.linear(heads(inputs[sample].float()), table).float()
        pairs = enumerate(zip(logits, labels, strict=True), 1)
        losses = {
            f"head {k}": F.cross_entropy(head_logits, head_labels)
            for k, (head_logits, head_labels) in pairs
            if (head_labels != LEFT_OUT).any()
        }
        return int(answer.sum()), losses, summed(losses.values())

    def measure() -> dict[str, float]:
        heads.accuracy = tuple(map(tuple, hit_rates(heads, course)))
        return {f"accuracy {k + 1}": row[0] for k, row in enumerate(heads.accuracy)}

    facts = keeping(course.kept, course.teacher)
    return course.run(heads, step_losses, measure, vocab_size=size, loss=ONE_LOSS, **facts)


def ahead(
    ids: Int[Tensor, "B n"], features: Float[Tensor, "B n D"], answer: Bool[Tensor, "B n"], n_heads: int
) -> tuple[Float[Tensor, "N D"], Int[Tensor, "K N"]]:
    """Return inputs and labels of Medusa's heads: for head k the token k + 1 positions later, or −1 after the end.

    Args:
        ids: padded dialogues.
        features: the target's features.
        answer: positions whose feature predicts a token of the answer, contiguous in each sequence.
        n_heads: K.
    """
    labels = torch.stack([ids.roll(-k - 2, 1).masked_fill(~still(answer, k + 1), -1) for k in range(n_heads)])
    mask = still(answer, 1)  # the last position of an answer predicts only the target's own token
    return features[mask], labels[:, mask]


@torch.inference_mode()
def hit_rates(heads: MedusaHeads, course: TrainingSetup) -> list[list[float]]:
    """Return how often the r-th best token of each head is the text's token, r = 1 … 10: [K, 10]."""
    hits = torch.zeros(len(heads.heads), RANKS, device=course.device)
    total = hits.new_zeros(len(heads.heads))
    for start in range(0, len(course.held), HELD_ROWS):
        ids, features, _, answer = together(course.readings, course.held[start : start + HELD_ROWS])
        inputs, tokens = ahead(ids, features, answer, len(heads.heads))
        with half_precision():
            top_tokens = course.kept[
                F.linear(heads(inputs.float()), course.table).topk(RANKS, dim=-1).indices
            ]  # [K, N, 10]
        hits += (top_tokens == tokens[..., None]).float().sum(1)
        total += (tokens >= 0).float().sum(1)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
