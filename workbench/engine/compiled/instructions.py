"""What a pass over few tokens is made of, as instructions: products, attention, and how threads share the work.

A lone token reads every weight once and does two operations with it, so its time is that of memory. torch's products
reach about two thirds of what memory gives: they do not ask for a line early enough, and each starts and ends threads
of its own. Here a product fetches weights ahead, and up to eight tokens share each weight while it is in a register.
Measured on two cores (Intel Xeon, AVX-512, 260 MB of shared cache, weights larger than it; GB/s of weights read by
1 / 4 / 8 rows): oneDNN in bfloat16 19 / 16 / 10, these 27 / 23 / 20; reading memory and doing nothing else 25.

**What a token gets does not depend on which others are in the pass**: each output is summed in the same order for any
number of rows, and attention walks the tokens that are seen, in their order, wherever they lie in the cache. So text
drafted and verified on these is plain decoding's bit for bit, in bfloat16 too.

Everything takes addresses: `pieces` makes steps of a layer of it, `forward` a pass.
"""

from __future__ import annotations

from typing import Any, no_type_check

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

BF16, INT8 = 0, 1
"""Kinds of weights: bfloat16, and signed bytes with a scale for each output. Keys and values are bfloat16."""
SIZE = (2, 1)
"""Bytes of a number of each kind."""
LANES = 16
"""Numbers of a vector; sizes that are summed over are multiples of it."""
AHEAD = 4608
"""Bytes of a weight's row by which fetching goes before reading; from 2 to 16 kB it made little difference."""

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)
_ADDRESS = types.int64


def _number(value: int, kind: Any = _I64) -> Any:
    return ir.Constant(kind, value)


def _at(b: Any, address: Any, kind: Any) -> Any:
    return b.inttoptr(address, kind.as_pointer())


def _past(b: Any, address: Any, count: Any, size: int = 1) -> Any:
    """An address `count` numbers of `size` bytes further on."""
    if isinstance(count, int):
        return b.add(address, _number(count * size))
    return b.add(address, b.mul(count, _number(size)))


def _wide(b: Any, kind: int, address: Any) -> Any:
    """The vector of stored numbers at an address, in float32."""
    stored, whole = ir.VectorType(_I16 if kind == BF16 else _I8, LANES), ir.VectorType(_I32, LANES)
    raw = b.load(_at(b, address, stored), align=SIZE[kind])
    if kind == INT8:
        return b.sitofp(b.sext(raw, whole), _VECTOR)
    return b.bitcast(b.shl(b.zext(raw, whole), ir.Constant(whole, [16] * LANES)), _VECTOR)


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    name = f"llvm.fma.v{LANES}f32"
    return b.call(b.module.declare_intrinsic(name, (), ir.FunctionType(_VECTOR, [_VECTOR] * 3)), [x, y, z])


def _sum(b: Any, vector: Any) -> Any:
    name = f"llvm.vector.reduce.fadd.v{LANES}f32"
    add = b.module.declare_intrinsic(name, (), ir.FunctionType(_F32, [_F32, _VECTOR]))
    return b.call(add, [ir.Constant(_F32, -0.0), vector], fastmath=("reassoc",))


def _fetch(b: Any, address: Any) -> None:
    pointer = _I8.as_pointer()
    fetch = b.module.declare_intrinsic(
        "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
    )
    b.call(fetch, [b.inttoptr(address, pointer), *(_number(v, _I32) for v in (0, 3, 1))])


class _Loop:
    """`for i in range(0, n, step)` whose body, written between `with` and its end, carries vectors along; n > 0."""

    def __init__(self, b: Any, n: Any, step: int, carried: int) -> None:
        self._b, self._n, self._step = b, n, step
        before, self._body, self._after = b.block, b.append_basic_block("body"), b.append_basic_block("after")
        b.branch(self._body)
        b.position_at_end(self._body)
        self.i = b.phi(_I64)
        self.i.add_incoming(_number(0), before)
        self.vectors = [b.phi(_VECTOR) for _ in range(carried)]
        for vector in self.vectors:
            vector.add_incoming(ir.Constant(_VECTOR, [0.0] * LANES), before)

    def end(self, vectors: list[Any]) -> None:
        b = self._b
        following = b.add(self.i, _number(self._step))
        self.i.add_incoming(following, b.block)
        for old, new in zip(self.vectors, vectors, strict=True):
            old.add_incoming(new, b.block)
        b.cbranch(b.icmp_signed("<", following, self._n), self._body, self._after)
        b.position_at_end(self._after)


def _are_literal(*values: Any) -> bool:
    return all(isinstance(value, types.IntegerLiteral) for value in values)


