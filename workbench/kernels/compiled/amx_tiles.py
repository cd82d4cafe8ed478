"""Compute matrix products with AMX tiles in bfloat16: 16 outputs × 16 tokens × 32 inputs per instruction.

Tiles multiply so fast that memory bandwidth is the limit even for 64 tokens. Weights are read from the model's own
tensors, one output per row; inputs are packed in pairs, tokens side by side (`pack`). **A float32 input becomes two
bfloat16 numbers**: the nearest bfloat16, and the nearest bfloat16 to the remainder. The relative error is below 2⁻¹⁷.
Sums are in float32 and in the same order for any number of tokens, so a token's result does not depend on the other
tokens in the forward pass.

These instructions treat subnormal numbers as 0.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from workbench.kernels.compiled import llvm
from workbench.kernels.compiled.llvm import LANES, SIZE

TILE = 16
"""Number of rows of an AMX tile: the number of outputs of a product that are computed together, and the maximum number
of tokens in a group."""
INPUTS = 32
"""Number of inputs of a matrix product in one row of an AMX tile."""
CONFIG = 64
"""Size of an AMX tile configuration in bytes."""
AHEAD = 8
"""Prefetch distance for weights, in steps of `INPUTS` inputs, if one block of outputs is computed; half of this number
if two blocks are."""
_SUMS, _WEIGHTS, _INPUTS = (0, 1, 2, 3), (4, 5), (6, 7)
"""Numbers of the AMX tile registers by use: four for sums (2 blocks of outputs × 2 groups of tokens), two for weights
(2 blocks), one for inputs and one for the inputs' remainders."""
_ADDRESS = types.int64


def is_available() -> bool:
    """Return whether compiled code may use AMX tiles: this machine has tiles, and no numba setting forbids them."""
    settings: Any = config
    features = get_host_cpu_features() if settings.CPU_FEATURES is None else settings.CPU_FEATURES
    return settings.CPU_NAME in (None, "host") and "+amx-bf16" in str(features).split(",")


@no_type_check
def _call(b, name, *arguments):
    """Emit a call of the LLVM intrinsic `name`, an AMX instruction; tile numbers among its arguments are constants."""
    if not is_available():  # never executed without AMX, and LLVM could not compile it
        return
    kinds = [argument.type for argument in arguments]
    function = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(ir.VoidType(), kinds), name)
    b.call(function, arguments)


@no_type_check
def _tile(number):
    return llvm.number(number, llvm.I8)


@no_type_check
def _at_config(name):
    """Return numba's signature and code generator for an LLVM intrinsic that loads or stores a tile configuration."""

    def codegen(ctx, b, sig, args):
        _call(b, name, b.inttoptr(args[0], llvm.I8.as_pointer()))
        return ctx.get_dummy_value()

    return types.void(_ADDRESS), codegen


@intrinsic
@no_type_check
def configure(context, address):
    """Load the AMX tile configuration of this thread from an address; this sets all tiles to zero."""
    return _at_config("llvm.x86.ldtilecfg")


@intrinsic
@no_type_check
def store_config(context, address):
    """Store the current AMX tile configuration of this thread at an address."""
    return _at_config("llvm.x86.sttilecfg")


