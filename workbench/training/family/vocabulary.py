"""Vocabulary reduction for drafters of large vocabularies: they keep the tokens that the target uses most."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from workbench.training.answers import rate_of
from workbench.training.family.readings import GIVEN, Readings

LEFT_OUT = -100
"""Label of positions to ignore: PyTorch's losses skip it."""


def counts_of(readings: Readings, rows: Sequence[int]) -> np.ndarray:
    """Return how often the target generated each token in these answers, int64 [V]."""
    counts = np.zeros(readings.facts["vocabulary"], np.int64)
    for row in rows:
        ids, n_prompt = readings.text(row)
        counts += np.bincount(ids[n_prompt:], minlength=len(counts))
    return counts


def kept_tokens(counts: np.ndarray, size: int, always: Collection[int] = ()) -> list[int]:
    """Return the `size` most frequent tokens, increasing; of unused ones the first, which byte-level BPE created first.

    Args:
        counts: how often each token was generated, [V].
        size: number of tokens to keep.
        always: tokens kept in any case: EOS.

    Source: Goel et al. 2025, VocabTrim, arXiv:2506.22694, §3: the drafter's own calibration text decides.

    Example:
        >>> kept_tokens(np.array([0, 5, 0, 7, 1]), 3)
        [1, 3, 4]
        >>> kept_tokens(np.array([0, 5, 0, 7, 1]), 3, always=[2])
        [1, 2, 3]
    """
    order = np.argsort(-counts, kind="stable").tolist()
    first = sorted(set(always))
    by_frequency = [token for token in order if token not in set(always)]
    return sorted([*first, *by_frequency][:size])


def coverage(counts: np.ndarray, kept: Sequence[int]) -> float:
    """Return the share of the target's tokens that can be drafted with this vocabulary."""
    return float(counts[list(kept)].sum() / max(counts.sum(), 1))


def chosen_tokens(
    readings: Readings, held: Sequence[int], size: int, always: Collection[int], kept: list[int] | None = None
) -> tuple[list[int], dict[str, Any]]:
    """Return the vocabulary of drafters trained on readings, and the facts about it for their cards.

    Args:
        readings: readings of the target's answers.
        held: held-out readings, on which the coverage is measured.
        size: number of tokens to keep.
        always: tokens kept in any case.
        kept: vocabulary of a head that is trained further; it is not changed.
    """
    train_rows = readings.part(held=False)
    target_rows = [row for row in train_rows if readings.rows[row, 4] != GIVEN]
    counts = counts_of(readings, target_rows)
    if kept is None:
        kept = kept_tokens(counts, size, always)
    covered = round(coverage(counts_of(readings, held), kept), 4)
    rate = rate_of(readings.folder)
    entries = {} if rate is None else {"answer_rate": round(rate)}
    if len(target_rows) < len(train_rows):
        entries["given_tokens"] = int(counts_of(readings, train_rows).sum() - counts.sum())
    return kept, {"kept": len(kept), "covered": covered, "answer_tokens": int(counts.sum())} | entries


def places_among(kept: Int[Tensor, " K"], vocabulary: int) -> Int[Tensor, " V"]:
    """Return the index of each token in the reduced vocabulary; `LEFT_OUT` for tokens that are not in it."""
    index = torch.full((vocabulary,), LEFT_OUT, device=kept.device)
    return index.index_copy_(0, kept, torch.arange(len(kept), device=kept.device))
