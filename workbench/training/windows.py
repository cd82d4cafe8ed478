"""Batches of windows of fixed length from a packed token file; each batch depends on the step number alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workbench.training.corpus import load_tokens


class Windows:
    """Windows of a token file, in a new order and with a new offset every epoch.

    Args:
        path: File of token ids, uint16.
        length: Number of tokens per window.
        rows: Number of windows per batch.
        seed: Seed of the order.
    """

    def __init__(self, path: Path, length: int, rows: int, seed: int = 0) -> None:
        self.tokens = load_tokens(path)
        self.length, self.rows, self.seed = length, rows, seed
        self.per_epoch = (len(self.tokens) - length) // length
        if self.per_epoch < 1:
            raise ValueError(f"{path} has {len(self.tokens)} tokens, fewer than two windows of {length}")
        self._epoch = -1
        self._order = np.arange(0)
        self._offset = 0

    def batch(self, step: int) -> Tensor:
        """Return the token ids of a training step's windows, int64 [rows, length]."""
        return torch.from_numpy(np.stack([self._window(step * self.rows + i) for i in range(self.rows)]))

    def _window(self, index: int) -> np.ndarray:
        epoch, position = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self._order = rng.permutation(self.per_epoch)
            self._offset = int(rng.integers(self.length))
            self._epoch = epoch
        start = int(self._order[position]) * self.length + self._offset
        start = min(start, len(self.tokens) - self.length)
        return self.tokens[start : start + self.length].astype(np.int64)


def held_windows(path: Path, length: int, count: int) -> Tensor:
    """Return the first `count` windows of a held-out file, int64 [n, length]."""
    tokens = load_tokens(path)
    count = min(count, len(tokens) // length)
    return torch.from_numpy(tokens[: count * length].astype(np.int64)).reshape(count, length)


def user_positions(ids: Tensor, user: int, user_end_ids: tuple[int, ...]) -> Tensor:
    """Return a mask of the tokens that belong to a user turn.

    Args:
        ids: Token ids, int64 [B, T].
        user: Id of the user marker.
        user_end_ids: Ids of the markers that end a user turn.

    Returns:
        True for tokens inside a user turn and for the user marker before it, bool [B, T].
    """
    position = torch.arange(1, ids.shape[1] + 1).expand_as(ids)
    opened = torch.where(ids == user, position, 0).cummax(dim=1).values
    closed = torch.where(torch.isin(ids, torch.tensor(user_end_ids)), position, 0).cummax(dim=1).values
    return opened > closed