@intrinsic
@no_type_check
def block(context, blocks, groups, w, x, n, tokens, out, rows, per_row, add):
    """Compute 16 or 32 neighbouring outputs of a matrix product with AMX tiles, for 1 or 2 groups of `tokens` tokens.

    out[t, o] = Σᵢ x[t, i] w[o, i] for t < `rows`; the result is added to `out` if `add` is 1. `blocks` is 1 for 16
    outputs and 2 for 32. `groups` is 0 if the forward pass has a single token. `w` is the address of the first output's
    weights, bfloat16 [·, n]. `x` is the address of the first group in the array that `pack` wrote. `out` is an address
    of float32, with `per_row` numbers from one token to the next. Tiles must be configured (`begin`).
    """

    def codegen(ctx, b, sig, args):
        blocks, groups, w, x, n, tokens, out, rows, per_row, add = args
        scratch = cgutils.alloca_once(b, ir.ArrayType(llvm.I8, 4 * TILE * TILE), name="sums")
        scratch.align = 64
        scratch_address = b.ptrtoint(scratch, llvm.I64)

        def move(name, tile, address, stride):
            _call(b, f"llvm.x86.{name}", _tile(tile), b.inttoptr(address, llvm.I8.as_pointer()), stride)

        def multiply(used):
            for tile in (tile for row in used for tile in row):
                _call(b, "llvm.x86.tilezero", _tile(tile))
            weight_row_bytes, input_row_bytes = (
                llvm.past(b, llvm.number(0), n, SIZE[llvm.TILES]),
                llvm.past(b, llvm.number(0), tokens, 4),
            )
            loop = llvm.Loop(b, n, INPUTS, 0)
            ahead_index, outputs = b.add(loop.i, llvm.number(AHEAD * INPUTS // len(used))), TILE * len(used)
            next_block_offset = b.add(b.sub(ahead_index, n), b.mul(n, llvm.number(outputs)))
            prefetch_address = llvm.past(
                b, w, b.select(b.icmp_signed("<", ahead_index, n), ahead_index, next_block_offset), SIZE[llvm.TILES]
            )
            for o in range(outputs):
                llvm.fetch(b, b.add(prefetch_address, b.mul(weight_row_bytes, llvm.number(o))))
            for o in range(len(used)):
                first = llvm.past(b, b.add(w, b.mul(weight_row_bytes, llvm.number(TILE * o))), loop.i, SIZE[llvm.TILES])
                move("tileloadd64", _WEIGHTS[o], first, weight_row_bytes)
            for g in range(len(used[0])):
                group_address = b.add(x, b.mul(b.add(loop.i, b.mul(n, llvm.number(g))), input_row_bytes))
                for part, tile in enumerate(_INPUTS):
                    move(
                        "tileloadd64",
                        tile,
                        b.add(group_address, b.mul(input_row_bytes, llvm.number(TILE * part))),
                        input_row_bytes,
                    )
                for tile in _INPUTS:
                    for o, row in enumerate(used):
                        _call(b, "llvm.x86.tdpbf16ps", _tile(row[g]), _tile(_WEIGHTS[o]), _tile(tile))
            loop.end([])

        def put(sums, to):
            """Store 16 outputs of one token, `sums`, at the address `to`; if `add` is 1, add them to the old values."""
            to, is_added = llvm.at(b, to, llvm.VECTOR), b.icmp_signed("!=", add, llvm.number(0))
            b.store(b.select(is_added, b.fadd(sums, b.load(to, align=4)), sums), to, align=4)

        def write(n_blocks, n_groups):
            sum_tiles = [[_SUMS[2 * o + g] for g in range(max(1, n_groups))] for o in range(n_blocks)]
            multiply(sum_tiles)
            for o, row in enumerate(sum_tiles):
                for g, tile in enumerate(row):
                    first = b.mul(tokens, llvm.number(g))
                    to = llvm.past(b, llvm.past(b, out, b.mul(per_row, first), 4), TILE * o, 4)
                    move("tilestored64", tile, scratch_address, llvm.number(4 * TILE if n_groups else 4))
                    tile_rows = range(TILE if n_groups else 1)
                    vectors = [
                        b.load(llvm.at(b, llvm.past(b, scratch_address, LANES * i, 4), llvm.VECTOR), align=64)
                        for i in tile_rows
                    ]
                    if not n_groups:
                        put(vectors[0], to)
                        continue
                    remaining = b.sub(rows, first)
                    remaining = b.select(b.icmp_signed("<", remaining, tokens), remaining, tokens)
                    for t, sums in enumerate(llvm.turned(b, vectors)):
                        with b.if_then(b.icmp_signed("<", llvm.number(t), remaining)):
                            put(sums, llvm.past(b, to, b.mul(per_row, llvm.number(t)), 4))

        llvm.cases(b, blocks, (1, 2), lambda o: llvm.cases(b, groups, (0, 1, 2), lambda g: write(o, g)))
        return ctx.get_dummy_value()

    return types.void(*[_ADDRESS] * 10), codegen


@intrinsic
@no_type_check
def pack_group(context, is_dealt, rows, there, n, tokens, out):
    """Write the inputs of a group of tokens in the layout of AMX tiles.

    For each 32 inputs, the layout has 16 pairs of bfloat16, then 16 pairs of their remainders; each pair is stored for
    all tokens side by side. `there` is the number of tokens in the group, and `tokens` the number for which the layout
    has space. `rows` is the address of the inputs, float32 [there, n], in the even-odd order of
    `layer_steps.to_even_odd_order` if `is_dealt`. `out` is the address of the result, int32 [n / 32, 2, 16, tokens]. 60
    bytes after the end of `out` are overwritten.
    """

    def codegen(ctx, b, sig, args):
        is_dealt, rows, there, n, tokens, out = args
        last = b.sub(there, llvm.number(1))

        def clamped(t):
            index = llvm.number(t)
            return b.select(b.icmp_signed("<", index, last), index, last)

        def halves(left, dealt):
            words = []
            for _ in range(2):
                rounded = []
                for h in range(2):
                    word = b.bitcast(left[h], llvm.WORDS)
                    odd = b.and_(b.lshr(word, llvm.every(16)), llvm.every(1))
                    rounded.append(b.and_(b.add(b.add(word, llvm.every(0x7FFF)), odd), llvm.every(-0x10000)))
                    left[h] = b.fsub(left[h], b.bitcast(rounded[h], llvm.VECTOR))
                upper = b.lshr(rounded[0], llvm.every(16))
                if dealt:
                    words.append(b.or_(upper, rounded[1]))
                    continue
                short = ir.VectorType(llvm.I16, LANES)
                short_parts = [b.trunc(upper, short), b.trunc(b.lshr(rounded[1], llvm.every(16)), short)]
                order = ir.Constant(ir.VectorType(llvm.I32, 2 * LANES), list(range(2 * LANES)))
                words.append(b.bitcast(b.shuffle_vector(*short_parts, order), llvm.WORDS))
            return words

        def write(dealt, alone):
            row_addresses = [llvm.past(b, rows, b.mul(n, clamped(t)), 4) for t in range(TILE)]
            loop = llvm.Loop(b, n, INPUTS, 0)
            pairs = []
            for t in range(1 if alone else TILE):
                addresses = [llvm.past(b, llvm.past(b, row_addresses[t], loop.i, 4), LANES * h, 4) for h in range(2)]
                pairs.append(
                    halves([b.load(llvm.at(b, address, llvm.VECTOR), align=4) for address in addresses], dealt)
                )
            to = llvm.past(b, out, b.mul(loop.i, tokens), 4)
            for part in range(2):  # a vector may be longer than its row; the next row overwrites the excess
                for row in [pairs[0][part]] if alone else llvm.turned(b, [pair[part] for pair in pairs]):
                    b.store(row, llvm.at(b, to, llvm.WORDS), align=4)
                    to = llvm.past(b, to, TILE if alone else tokens, 4)
            loop.end([])

        is_alone = b.zext(b.icmp_signed("==", tokens, llvm.number(1)), llvm.I64)
        llvm.cases(b, is_dealt, (0, 1), lambda d: llvm.cases(b, is_alone, (0, 1), lambda a: write(d, a)))
        return ctx.get_dummy_value()

    return types.void(*[_ADDRESS] * 6), codegen


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def tokens_of(rows):
    """Return the number of tokens that AMX tiles process together (a group) in a forward pass over `rows` tokens.

    The last group may be smaller.
    """
    groups = (rows + TILE - 1) // TILE
    return (rows + groups - 1) // groups


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def begin(by_tiles, rows):
    """Configure this thread's AMX tiles for a forward pass over `rows` tokens; return the old configuration for `end`.

    If `by_tiles` is false, nothing happens. Tiles for sums and inputs have one column per token of a group. A thread
    has only one tile configuration, and torch's matrix products do not check whether it is still torch's.
    """
    before, layout = np.zeros(CONFIG, np.uint8), np.zeros(CONFIG, np.uint8)
    if not by_tiles:
        return before[:0]
    store_config(before.ctypes.data)
    layout[0] = 1
    for tile in range(8):
        layout[16 + 2 * tile] = 64 if tile in _WEIGHTS else 4 * tokens_of(rows)
        layout[48 + tile] = TILE
    configure(layout.ctypes.data)
    return before


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def end(before):
    """Restore the AMX tile configuration that `begin` returned."""
    if before.shape[0] > 0:
        configure(before.ctypes.data)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def pack(is_dealt, rows, out):
    """Write the inputs of a matrix product, float32 [T, n], to `out` in the tile layout that `tiled` reads.

    `out` is int32, with room for groups · `tokens_of` · n numbers and 16 more. `is_dealt` says whether the inputs are
    in even-odd order.
    """
    n_rows, n = rows.shape
    tokens = tokens_of(n_rows)
    for first in range(0, n_rows, tokens):
        group_size = min(tokens, n_rows - first)
        pack_group(
            np.int64(is_dealt), rows.ctypes.data + 4 * first * n, group_size, n, tokens, out.ctypes.data + 4 * first * n
        )


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def tiled(w, n, lo, hi, x, rows, out, per_row, add):
    """Compute outputs lo ≤ o < hi of a matrix product for all `rows` tokens with AMX tiles.

    lo and hi are multiples of 16. `w` is the address of the weights, bfloat16 [·, n]; `x` the address of the inputs
    that `pack` wrote; `out` the address of output 0 of the first token, float32, with `per_row` numbers from one token
    to the next. The results are added to `out` if `add` is 1.
    """
    tokens = tokens_of(rows)
    groups, o = (rows + TILE - 1) // TILE, lo
    while o < hi:
        blocks = 2 if groups > 1 and o + TILE < hi else 1
        for group in range(0, groups, 2):
            first = group * tokens
            block(
                blocks, min(2, groups - group) if rows > 1 else 0, w + o * n * 2, x + 4 * first * n, n, tokens,
                out + 4 * (first * per_row + o), rows - first, per_row, add,
            )  # fmt: skip
        o += blocks * TILE
