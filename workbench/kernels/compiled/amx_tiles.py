"""Products by tiles of bfloat16 (AMX): 16 outputs × 16 tokens × 32 inputs an instruction, where a processor has them.

A tile multiplies so fast that even 64 tokens wait for weights to be read. The weights are read where the model has
them, an output a row; inputs come in pairs, tokens side by side (`pack`). **An input in float32 is two of bfloat16**,
what is nearest to it and what is nearest to the rest, so that nothing beyond 2⁻¹⁷ of it is lost, and sums are in
float32, made in one order for any number of tokens: what a token gets does not depend on which others are in the pass.

Subnormal numbers count as nothing in these instructions.
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
"""Rows of a tile: outputs that are made together; and most tokens that share them."""
INPUTS = 32
"""Inputs that a tile has of each of its rows."""
CONFIG = 64
"""Bytes that say what shape tiles have."""
AHEAD = 8
"""Steps by which fetching goes before reading, of one block of outputs; of two, half as many."""
_SUMS, _WEIGHTS, _INPUTS = (0, 1, 2, 3), (4, 5), (6, 7)
"""Tiles: of two blocks' outputs times two groups' tokens; of two blocks' weights; of inputs and of what is left."""
_ADDRESS = types.int64


def are_there() -> bool:
    """Whether what is compiled here may use tiles: this machine has them, and no setting of numba's forbids it."""
    settings: Any = config
    features = get_host_cpu_features() if settings.CPU_FEATURES is None else settings.CPU_FEATURES
    return settings.CPU_NAME in (None, "host") and "+amx-bf16" in str(features).split(",")


@no_type_check
def _call(b, name, *arguments):
    """An instruction on tiles, whose numbers are part of it."""
    if not are_there():  # where no tiles are, nobody comes here, and there is nothing to compile it to
        return
    kinds = [argument.type for argument in arguments]
    known = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(ir.VoidType(), kinds), name)
    b.call(known, arguments)


@no_type_check
def _tile(number):
    return llvm.number(number, llvm.I8)


@no_type_check
def _at_config(name):
    """An instruction that reads or writes the shapes of tiles at an address."""

    def codegen(ctx, b, sig, args):
        _call(b, name, b.inttoptr(args[0], llvm.I8.as_pointer()))
        return ctx.get_dummy_value()

    return types.void(_ADDRESS), codegen


@intrinsic
@no_type_check
def configure(context, address):
    """Give tiles the shapes that `CONFIG` bytes at an address say; what tiles held is gone."""
    return _at_config("llvm.x86.ldtilecfg")


@intrinsic
@no_type_check
def keep(context, address):
    """Write the shapes that tiles have now to an address."""
    return _at_config("llvm.x86.sttilecfg")


