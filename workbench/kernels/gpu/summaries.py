"""Summary of softmax distributions: top tokens, entropy and scale of each row of logits, without the distributions.

One program reads a tile of a row's logits once; a second kernel merges the tiles of a row in a fixed order.
"""

from __future__ import annotations

import torch
import triton.language as tl
from jaxtyping import Float, Float64, Int
from torch import Tensor

from workbench.kernels.gpu.arithmetic import kernel, padded

TILE = 2048
"""Number of logits per Triton program."""


@kernel
def _take_best(values, ids, K: tl.constexpr, out_values, out_ids, at):
    """Store the K largest values in descending order, and their ids; among equal values the first."""
    places = tl.arange(0, values.shape[0])
    for rank in range(K):
        best, place = tl.max(values, 0), tl.argmax(values, 0)
        tl.store(out_values + at + rank, best)
        tl.store(out_ids + at + rank, tl.sum(tl.where(places == place, ids, 0), 0))
        values = tl.where(places == place, float("-inf"), values)


@kernel
def _summarise_tile(
    logits, best, best_ids, maxima, weights, moments, size, n_tiles, TILE: tl.constexpr, K: tl.constexpr
):
    tile, row = tl.program_id(0), tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    x = tl.load(logits + row.to(tl.int64) * size + ids, mask=ids < size, other=float("-inf")).to(tl.float32)
    most = tl.max(x, 0)
    base = tl.where(most == float("-inf"), 0.0, most)
    share = tl.exp(x - base)
    at = row * n_tiles + tile
    tl.store(maxima + at, most)
    tl.store(weights + at, tl.sum(share, 0))
    tl.store(moments + at, tl.sum(tl.where(share > 0.0, x - base, 0.0) * share, 0))  # forbidden tokens have −∞ · 0
    _take_best(x, ids, K, best, best_ids, at * K)


@kernel
def _merge_tiles(
    best, best_ids, maxima, weights, moments, p_top, logs, top, entropy, scale, n_tiles,
    TILES: tl.constexpr, CANDIDATES: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    tiles = tl.arange(0, TILES)
    is_tile = tiles < n_tiles
    maximum = tl.load(maxima + row * n_tiles + tiles, mask=is_tile, other=float("-inf"))
    weight = tl.load(weights + row * n_tiles + tiles, mask=is_tile, other=0.0).to(tl.float64)
    moment = tl.load(moments + row * n_tiles + tiles, mask=is_tile, other=0.0).to(tl.float64)
    most = tl.max(maximum, 0)
    shift = tl.where(maximum == float("-inf"), 0.0, maximum - most).to(tl.float64)
    factor = tl.where(maximum == float("-inf"), 0.0, tl.exp(shift))
    total = tl.sum(weight * factor, 0)
    mean = tl.sum((moment + shift * weight) * factor, 0) / total  # of the logits, relative to the largest
    log_total = tl.log(total)
    tl.store(entropy + row, (log_total - mean).to(tl.float32))
    tl.store(scale + 2 * row, most.to(tl.float64))
    tl.store(scale + 2 * row + 1, total)
    candidates = tl.arange(0, CANDIDATES)
    is_candidate = candidates < n_tiles * K
    at = row * n_tiles * K + candidates
    values = tl.load(best + at, mask=is_candidate, other=float("-inf"))
    ids = tl.load(best_ids + at, mask=is_candidate, other=0)
    places = tl.arange(0, CANDIDATES)
    for rank in range(K):
        value, place = tl.max(values, 0), tl.argmax(values, 0)
        log_p = (value - most).to(tl.float64) - log_total
        tl.store(logs + row * K + rank, log_p.to(tl.float32))
        tl.store(p_top + row * K + rank, tl.exp(log_p).to(tl.float32))
        tl.store(top + row * K + rank, tl.sum(tl.where(places == place, ids, 0), 0).to(tl.int64))
        values = tl.where(places == place, float("-inf"), values)


def summarise(
    logits: Float[Tensor, "n V"], k: int
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"], Int[Tensor, "n k"], Float[Tensor, " n"], Float64[Tensor, "n 2"]]:
    """Summarise the softmax of each row; see `workbench.kernels.distributions.SoftmaxSummary` for the results.

    Args:
        logits: contiguous logits, float32 or bfloat16.
        k: number of top tokens.

    Returns:
        Probabilities of the top tokens, their logarithms, token ids, entropy in nats, and scale of each row.
    """
    n, size = logits.shape
    n_tiles, device = -(-size // TILE), logits.device
    best = torch.empty(n, n_tiles, k, dtype=torch.float32, device=device)
    best_ids = torch.empty(n, n_tiles, k, dtype=torch.int32, device=device)
    maxima, weights, moments = torch.empty(3, n, n_tiles, dtype=torch.float32, device=device)
    p_top, logs = torch.empty(2, n, k, dtype=torch.float32, device=device)
    top = torch.empty(n, k, dtype=torch.int64, device=device)
    entropy = torch.empty(n, dtype=torch.float32, device=device)
    scale = torch.empty(n, 2, dtype=torch.float64, device=device)
    _summarise_tile[(n_tiles, n)](
        logits, best, best_ids, maxima, weights, moments, size, n_tiles, TILE=TILE, K=k, num_warps=4
    )
    _merge_tiles[(n,)](
        best, best_ids, maxima, weights, moments, p_top, logs, top, entropy, scale, n_tiles,
        TILES=padded(n_tiles), CANDIDATES=padded(n_tiles * k), K=k, num_warps=4,
    )  # fmt: skip
    return p_top, logs, top, entropy, scale
