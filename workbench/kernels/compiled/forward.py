"""Run a forward pass of a Llama-like decoder over a few tokens as one compiled function without Python.

Any number of threads call the same function with the same arrays. A layer has five phases: projections to queries, keys
and values; attention; output projection; gate and up projections; down projection. A phase consists of pieces of work,
and each thread takes the next free piece. So a thread that starts late, or loses its core to another program, delays at
most one piece, and a single thread can do everything. The result does not depend on which thread computes a piece (see
`instructions`).

Arrays of a forward pass over T tokens, with L layers, width D, H heads over G key-value heads, head size d, MLP width
F:
    x: float32 [T, D], the residual stream, changed in place.
    weights: int64 [L, 7], addresses of q, k, v, o, gate, up, down, each [outputs, inputs].
    scales: int64 [L, 7], addresses of float32 [outputs, inputs / 64] if weights are int8.
    biases: float32 [L, 1, (H + 2 G) d], or one per token, [L, T, …]; shape [0, 0, 0] if there is none.
    norms: float32 [L, 2, D], weights of the norms before attention and before the MLP.
    cos, sin: float32 [T, d], cosines and sines for each token's position in the sequence.
    cache: int64 [5], address of the KV cache, and its strides in bytes by layer, part (keys, values), row and head.
    row, place: int64 [T], row (sequence) and position of the KV cache at which each token is stored.
    seen: int32 [T, used], positions of the KV cache that each token attends to, in increasing order.
    count: int64 [T], number of these positions.
    taken: int64 [phases, 2], zeros: number of pieces taken, number of pieces done.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.amx_tiles import begin, end
from workbench.kernels.compiled.instructions import HEADS, LANES, put
from workbench.kernels.compiled.layer_steps import (
    aligned,
    apply_rope,
    attend,
    gate,
    norm,
    product,
    ready,
    room,
    to_even_odd_order,
)
from workbench.kernels.compiled.llvm import TILES
from workbench.kernels.compiled.work_sharing import done, take, wait

PHASES = 5
"""Number of phases per decoder layer; within a phase, threads may compute the pieces of work in any order."""
_OUT, _WIDE, _HEAD = 96, 256, 2048
"""Number of outputs that a thread computes at a time: `_OUT` of the output and down projections, `_WIDE` of the gate
and up projections, `_HEAD` of the LM head. Smaller numbers balance the work better between threads; larger numbers read
longer contiguous memory."""


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def run_layers(
    kind, layers, halves, x, weights, scales, biases, norms, eps, sizes, scale, cos, sin, cache, row, place, seen,
    count, taken, query, mixed, wide,
):  # fmt: skip
    """Run decoder layers over the residual stream x of T tokens, in place.

    Arguments that the module's docstring does not describe: `kind` of the weights (`llvm.BF16`, …); `layers`, int64
    indices of the layers to run; `halves`, int64 [·, 2], 1 where a layer's attention or its MLP is run, 0 where it is
    left out; `sizes` (H, G, d, F); `scale`, the factor of attention scores; and scratch memory in float32: `query` and
    `mixed` [T, H, d], in the order of `to_even_odd_order`, and `wide` [T, F].
    """
    n_tokens, width = x.shape
    heads, groups, size, mlp_width = sizes
    normed, even_odd = aligned(n_tokens, width), aligned(n_tokens, width)
    wide_even_odd = aligned(n_tokens, mlp_width)
    scratch = np.empty((n_tokens, max(size, _WIDE)), np.float32)
    scratch_width, score_scratch = scratch.shape[1], np.empty((HEADS, seen.shape[1] + LANES), np.float32)
    group_size, attended = heads // groups, mixed.reshape((n_tokens, heads * size))
    packed, before = room(kind, n_tokens, max(width, heads * size, mlp_width)), begin(kind == TILES, n_tokens)
    x_address, phase, inputs = x.ctypes.data, 0, np.int64(0)
    for i_layer in range(len(layers)):
        layer, runs_attention, runs_mlp = layers[i_layer], halves[i_layer, 0], halves[i_layer, 1]
        w, s = weights[layer], scales[layer]

        pieces, is_first = runs_attention * (heads + 2 * groups), True
        piece = take(taken[phase], pieces)
        while piece >= 0:
            if is_first:
                norm(x, norms[layer, 0], eps, normed)
                inputs, is_first = ready(kind, normed, even_odd, packed), False
            part = 0 if piece < heads else 1 + (piece - heads) // groups
            head = piece if part == 0 else (piece - heads) % groups
            lo = head * size
            product(
                kind, w[part], width, lo, lo + size, inputs, n_tokens,
                scratch.ctypes.data - 4 * lo, scratch_width, s[part], 0,
            )  # fmt: skip
            if biases.shape[0] > 0:
                scratch[:, :size] += biases[layer, :, piece * size : piece * size + size]
            for t in range(n_tokens):
                if part < 2:
                    apply_rope(scratch[t, :size], cos[t], sin[t])
                if part > 0:
                    address = cache[0] + layer * cache[1] + (part - 1) * cache[2] + row[t] * cache[3] + head * cache[4]
                    address += place[t] * size * 2
                    for i in range(size):
                        put(address + 2 * i, scratch[t, i])
            if part == 0:
                to_even_odd_order(scratch[:, :size], query[:, head])
            done(taken[phase])
            piece = take(taken[phase], pieces)
        wait(taken[phase], pieces)
        phase += 1

        pieces = runs_attention * n_tokens * groups
        piece = take(taken[phase], pieces)
        while piece >= 0:
            t, group = piece // groups, piece % groups
            keys = cache[0] + layer * cache[1] + row[t] * cache[3] + group * cache[4]
            queries, outputs = query[t, group * group_size :][:group_size], mixed[t, group * group_size :][:group_size]
            if count[t] > 0:
                attend(queries, keys, keys + cache[2], seen[t], count[t], scale, score_scratch, outputs)
            else:
                outputs[:] = 0
            done(taken[phase])
            piece = take(taken[phase], pieces)
        wait(taken[phase], pieces)
        phase += 1

        pieces, is_first = runs_attention * ((width + _OUT - 1) // _OUT), True
        piece = take(taken[phase], pieces)
        while piece >= 0:
            if is_first:
                inputs, is_first = ready(kind, attended, attended, packed), False
            lo, hi = piece * _OUT, min(width, piece * _OUT + _OUT)
            product(kind, w[3], heads * size, lo, hi, inputs, n_tokens, x_address, width, s[3], 1)
            done(taken[phase])
            piece = take(taken[phase], pieces)
        wait(taken[phase], pieces)
        phase += 1

        pieces, is_first = runs_mlp * ((mlp_width + _WIDE - 1) // _WIDE), True
        piece = take(taken[phase], pieces)
        while piece >= 0:
            if is_first:
                norm(x, norms[layer, 1], eps, normed)
                inputs, is_first = ready(kind, normed, even_odd, packed), False
            lo, hi = piece * _WIDE, min(mlp_width, piece * _WIDE + _WIDE)
            product(kind, w[4], width, lo, hi, inputs, n_tokens, wide.ctypes.data, mlp_width, s[4], 0)
            address = scratch.ctypes.data - 4 * lo
            product(kind, w[5], width, lo, hi, inputs, n_tokens, address, scratch_width, s[5], 0)
            for t in range(n_tokens):
                gate(wide[t, lo:hi], scratch[t, : hi - lo])
            done(taken[phase])
            piece = take(taken[phase], pieces)
        wait(taken[phase], pieces)
        phase += 1

        pieces, is_first = runs_mlp * ((width + _OUT - 1) // _OUT), True
        piece = take(taken[phase], pieces)
        while piece >= 0:
            if is_first:
                inputs, is_first = ready(kind, wide, wide_even_odd, packed), False
            lo, hi = piece * _OUT, min(width, piece * _OUT + _OUT)
            product(kind, w[6], mlp_width, lo, hi, inputs, n_tokens, x_address, width, s[6], 1)
            done(taken[phase])
            piece = take(taken[phase], pieces)
        wait(taken[phase], pieces)
        phase += 1
    end(before)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def read_logits(kind, x, last, eps, weight, scale, hidden, out, taken):
    """Apply the final norm and the LM head to the residual stream x, float32 [T, D].

    Writes the normed x to `hidden` [T, D], and the logits to `out`, int16 [T, V], as bits of bfloat16. `last` is the
    norm's weight; `kind` is the kind of the LM head's weight; `taken` holds the counters of one phase, int64 [2].
    """
    n_tokens, width = x.shape
    size = out.shape[1]
    scratch = aligned(n_tokens, _HEAD)
    pieces, is_first = (size + _HEAD - 1) // _HEAD, True
    normed, even_odd = aligned(n_tokens, width), aligned(n_tokens, width)
    packed, before, inputs = room(kind, n_tokens, width), begin(kind == TILES, n_tokens), np.int64(0)
    piece = take(taken, pieces)
    while piece >= 0:
        if is_first:
            norm(x, last, eps, normed)
            inputs, is_first = ready(kind, normed, even_odd, packed), False
        lo, hi = piece * _HEAD, min(size, piece * _HEAD + _HEAD)
        if piece == 0:
            hidden[:] = normed
        to = scratch.ctypes.data - 4 * lo
        product(kind, weight, width, lo, hi, inputs, n_tokens, to, _HEAD, scale, 0)
        for t in range(n_tokens):
            address = out.ctypes.data + 2 * (t * size + lo)
            for i in range(hi - lo):
                put(address + 2 * i, scratch[t, i])
        done(taken)
        piece = take(taken, pieces)
    wait(taken, pieces)
    end(before)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def list_seen(mask, seen, count):
    """List the KV-cache positions that each token attends to: those where its additive mask, float32 [T, used], is 0.

    Writes the positions to `seen`, int32 [T, used], in increasing order, and their number to `count`, int64 [T].
    """
    for t in range(mask.shape[0]):
        m = 0
        for j in range(mask.shape[1]):
            if mask[t, j] == 0:
                seen[t, m] = j
                m += 1
        count[t] = m
