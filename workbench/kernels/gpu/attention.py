"""Attention of few tokens over a KV cache: rotation and cache write, attention per chunk of keys, merge of chunks."""

from __future__ import annotations

import torch
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from workbench.kernels.gpu.arithmetic import EMULATED, kernel, multiply_add, padded, round_to

CHUNK = 128
"""Number of keys per Triton program. It is fixed, so that a token's sums have the same order in every forward pass."""
TILE = 32
"""Number of keys that a Triton program reads at once; with more, the compiler spills registers to memory."""
MOST_ROWS = 64
"""Maximum number of query rows (tokens × query heads that share a key head) per Triton program."""


@kernel
def _rotate_and_store(
    qkv, cos, sin, positions, norms, queries, cache, cache_rows, cache_positions, eps,
    stride_part, stride_row, stride_head, stride_position,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, NORM: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = SIZE // 2
    low = tl.arange(0, half)
    start = (token * (HEADS + 2 * GROUPS) + head) * SIZE
    first, second = tl.load(qkv + start + low).to(tl.float32), tl.load(qkv + start + half + low).to(tl.float32)
    dtype: tl.constexpr = queries.dtype.element_ty
    if head < HEADS + GROUPS:
        if NORM:
            factor = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / SIZE + eps)
            weight = norms + tl.where(head >= HEADS, SIZE, 0)
            first = round_to(first * factor, dtype, EMULATE).to(tl.float32) * tl.load(weight + low).to(tl.float32)
            second = round_to(second * factor, dtype, EMULATE).to(tl.float32) * tl.load(weight + half + low).to(
                tl.float32
            )
            first = round_to(first, dtype, EMULATE).to(tl.float32)
            second = round_to(second, dtype, EMULATE).to(tl.float32)
        at = tl.load(positions + token) * SIZE
        cos_low, cos_high = tl.load(cos + at + low).to(tl.float32), tl.load(cos + at + half + low).to(tl.float32)
        sin_low, sin_high = tl.load(sin + at + low).to(tl.float32), tl.load(sin + at + half + low).to(tl.float32)
        first, second = first * cos_low - second * sin_low, second * cos_high + first * sin_high
    first, second = round_to(first, dtype, EMULATE), round_to(second, dtype, EMULATE)
    if head < HEADS:
        out = queries + (token * HEADS + head) * SIZE
    else:
        is_value = head >= HEADS + GROUPS
        group = head - HEADS - tl.where(is_value, GROUPS, 0)
        row, position = tl.load(cache_rows + token), tl.load(cache_positions + token)
        out = (
            cache
            + tl.where(is_value, stride_part, 0)
            + row * stride_row
            + group * stride_head
            + position * stride_position
        )
    tl.store(out + low, first)
    tl.store(out + half + low, second)


