"""Training windows of repeated random spans, with which a small model quickly learns to copy from its context.

A span of random tokens is repeated several times with random filler in between. Its tokens can only be predicted from
an earlier occurrence, so within a few hundred steps attention learns to find the next token there (induction).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

FIRST_PLAIN_TOKEN = 16  # ids below are special tokens


def repeat_windows(step: int, rows: int, length: int, pool: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Generate windows in which random spans are repeated.

    Args:
        step: Step number; `step` and `seed` determine the random numbers.
        rows: Number of windows.
        length: Tokens per window; the two halves of a window are independent of each other.
        pool: Token ids to draw from, int64 [n].
        seed: Seed of the training run.

    Returns:
        Token ids, int64 [rows, length], and whether each can be predicted, bool [rows, length].
    """
    rng = np.random.default_rng((seed, step))
    usable = pool[pool >= FIRST_PLAIN_TOKEN].numpy()
    halves = [_half(rng, length // 2, usable) for _ in range(rows * 2)]
    ids = np.stack([half[0] for half in halves]).reshape(rows, length)
    predictable = np.stack([half[1] for half in halves]).reshape(rows, length)
    return torch.from_numpy(ids), torch.from_numpy(predictable)


def _half(rng: np.random.Generator, length: int, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    span = rng.choice(pool, int(rng.integers(6, max(8, length // 5))))
    ids = np.empty(0, dtype=np.int64)
    predictable = np.empty(0, dtype=bool)
    repeat_mask = np.ones(len(span), dtype=bool)
    repeat_mask[0] = False  # the first token of a repetition cannot be predicted
    while len(ids) < length:
        filler = rng.choice(pool, int(rng.integers(0, 9)))
        first = len(ids) == 0
        ids = np.concatenate([ids, span, filler])
        predictable = np.concatenate([predictable, repeat_mask & (not first), np.zeros(len(filler), dtype=bool)])
    return ids[:length], predictable[:length]
