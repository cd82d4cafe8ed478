"""Vocabulary reduction for drafters of targets with large vocabularies, to the most frequently generated tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from workbench.training.answers import rate_of
from workbench.training.family.readings import TEXT_ANSWER, Readings

IGNORE_INDEX = -100
"""Label of positions without a loss: PyTorch's loss functions skip these positions."""


def count_tokens(readings: Readings, rows: Sequence[int]) -> np.ndarray:
    """Return how often each token occurs in the answers with the indices `rows`, int64 [V]."""
    counts = np.zeros(readings.facts["vocabulary"], np.int64)
    for row in rows:
        ids, n_prompt = readings.text(row)
        counts += np.bincount(ids[n_prompt:], minlength=len(counts))
    return counts


def most_frequent_tokens(counts: np.ndarray, size: int, always: Collection[int] = ()) -> list[int]:
    """Return the ids of the `size` most frequent tokens in increasing order; if they tie, the lowest ids come first.

    Args:
        counts: how often each token was generated, [V].
        size: number of tokens to keep.
        always: tokens kept in any case, such as EOS.

    Source: Goel et al. 2025, VocabTrim, arXiv:2506.22694, §3: counts from the drafter's calibration text.

    Example:
        >>> most_frequent_tokens(np.array([0, 5, 0, 7, 1]), 3)
        [1, 3, 4]
        >>> most_frequent_tokens(np.array([0, 5, 0, 7, 1]), 3, always=[2])
        [1, 2, 3]
    """
    order = np.argsort(-counts, kind="stable").tolist()
    first = sorted(set(always))
    by_frequency = [token for token in order if token not in set(always)]
    return sorted([*first, *by_frequency][:size])


def coverage(counts: np.ndarray, draft_vocabulary: Sequence[int]) -> float:
    """Return the share of the counted token occurrences that the draft vocabulary covers."""
    return float(counts[list(draft_vocabulary)].sum() / max(counts.sum(), 1))


def select_draft_vocabulary(
    readings: Readings,
    held: Sequence[int],
    size: int,
    always: Collection[int],
    draft_vocabulary: list[int] | None = None,
) -> tuple[list[int], dict[str, Any]]:
    """Return the draft vocabulary chosen from the target's answers, and the facts about it for model cards.

    Args:
        readings: stored hidden states of the target's answers.
        held: indices of the held-out answers, on which the coverage is measured.
        size: number of tokens to keep.
        always: tokens kept in any case.
        draft_vocabulary: vocabulary of a head that is trained further; it is not changed.
    """
    train_rows = readings.split_indices(held_out=False)
    target_rows = [row for row in train_rows if readings.rows[row, 4] != TEXT_ANSWER]
    counts = count_tokens(readings, target_rows)
    if draft_vocabulary is None:
        draft_vocabulary = most_frequent_tokens(counts, size, always)
    covered = round(coverage(count_tokens(readings, held), draft_vocabulary), 4)
    rate = rate_of(readings.folder)
    entries = {} if rate is None else {"answer_rate": round(rate)}
    if len(target_rows) < len(train_rows):
        entries["given_tokens"] = int(count_tokens(readings, train_rows).sum() - counts.sum())
    return draft_vocabulary, {
        "kept": len(draft_vocabulary),
        "covered": covered,
        "answer_tokens": int(counts.sum()),
    } | entries


def index_in_vocab(draft_vocabulary: Int[Tensor, " K"], vocabulary: int) -> Int[Tensor, " V"]:
    """Return for each token of the full vocabulary its index in the draft vocabulary, or `IGNORE_INDEX`, int64 [V]."""
    index = torch.full((vocabulary,), IGNORE_INDEX, device=draft_vocabulary.device)
    return index.index_copy_(0, draft_vocabulary, torch.arange(len(draft_vocabulary), device=draft_vocabulary.device))
