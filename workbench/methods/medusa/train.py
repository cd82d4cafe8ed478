"""Training of Medusa's heads: head k predicts the token k + 1 positions later from the features of answers."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.methods.medusa.drafter import MedusaHeads
from workbench.training.family.drafter import load_batch
from workbench.training.family.head_training import (
    TrainingSetup,
    answer_continues,
    build_seeded,
    draft_vocabulary_config,
    sample_indices,
    sum_losses,
)
from workbench.training.family.levels import measure_ranks
from workbench.training.family.options import ChatHeadOptions
from workbench.training.family.vocabulary import IGNORE_INDEX, index_in_vocab
from workbench.training.loop import RunResult
from workbench.training.models import half_precision
from workbench.training.trainer import Curve

FIXED_LOSS = "cross-entropy with the tokens of the text"
"""Description of the loss of Medusa's heads, which cannot be changed by an option."""


@dataclass
class Options(ChatHeadOptions):
    """Options for training Medusa's heads.

    Attributes:
        blocks: Number of heads.
    """

    method: str = MedusaHeads.kind
    blocks: int = 4
    fixed_loss: ClassVar[str] = FIXED_LOSS


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train Medusa's heads on the sum of their losses. A head's loss is the cross-entropy with the text's token.

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

    def predict(rows: list[int], generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        ids, features, _, answer = load_batch(setup.readings, rows)
        inputs, tokens = make_inputs_and_labels(ids, features, answer, options.blocks)
        for states, labels in zip(heads(inputs.float()), tokens, strict=True):
            yield F.linear(states, table)[labels >= 0], labels[labels >= 0]

    def measure() -> dict[str, float]:
        heads.accuracy = measure_ranks(setup, options.blocks, predict)
        return {f"accuracy {k + 1}": row[0] for k, row in enumerate(heads.accuracy)}

    facts = draft_vocabulary_config(setup.draft_vocabulary, setup.teacher)
    return setup.run(heads, step_losses, measure, vocab_size=size, loss=FIXED_LOSS, **facts)


def make_inputs_and_labels(
    ids: Int[Tensor, "B n"], features: Float[Tensor, "B n D"], answer: Bool[Tensor, "B n"], n_heads: int
) -> tuple[Float[Tensor, "N D"], Int[Tensor, "K N"]]:
    """Return the inputs of Medusa's heads and the labels: for head k, from 1, the token k + 1 positions later.

    After the end of an answer the label is −1.

    Args:
        ids: padded dialogues.
        features: the target's features.
        answer: positions whose feature predicts a token of the answer, contiguous in each sequence.
        n_heads: number K of heads.
    """
    labels = torch.stack(
        [ids.roll(-k - 2, 1).masked_fill(~answer_continues(answer, k + 1), -1) for k in range(n_heads)]
    )
    mask = answer_continues(answer, 1)  # the last position of an answer predicts only the target's own token
    return features[mask], labels[:, mask]
