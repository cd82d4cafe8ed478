"""Which tokens a drafter of a large vocabulary keeps: those that its target says most."""

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
"""In place of a label: PyTorch's losses pass over it."""


def counts_of(readings: Readings, rows: Sequence[int]) -> np.ndarray:
    """How often the target said each token in these answers, int64 [V]."""
    found = np.zeros(readings.facts["vocabulary"], np.int64)
    for row in rows:
        ids, n_prompt = readings.text(row)
        found += np.bincount(ids[n_prompt:], minlength=len(found))
    return found


def kept_tokens(counts: np.ndarray, size: int, always: Collection[int] = ()) -> list[int]:
    """The `size` tokens said most, increasing; of those never said the first ones, which byte-level BPE made first.

    Args:
        counts: how often each token was said, [V].
        size: how many to keep.
        always: kept whatever was said: the end of the text.

    Source: Goel et al. 2025, VocabTrim, arXiv:2506.22694, §3: the drafter's own calibration text decides.

    Example:
        >>> kept_tokens(np.array([0, 5, 0, 7, 1]), 3)
        [1, 3, 4]
        >>> kept_tokens(np.array([0, 5, 0, 7, 1]), 3, always=[2])
        [1, 2, 3]
    """
    order = np.argsort(-counts, kind="stable").tolist()
    first = sorted(set(always))
    rest = [token for token in order if token not in set(always)]
    return sorted([*first, *rest][:size])


def coverage(counts: np.ndarray, kept: Sequence[int]) -> float:
    """Share of what the target said that can be drafted with these tokens."""
    return float(counts[list(kept)].sum() / max(counts.sum(), 1))


def chosen_tokens(
    readings: Readings, held: Sequence[int], size: int, always: Collection[int], kept: list[int] | None = None
) -> tuple[list[int], dict[str, Any]]:
    """The tokens that drafters trained on readings keep, and what their cards say of that.

    Args:
        readings: of the target's answers.
        held: those kept out of training, by which it is told how much can be drafted.
        size: how many to keep.
        always: kept whatever was said.
        kept: those of a head that is trained further, which stay.
    """
    read = readings.part(held=False)
    own = [row for row in read if readings.rows[row, 4] != GIVEN]
    counts = counts_of(readings, own)
    if kept is None:
        kept = kept_tokens(counts, size, always)
    covered = round(coverage(counts_of(readings, held), kept), 4)
    rate = rate_of(readings.folder)
    said = {} if rate is None else {"answer_rate": round(rate)}
    if len(own) < len(read):
        said["given_tokens"] = int(counts_of(readings, read).sum() - counts.sum())
    return kept, {"kept": len(kept), "covered": covered, "answer_tokens": int(counts.sum())} | said


def places_among(kept: Int[Tensor, " K"], vocabulary: int) -> Int[Tensor, " V"]:
    """Where each token stands among the kept ones; `LEFT_OUT` for those that are not."""
    places = torch.full((vocabulary,), LEFT_OUT, device=kept.device)
    return places.index_copy_(0, kept, torch.arange(len(kept), device=kept.device))
