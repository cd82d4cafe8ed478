"""Functions and modules that reduce the N vision tokens of an image to fewer inputs of a drafter."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.random_stream import seeded_uniforms
from workbench.core.transfer import to_list
from workbench.methods.common.feature_net import CompressedImage

GROUPS = 8
QUERIES = 2


def n_kept(n: int, ratio: int) -> int:
    """Return the number of drafter inputs to which n vision tokens are compressed: n / ratio, rounded up."""
    return -(-n // ratio)


def subset(n: int, m: int, seed: int = 0) -> list[int]:
    """Return m different indices from 0 … n − 1, drawn at random, ascending. Equal seeds give equal indices."""
    order = sorted(range(n), key=seeded_uniforms(seed, n).tolist().__getitem__)
    return sorted(order[:m])


def windows(rows: int, cols: int, ratio: int) -> list[list[int]]:
    """Group the tokens of a grid into windows: square blocks if the ratio allows it, otherwise consecutive tokens.

    Args:
        rows: rows of the grid.
        cols: columns of the grid.
        ratio: number of tokens per window.

    Returns:
        Token indices of each window.

    Example:
        >>> windows(2, 4, 4)
        [[0, 1, 4, 5], [2, 3, 6, 7]]
        >>> windows(1, 5, 2)
        [[0, 1], [2, 3], [4]]
    """
    side = math.isqrt(ratio)
    if side * side == ratio and rows % side == 0 and cols % side == 0:
        return blocks(rows, cols, side)
    indices = torch.arange(rows * cols)
    return [to_list(part) for part in indices.tensor_split(n_kept(rows * cols, ratio))]


def blocks(rows: int, cols: int, side: int) -> list[list[int]]:
    """Return squares of `side` × `side` tokens that tile a grid, as lists of token indices.

    Squares at the lower and right edge may be smaller.
    """
    return [
        [r * cols + c for r in range(top, min(top + side, rows)) for c in range(left, min(left + side, cols))]
        for top in range(0, rows, side)
        for left in range(0, cols, side)
    ]


def prune(x: Float[Tensor, "B N D"], indices: list[int]) -> CompressedImage:
    """Compress an image to a subset of its vision tokens, which retain their values and positions.

    Args:
        x: vision tokens.
        indices: ascending indices of the tokens that stay.
    """
    index = torch.tensor(indices, dtype=torch.long, device=x.device)
    return CompressedImage(x[:, index], index, "prune", kept_indices=indices)


def pool(x: Float[Tensor, "B N D"], rows: int, cols: int, ratio: int) -> CompressedImage:
    """Compress an image to one drafter input per window of vision tokens: their mean.

    Args:
        x: vision tokens, N = rows · cols.
        rows: rows of the grid.
        cols: columns of the grid.
        ratio: number of tokens per window.
    """
    groups = windows(rows, cols, ratio)
    mean = x.new_zeros(len(groups), x.shape[1])
    for i, window in enumerate(groups):
        mean[i, window] = 1 / len(window)
    return CompressedImage(mean @ x, middle_positions(groups, x), "pool", blocks=groups)


class Convolution(nn.Module):
    """Compressor of images: a grouped 2 × 2 convolution of stride 2, repeated up to the compression ratio."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 2, stride=2, groups=GROUPS, bias=False)
        with torch.no_grad():  # initialised near the mean of four tokens
            self.conv.weight.mul_(0.1)
            each = width // GROUPS
            self.conv.weight += torch.eye(each).repeat(GROUPS, 1)[:, :, None, None] / 4

    def forward(self, x: Float[Tensor, "B N D"], rows: int, cols: int, ratio: int) -> CompressedImage:
        """Compress an image: halve both sides of its grid until the ratio is reached.

        Before an odd side is halved, its last row or column is repeated.

        Args:
            x: vision tokens, N = rows · cols.
            rows: rows of the grid.
            cols: columns of the grid.
            ratio: number of tokens that become one.
        """
        times = math.ceil(round(math.log(ratio, 4), 9))
        y = x.mT.reshape(x.shape[0], -1, rows, cols)
        for _ in range(times):
            y = self.conv(nn.functional.pad(y, (0, y.shape[3] % 2, 0, y.shape[2] % 2), mode="replicate"))
        groups = blocks(rows, cols, 2**times)
        return CompressedImage(y.flatten(2).mT, middle_positions(groups, x), "conv", blocks=groups)


class Resampler(nn.Module):
    """Compressor with learned queries that attend to all vision tokens of an image. Each query gives one drafter input.

    Source: Huang et al. 2025, SpecVLM, arXiv:2509.11815, §3.2; two queries gave the best results there.
    """

    def __init__(self, width: int, inner: int = 64) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(QUERIES, inner))
        nn.init.normal_(self.queries)
        self.keys, self.values = nn.Linear(width, inner, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Float[Tensor, "B N D"]) -> CompressedImage:
        """Compress an image to one input per query: a weighted sum of projections of the image's tokens.

        The attribute `weights` of the result contains the weights for the first prompt of the batch.
        """
        scale = self.queries.shape[1] ** -0.5
        weights = (self.queries @ self.keys(x).mT * scale).softmax(-1)  # [B, M, N]
        places = even_positions(QUERIES, x)
        return CompressedImage(weights @ self.values(x), places, "resample", weights=weights[0].detach())


def drop_all(x: Float[Tensor, "B N D"]) -> CompressedImage:
    """Return a compressed image without inputs, so that the drafter reads the text alone."""
    return CompressedImage(x[:, :0], torch.zeros(0, dtype=torch.long, device=x.device), "none", kept_indices=[])


def middle_positions(groups: list[list[int]], x: Tensor) -> Tensor:
    """Return the index of the middle vision token of each window, int64 [M], the position of the pooled input."""
    return torch.tensor([window[(len(window) - 1) // 2] for window in groups], device=x.device)


def even_positions(m: int, x: Float[Tensor, "B N D"]) -> Tensor:
    """Return m positions spread evenly over the vision tokens `x`, int64 [m]."""
    return torch.tensor([(2 * i + 1) * x.shape[1] // (2 * m) for i in range(m)], device=x.device)
