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
"""Label of positions to ignore: PyTorch's losses skip it."""


def count_tokens(readings: Readings, rows: Sequence[int]) -> np.ndarray:
    """Return how often the target generated each token in these answers, int64 [V]."""
    counts = np.zeros(readings.facts["vocabulary"], np.int64)
    for row in rows:
        ids, n_prompt = readings.text(row)
        counts += np.bincount(ids[n_prompt:], minlength=len(counts))
    return counts


def most_frequent_tokens(counts: np.ndarray, size: int, always: Collection[int] = ()) -> list[int]:
    """Return the `size` most frequent tokens, in increasing order; of unused tokens, those with the lowest ids.

    Args:
        counts: how often each token was generated, [V].
        size: number of tokens to keep.
        always: tokens kept in any case: EOS.

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
    """Return the share of the target's tokens that can be drafted with this vocabulary."""
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
    """Return the index of each token in the reduced vocabulary; `IGNORE_INDEX` for tokens that are not in it."""
    index = torch.full((vocabulary,), IGNORE_INDEX, device=draft_vocabulary.device)
    return index.index_copy_(0, draft_vocabulary, torch.arange(len(draft_vocabulary), device=draft_vocabulary.device))