@kernel
def _attend_to_chunk(
    queries, cache, mask, sums, maxima, weights, first_row, n, used, scale, floor,
    stride_part, stride_row, stride_head, stride_position, n_chunks,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    chunk, block, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared: tl.constexpr = HEADS // GROUPS
    sequence, group = pair // GROUPS, pair % GROUPS
    rows = block * ROWS + tl.arange(0, ROWS)  # head within the group × token
    is_row = rows < shared * n
    token, head = rows % n, group * shared + rows // n
    width = tl.arange(0, SIZE)
    mask_at = mask + (sequence * n + token).to(tl.int64)[:, None] * used
    line = ((pair * tl.num_programs(1) + block) * n_chunks + chunk).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    if not _sees_any(mask_at, is_row, chunk * CHUNK, used, floor, CHUNK):
        tl.store(maxima + line, most)
        return
    weight, total = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, SIZE), tl.float32)
    query_at = ((sequence * n + token) * HEADS + head)[:, None] * SIZE + width[None, :]
    query = tl.load(queries + query_at, mask=is_row[:, None], other=0.0)
    start = cache + (first_row + sequence).to(tl.int64) * stride_row + group * stride_head
    for tile in range(CHUNK // TILE):
        keys_at = chunk * CHUNK + tile * TILE + tl.arange(0, TILE)
        is_key = keys_at < used
        at = keys_at.to(tl.int64)[:, None] * stride_position + width[None, :]
        keys = tl.load(start + at, mask=is_key[:, None], other=0.0)
        is_read = is_row[:, None] & is_key[None, :]
        visible = tl.load(mask_at + keys_at[None, :], mask=is_read, other=floor).to(tl.float32) > floor * 0.5
        is_seen = tl.max(visible.to(tl.int32), 0) > 0  # other entries may contain NaN, and 0 · NaN is NaN
        values = tl.load(start + stride_part + at, mask=is_seen[:, None], other=0.0)
        scores = multiply_add(query, tl.trans(keys), tl.zeros((ROWS, TILE), tl.float32), EMULATE) * scale
        scores = tl.where(visible, scores, float("-inf"))
        new_most = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(new_most == float("-inf"), 0.0, new_most)
        factor, share = tl.exp(most - base), tl.exp(scores - base[:, None])
        weight = weight * factor + tl.sum(share, 1)
        total = multiply_add(round_to(share, values.dtype, EMULATE), values, total * factor[:, None], EMULATE)
        most = new_most
    tl.store(maxima + line, most)
    tl.store(weights + line, weight)
    tl.store(sums + line[:, None] * SIZE + width[None, :], total)


@kernel
def _sees_any(mask_at, is_row, first, used, floor, CHUNK: tl.constexpr):
    """Return whether any query row attends to any key of a chunk."""
    keys_at = first + tl.arange(0, CHUNK)
    is_read = is_row[:, None] & (keys_at < used)[None, :]
    values = tl.load(mask_at + keys_at[None, :], mask=is_read, other=floor).to(tl.float32)
    return tl.max(tl.max(values, 1), 0) > floor * 0.5


@kernel
def _merge(
    sums, maxima, weights, out, n, n_chunks, n_blocks,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    at, head = tl.program_id(0), tl.program_id(1)  # token of the pass, query head
    shared: tl.constexpr = HEADS // GROUPS
    sequence, token, group = at // n, at % n, head // shared
    row = (head % shared) * n + token
    first = ((sequence * GROUPS + group) * n_blocks + row // ROWS).to(tl.int64) * n_chunks * ROWS + row % ROWS
    width = tl.arange(0, SIZE)
    most = tl.full((), float("-inf"), tl.float32)
    for chunk in range(n_chunks):
        most = tl.maximum(most, tl.load(maxima + first + chunk * ROWS))
    total, weight = tl.zeros((SIZE,), tl.float32), tl.full((), 0.0, tl.float32)
    for chunk in range(n_chunks):
        line = first + chunk * ROWS
        theirs = tl.load(maxima + line)
        if theirs > float("-inf"):
            factor = tl.exp(theirs - most)
            weight += factor * tl.load(weights + line)
            total += factor * tl.load(sums + line * SIZE + width)
    total = total / tl.where(weight > 0.0, weight, 1.0)
    tl.store(out + (at * HEADS + head) * SIZE + width, round_to(total, out.dtype.element_ty, EMULATE))


def attend(
    qkv: Float[Tensor, "T E"],
    tables: tuple[Float[Tensor, "P D"], Float[Tensor, "P D"]],
    positions: Int[Tensor, " T"],
    cache: Float[Tensor, "two R G C D"],
    written: tuple[Int[Tensor, " T"], Int[Tensor, " T"]],
    mask: Float[Tensor, "B 1 n used"],
    first_row: int,
    scale: float,
    heads: int,
    norms: tuple[Float[Tensor, "two D"], float] | None = None,
) -> Float[Tensor, "T O"]:
    """Rotate queries and keys, write keys and values into the KV cache, and return the attention output.

    Args:
        qkv: queries (H heads), keys and values (G heads each) of T = B · n tokens, E = (H + 2 G) D.
        tables: cosines and sines of P positions.
        positions: position of each token in its sequence.
        cache: one layer's part of the KV cache, keys and then values.
        written: cache row and cache position that each token writes.
        mask: additive mask; a token attends to a key where it is above half the dtype's minimum.
        first_row: cache row of the first sequence.
        scale: factor of the scores.
        heads: number of query heads H.
        norms: weights of the RMS norms of queries and of keys, and their epsilon; None: there are none.

    Returns:
        Attention output, O = H D, before the output projection.
    """
    n_tokens, (_, _, groups, _, size), n = qkv.shape[0], cache.shape, mask.shape[2]
    used, n_sequences = mask.shape[3], mask.shape[0]
    queries = torch.empty(n_tokens, heads, size, dtype=qkv.dtype, device=qkv.device)
    strides = cache.stride()[:4]
    norm_weights, eps = norms or (qkv, 0.0)
    _rotate_and_store[(n_tokens, heads + 2 * groups)](
        qkv, *tables, positions, norm_weights, queries, cache, *written, eps, *strides,
        HEADS=heads, GROUPS=groups, SIZE=size, NORM=norms is not None, EMULATE=EMULATED,
        num_warps=1,
    )  # fmt: skip
    n_rows = heads // groups * n
    rows = min(MOST_ROWS, padded(n_rows))
    n_blocks, n_chunks, n_pairs = -(-n_rows // rows), -(-used // CHUNK), n_sequences * groups
    n_lines = n_pairs * n_blocks * n_chunks * rows
    sums = torch.empty(n_lines, size, dtype=torch.float32, device=qkv.device)
    maxima, weights = torch.empty(2, n_lines, dtype=torch.float32, device=qkv.device)
    _attend_to_chunk[(n_chunks, n_blocks, n_pairs)](
        queries, cache, mask, sums, maxima, weights, first_row, n, used, scale, torch.finfo(mask.dtype).min, *strides,
        n_chunks, HEADS=heads, GROUPS=groups, SIZE=size, ROWS=rows, CHUNK=CHUNK, TILE=TILE, EMULATE=EMULATED,
        num_warps=8 if rows * size > 4096 else 4,
    )  # fmt: skip
    out = torch.empty(n_tokens, heads * size, dtype=qkv.dtype, device=qkv.device)
    _merge[(n_tokens, heads)](
        sums, maxima, weights, out, n, n_chunks, n_blocks,
        HEADS=heads, GROUPS=groups, SIZE=size, ROWS=rows, EMULATE=EMULATED,
        num_warps=1,
    )  # fmt: skip
    return out
