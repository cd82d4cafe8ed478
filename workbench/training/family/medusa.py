"""Training of Medusa's heads: head k predicts the token k + 1 positions later from the features of answers."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.methods.drafters.medusa import RANKS, MedusaHeads
from workbench.training.family.drafter import load_batch
from workbench.training.family.head_training import (
    EVAL_BATCH_SIZE,
    TrainingSetup,
    answer_continues,
    build_seeded,
    draft_vocabulary_config,
    sample_indices,
    sum_losses,
)
from workbench.training.family.vocabulary import IGNORE_INDEX, index_in_vocab
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve

FIXED_LOSS = "cross-entropy with the text"
"""The fixed loss of these heads."""


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the heads; their losses are summed. Each is the cross-entropy with the token of the text.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.2.1 (Medusa-1: the target is not changed).
    """
    options, table, size = setup.options, setup.lm_head_rows, len(setup.teacher.lm_head)
    heads = build_seeded(options.seed, lambda: MedusaHeads(table.shape[1], options.blocks))
    vocab_index = index_in_vocab(setup.draft_vocabulary, size)

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = load_batch(setup.readings, rows)
        inputs, tokens = make_inputs_and_labels(ids, features, answer, options.blocks)
        sample = sample_indices(len(inputs), options.places, generator)
        labels = vocab_index[tokens[:, sample]].masked_fill(tokens[:, sample] < 0, IGNORE_INDEX)
        with half_precision(options.half):
            logits = F.linear(heads(inputs[sample].float()), table).float()
        pairs = enumerate(zip(logits, labels, strict=True), 1)
        losses = {
            f"head {k}": F.cross_entropy(head_logits, head_labels)
            for k, (head_logits, head_labels) in pairs
            if (head_labels != IGNORE_INDEX).any()
        }
        return int(answer.sum()), losses, sum_losses(losses.values())

    def measure() -> dict[str, float]:
        heads.accuracy = tuple(map(tuple, hit_rates(heads, setup)))
        return {f"accuracy {k + 1}": row[0] for k, row in enumerate(heads.accuracy)}

    facts = draft_vocabulary_config(setup.draft_vocabulary, setup.teacher)
    return setup.run(heads, step_losses, measure, vocab_size=size, loss=FIXED_LOSS, **facts)


def make_inputs_and_labels(
    ids: Int[Tensor, "B n"], features: Float[Tensor, "B n D"], answer: Bool[Tensor, "B n"], n_heads: int
) -> tuple[Float[Tensor, "N D"], Int[Tensor, "K N"]]:
    """Return inputs and labels of Medusa's heads: for head k the token k + 1 positions later, or −1 after the end.

    Args:
        ids: padded dialogues.
        features: the target's features.
        answer: positions whose feature predicts a token of the answer, contiguous in each sequence.
        n_heads: K.
    """
    labels = torch.stack(
        [ids.roll(-k - 2, 1).masked_fill(~answer_continues(answer, k + 1), -1) for k in range(n_heads)]
    )
    mask = answer_continues(answer, 1)  # the last position of an answer predicts only the target's own token
    return features[mask], labels[:, mask]


@torch.inference_mode()
def hit_rates(heads: MedusaHeads, setup: TrainingSetup) -> list[list[float]]:
    """Return how often the r-th best token of each head is the text's token, r = 1 … 10: [K, 10]."""
    hits = torch.zeros(len(heads.heads), RANKS, device=setup.device)
    total = hits.new_zeros(len(heads.heads))
    for start in range(0, len(setup.held_out), EVAL_BATCH_SIZE):
        ids, features, _, answer = load_batch(setup.readings, setup.held_out[start : start + EVAL_BATCH_SIZE])
        inputs, tokens = make_inputs_and_labels(ids, features, answer, len(heads.heads))
        with half_precision():
            top_tokens = setup.draft_vocabulary[
                F.linear(heads(inputs.float()), setup.lm_head_rows).topk(RANKS, dim=-1).indices
            ]  # [K, N, 10]
        hits += (top_tokens == tokens[..., None]).float().sum(1)
        total += (tokens >= 0).float().sum(1)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