@intrinsic
@no_type_check
def block(context, kind, rows, outs, w, x, n, out, per_row, scale, add):
    """Products of neighbouring outputs: out[r, o] = s(o) Σᵢ x[r, i] w[o, i], or that added to it where `add` is 1.

    `kind` of the weights, `rows` and `outs` are literals. `w` is the address of the first output's weights, [outs, n];
    `x` of float32 [rows, n], n a multiple of the weights in 64 bytes; `out` of float32, `per_row` of them from one row
    to the next; `scale` of one float32 for each output, read for bytes alone.
    """
    if not _are_literal(kind, rows, outs):
        return None
    k, n_rows, n_outs = (value.literal_value for value in (kind, rows, outs))
    unroll = 64 // SIZE[k] // LANES

    def codegen(ctx, b, sig, args):
        w, x, n, out, per_row, scale, add = args[3:]
        inputs = [_past(b, x, b.mul(n, _number(r)), 4) for r in range(n_rows)]
        weights = [_past(b, w, b.mul(n, _number(o)), SIZE[k]) for o in range(n_outs)]
        loop = _Loop(b, n, unroll * LANES, n_rows * n_outs)
        sums = list(loop.vectors)
        for u in range(unroll):
            at = b.add(loop.i, _number(u * LANES))
            w_now = [_wide(b, k, _past(b, place, at, SIZE[k])) for place in weights]
            if u == 0:
                for place in weights:
                    _fetch(b, b.add(_past(b, place, at, SIZE[k]), _number(AHEAD)))
            for r in range(n_rows):
                x_now = b.load(_at(b, _past(b, inputs[r], at, 4), _VECTOR), align=4)
                for o in range(n_outs):
                    sums[r * n_outs + o] = _fma(b, w_now[o], x_now, sums[r * n_outs + o])
        loop.end(sums)
        adds = b.icmp_signed("!=", add, _number(0))
        for r in range(n_rows):
            for o in range(n_outs):
                place = _at(b, _past(b, _past(b, out, b.mul(per_row, _number(r)), 4), o, 4), _F32)
                found = _sum(b, sums[r * n_outs + o])
                if k == INT8:
                    found = b.fmul(found, b.load(_at(b, _past(b, scale, o, 4), _F32)))
                b.store(b.select(adds, b.fadd(found, b.load(place)), found), place)
        return ctx.get_dummy_value()

    return types.void(kind, rows, outs, *[_ADDRESS] * 7), codegen


@intrinsic
@no_type_check
def scores(context, vectors, query, keys, seen, m, scale, out):
    """Scores of the keys that a query sees: out[j] = scale · query · keys[seen[j]] for j < m, m > 0.

    `vectors`, a literal, is the head size / 16. `query` is the address of float32 [head size], `keys` of bfloat16
    [·, head size], `seen` of int32 [m], `out` of float32 [m].
    """
    if not _are_literal(vectors):
        return None
    count = vectors.literal_value

    def codegen(ctx, b, sig, args):
        query, keys, seen, m, scale, out = args[1:]
        asked = [b.load(_at(b, _past(b, query, v * LANES, 4), _VECTOR), align=4) for v in range(count)]
        loop = _Loop(b, m, 1, 0)
        place = b.zext(b.load(_at(b, _past(b, seen, loop.i, 4), _I32)), _I64)
        key = _past(b, keys, place, count * LANES * 2)
        total = ir.Constant(_VECTOR, [0.0] * LANES)
        for v in range(count):
            total = _fma(b, asked[v], _wide(b, BF16, _past(b, key, v * LANES, 2)), total)
        b.store(b.fmul(_sum(b, total), scale), _at(b, _past(b, out, loop.i, 4), _F32))
        loop.end([])
        return ctx.get_dummy_value()

    return types.void(vectors, *[_ADDRESS] * 4, types.float32, _ADDRESS), codegen


@intrinsic
@no_type_check
def mix(context, vectors, weights, values, seen, m, out):
    """The values seen, mixed: out = Σⱼ weights[j] · values[seen[j]] over j < m, m > 0, in the order of j.

    Arguments as of `scores`.
    """
    if not _are_literal(vectors):
        return None
    count = vectors.literal_value

    def codegen(ctx, b, sig, args):
        weights, values, seen, m, out = args[1:]
        loop = _Loop(b, m, 1, count)
        place = b.zext(b.load(_at(b, _past(b, seen, loop.i, 4), _I32)), _I64)
        value = _past(b, values, place, count * LANES * 2)
        alone = b.insert_element(
            ir.Constant(_VECTOR, ir.Undefined),
            b.load(_at(b, _past(b, weights, loop.i, 4), _F32)),
            _number(0, _I32),
        )
        weight = b.shuffle_vector(alone, alone, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))
        loop.end(
            [
                _fma(b, weight, _wide(b, BF16, _past(b, value, v * LANES, 2)), so_far)
                for v, so_far in enumerate(loop.vectors)
            ]
        )
        for v, vector in enumerate(loop.vectors):
            done = vector.incomings[-1][0]
            b.store(done, _at(b, _past(b, out, v * LANES, 4), _VECTOR), align=4)
        return ctx.get_dummy_value()

    return types.void(vectors, *[_ADDRESS] * 5), codegen


@intrinsic
@no_type_check
def put(context, address, value):
    """Store a float32 as bfloat16, rounded to the nearest, ties to even."""

    def codegen(ctx, b, sig, args):
        bits = b.bitcast(args[1], _I32)
        odd = b.and_(b.lshr(bits, _number(16, _I32)), _number(1, _I32))
        bits = b.lshr(b.add(b.add(bits, _number(0x7FFF, _I32)), odd), _number(16, _I32))
        b.store(b.trunc(bits, _I16), _at(b, args[0], _I16))
        return ctx.get_dummy_value()

    return types.void(_ADDRESS, types.float32), codegen


@intrinsic
@no_type_check
def float_of(context, bits):
    """The float32 whose bits an int32 has."""

    def codegen(ctx, b, sig, args):
        return b.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen


@intrinsic
@no_type_check
def fetch_add(context, address, by):
    """What an int64 was before `by` was added to it, in one step that all threads see in the same order."""

    def codegen(ctx, b, sig, args):
        return b.atomic_rmw("add", b.inttoptr(args[0], _I64.as_pointer()), args[1], "seq_cst")

    return types.int64(_ADDRESS, types.int64), codegen


@intrinsic
@no_type_check
def give_way(context):
    """Let another thread have this core, if one waits for it."""

    def codegen(ctx, b, sig, args):
        known = b.module.globals.get("sched_yield")
        b.call(known or ir.Function(b.module, ir.FunctionType(_I32, []), "sched_yield"), [])
        return ctx.get_dummy_value()

    return types.void(), codegen