@intrinsic
@no_type_check
def block(context, blocks, groups, w, x, n, tokens, out, rows, per_row, add):
    """Products of 16 or 32 neighbouring outputs (`blocks` 1 or 2) with one or two groups of `tokens` tokens each.

    out[t, o] = Σᵢ x[t, i] w[o, i] for t < `rows`, or that added to it where `add` is 1; no group stands for a token
    that is alone in its pass. `w` is the address of the first output's weights, bfloat16 [·, n]; `x` of what `pack`
    made, at its group; `out` of float32, `per_row` of them from one token to the next. Tiles have their shapes.
    """

    def codegen(ctx, b, sig, args):
        blocks, groups, w, x, n, tokens, out, rows, per_row, add = args
        scratch = cgutils.alloca_once(b, ir.ArrayType(llvm.I8, 4 * TILE * TILE), name="sums")
        scratch.align = 64
        place = b.ptrtoint(scratch, llvm.I64)

        def move(name, tile, address, stride):
            _call(b, f"llvm.x86.{name}", _tile(tile), b.inttoptr(address, llvm.I8.as_pointer()), stride)

        def multiply(used):
            for tile in (tile for row in used for tile in row):
                _call(b, "llvm.x86.tilezero", _tile(tile))
            from_row, line = llvm.past(b, llvm.number(0), n, SIZE[llvm.TILES]), llvm.past(b, llvm.number(0), tokens, 4)
            loop = llvm.Loop(b, n, INPUTS, 0)
            ahead, outputs = b.add(loop.i, llvm.number(AHEAD * INPUTS // len(used))), TILE * len(used)
            beyond = b.add(b.sub(ahead, n), b.mul(n, llvm.number(outputs)))
            to_come = llvm.past(b, w, b.select(b.icmp_signed("<", ahead, n), ahead, beyond), SIZE[llvm.TILES])
            for o in range(outputs):
                llvm.fetch(b, b.add(to_come, b.mul(from_row, llvm.number(o))))
            for o in range(len(used)):
                first = llvm.past(b, b.add(w, b.mul(from_row, llvm.number(TILE * o))), loop.i, SIZE[llvm.TILES])
                move("tileloadd64", _WEIGHTS[o], first, from_row)
            for g in range(len(used[0])):
                mine = b.add(x, b.mul(b.add(loop.i, b.mul(n, llvm.number(g))), line))
                for part, tile in enumerate(_INPUTS):
                    move("tileloadd64", tile, b.add(mine, b.mul(line, llvm.number(TILE * part))), line)
                for tile in _INPUTS:
                    for o, row in enumerate(used):
                        _call(b, "llvm.x86.tdpbf16ps", _tile(row[g]), _tile(_WEIGHTS[o]), _tile(tile))
            loop.end([])

        def put(sums, to):
            """A token's 16 sums."""
            to, adds = llvm.at(b, to, llvm.VECTOR), b.icmp_signed("!=", add, llvm.number(0))
            b.store(b.select(adds, b.fadd(sums, b.load(to, align=4)), sums), to, align=4)

        def write(n_blocks, n_groups):
            used = [[_SUMS[2 * o + g] for g in range(max(1, n_groups))] for o in range(n_blocks)]
            multiply(used)
            for o, row in enumerate(used):
                for g, tile in enumerate(row):
                    first = b.mul(tokens, llvm.number(g))
                    to = llvm.past(b, llvm.past(b, out, b.mul(per_row, first), 4), TILE * o, 4)
                    move("tilestored64", tile, place, llvm.number(4 * TILE if n_groups else 4))
                    lines = range(TILE if n_groups else 1)
                    found = [
                        b.load(llvm.at(b, llvm.past(b, place, LANES * i, 4), llvm.VECTOR), align=64) for i in lines
                    ]
                    if not n_groups:
                        put(found[0], to)
                        continue
                    left = b.sub(rows, first)
                    left = b.select(b.icmp_signed("<", left, tokens), left, tokens)
                    for t, sums in enumerate(llvm.turned(b, found)):
                        with b.if_then(b.icmp_signed("<", llvm.number(t), left)):
                            put(sums, llvm.past(b, to, b.mul(per_row, llvm.number(t)), 4))

        llvm.cases(b, blocks, (1, 2), lambda o: llvm.cases(b, groups, (0, 1, 2), lambda g: write(o, g)))
        return ctx.get_dummy_value()

    return types.void(*[_ADDRESS] * 10), codegen


@intrinsic
@no_type_check
def pack_group(context, is_dealt, rows, there, n, tokens, out):
    """Inputs of a group's tiles: of each 32, 16 pairs of bfloat16 and 16 pairs of what is left; of a pair all tokens'.

    `rows` is the address of float32 [there, n], in the order of `pieces.deal` where `is_dealt`; `out` of
    int32 [n / 32, 2, 16, tokens], tokens ≥ there, behind which 60 bytes are written over.
    """

    def codegen(ctx, b, sig, args):
        is_dealt, rows, there, n, tokens, out = args
        last = b.sub(there, llvm.number(1))

        def clamped(t):
            now = llvm.number(t)
            return b.select(b.icmp_signed("<", now, last), now, last)

        def halves(left, dealt):
            found = []
            for _ in range(2):
                rounded = []
                for h in range(2):
                    word = b.bitcast(left[h], llvm.WORDS)
                    odd = b.and_(b.lshr(word, llvm.every(16)), llvm.every(1))
                    rounded.append(b.and_(b.add(b.add(word, llvm.every(0x7FFF)), odd), llvm.every(-0x10000)))
                    left[h] = b.fsub(left[h], b.bitcast(rounded[h], llvm.VECTOR))
                upper = b.lshr(rounded[0], llvm.every(16))
                if dealt:
                    found.append(b.or_(upper, rounded[1]))
                    continue
                short = ir.VectorType(llvm.I16, LANES)
                two = [b.trunc(upper, short), b.trunc(b.lshr(rounded[1], llvm.every(16)), short)]
                order = ir.Constant(ir.VectorType(llvm.I32, 2 * LANES), list(range(2 * LANES)))
                found.append(b.bitcast(b.shuffle_vector(*two, order), llvm.WORDS))
            return found

        def write(dealt, alone):
            of = [llvm.past(b, rows, b.mul(n, clamped(t)), 4) for t in range(TILE)]
            loop = llvm.Loop(b, n, INPUTS, 0)
            pairs = []
            for t in range(1 if alone else TILE):
                at = [llvm.past(b, llvm.past(b, of[t], loop.i, 4), LANES * h, 4) for h in range(2)]
                pairs.append(halves([b.load(llvm.at(b, place, llvm.VECTOR), align=4) for place in at], dealt))
            to = llvm.past(b, out, b.mul(loop.i, tokens), 4)
            for part in range(2):  # a vector is longer than what a row has, and the next row is written over its end
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
    """Tokens of a group: all groups of a pass have as many, the last one may lack some."""
    groups = (rows + TILE - 1) // TILE
    return (rows + groups - 1) // groups


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def begin(by_tiles, rows):
    """Give tiles the shapes for a pass over so many rows, if it goes by tiles; what `end` needs.

    Sums and inputs have a column for each token of a group. A thread has one set of shapes, and torch's products do not
    ask whether it is still theirs.
    """
    before, now = np.zeros(CONFIG, np.uint8), np.zeros(CONFIG, np.uint8)
    if not by_tiles:
        return before[:0]
    keep(before.ctypes.data)
    now[0] = 1
    for tile in range(8):
        now[16 + 2 * tile] = 64 if tile in _WEIGHTS else 4 * tokens_of(rows)
        now[48 + tile] = TILE
    configure(now.ctypes.data)
    return before


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def end(before):
    """Give tiles back the shapes that they had."""
    if before.shape[0] > 0:
        configure(before.ctypes.data)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def pack(is_dealt, rows, out):
    """Rows, float32 [T, n], as `tiled` takes them, into int32 of `groups` · `tokens_of` · n numbers and 16 more."""
    n_rows, n = rows.shape
    tokens = tokens_of(n_rows)
    for first in range(0, n_rows, tokens):
        now = min(tokens, n_rows - first)
        pack_group(
            np.int64(is_dealt), rows.ctypes.data + 4 * first * n, now, n, tokens, out.ctypes.data + 4 * first * n
        )


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def tiled(w, n, lo, hi, x, rows, out, per_row, add):
    """Outputs lo to below hi, multiples of 16, of all rows; `out` is where output 0 of row 0 would be."""
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
