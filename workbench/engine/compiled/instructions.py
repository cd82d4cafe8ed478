"""What a pass over few tokens is made of, as instructions: products, attention, and how threads share the work.

A lone token reads every weight once and does two operations with it, so its time is that of memory. torch's products
reach about two thirds of what memory gives: they do not ask for a line early enough, and each starts and ends threads
of its own. Here a product fetches weights ahead, and up to eight tokens share each weight while it is in a register.
Sums are in float32: what multiplies pairs of bfloat16 (vdpbf16ps) does so at half the pace of float32 on the machine
that this was measured on (two cores, Intel Xeon, AVX-512: 90 against 186 G products a second). There SmolLM2's 269 MB
are read in 10.3 ms by one row, 12.3 by 5, 14.4 by 8, 22 by 16 and 77 by 64 rows.

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
"""Kinds of weights: bfloat16, and signed bytes with scales. Keys and values are bfloat16."""
SIZE = (2, 1)
"""Bytes of a number of each kind."""
LANES = 16
"""Numbers of a vector."""
STEP = 32
"""Inputs that a product takes at a time, in an order of their own (`pieces.deal`); sizes are multiples of it."""
GROUP = 64
"""Bytes of a weight that share a scale (`workbench.engine.quantised`)."""
AHEAD = 9216
"""Bytes by which fetching goes before reading: memory's answer takes as long as eight tokens' work on so many."""

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VECTOR, _WORDS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
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


def _pair(b: Any, kind: int, address: Any) -> list[Any]:
    """32 weights at an address, in float32, in two vectors.

    Of bfloat16 the first are those at even places and the second those at odd ones: two of them are a word, and a shift
    and a mask take it apart, where 16 in their order cost twice as much. Bytes lie in that order.
    """
    if kind == INT8:
        raw = [b.load(_at(b, _past(b, address, LANES * h), ir.VectorType(_I8, LANES)), align=1) for h in range(2)]
        return [b.sitofp(b.sext(half, _WORDS), _VECTOR) for half in raw]
    raw = b.load(_at(b, address, _WORDS), align=2)
    return [b.bitcast(word, _VECTOR) for word in (b.shl(raw, _all(16)), b.and_(raw, _all(-0x10000)))]


def _all(number: int) -> Any:
    return ir.Constant(_WORDS, [number] * LANES)


def _sums(b: Any, vectors: list[Any]) -> Any:
    """One vector of the sums of up to 16, in their order; each is made by the same tree wherever it comes."""
    level, half = [*vectors, *[ir.Constant(_VECTOR, [0.0] * LANES)] * (LANES - len(vectors))], LANES // 2
    while half:
        level = [_fold(b, *two, half) for two in zip(level[: len(level) // 2], level[len(level) // 2 :], strict=True)]
        half //= 2
    return level[0]


def _fold(b: Any, one: Any, other: Any, half: int) -> Any:
    """Lanes in blocks of 2 · half, their halves added: the first half of each block of `one`, the second of `other`."""
    is_first = [i // half % 2 == 0 for i in range(LANES)]
    own = [i if first else LANES + i for i, first in enumerate(is_first)]
    across = [i + half if first else LANES + i - half for i, first in enumerate(is_first)]
    return b.fadd(*(b.shuffle_vector(one, other, ir.Constant(_WORDS, lanes)) for lanes in (own, across)))


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
    """Products of neighbouring outputs: out[r, o] = Σᵢ x[r, i] s(o, i) w[o, i], or that added to it where `add` is 1.

    `kind` of the weights, `rows` and `outs` are literals. `w` is the address of the first output's weights, [outs, n];
    `x` of float32 [rows, n], n a multiple of `STEP`, in the order of `pieces.deal`; `out` of float32, `per_row` of them
    from one row to the next; `scale` of float32 [outs, n / GROUP], read for bytes alone, and then once for all rows.

    The sums stay in registers, of which there are 32: rows · outs of them are for sums.
    """
    if not _are_literal(kind, rows, outs):
        return None
    k, n_rows, n_outs = (value.literal_value for value in (kind, rows, outs))

    def codegen(ctx, b, sig, args):
        w, x, n, out, per_row, scale, add = args[3:]
        inputs = [_past(b, x, b.mul(n, _number(r)), 4) for r in range(n_rows)]
        weights = [_past(b, w, b.mul(n, _number(o)), SIZE[k]) for o in range(n_outs)]
        loop = _Loop(b, n, STEP, n_rows * n_outs)
        sums = list(loop.vectors)
        places = [_past(b, place, loop.i, SIZE[k]) for place in weights]
        for place in places:
            _fetch(b, b.add(place, _number(AHEAD)))
        wide = [_pair(b, k, place) for place in places]
        if k == INT8:
            groups, group = b.sdiv(n, _number(GROUP)), b.sdiv(loop.i, _number(GROUP))
            at = [_past(b, scale, b.add(b.mul(groups, _number(o)), group), 4) for o in range(n_outs)]
            by = [_broadcast(b, b.load(_at(b, place, _F32))) for place in at]
            wide = [[b.fmul(half, by[o]) for half in wide[o]] for o in range(n_outs)]
        for h in range(2):
            for r in range(n_rows):
                at = _past(b, inputs[r], b.add(loop.i, _number(h * LANES)), 4)
                x_now = b.load(_at(b, at, _VECTOR), align=4)
                for o in range(n_outs):
                    sums[r * n_outs + o] = _fma(b, wide[o][h], x_now, sums[r * n_outs + o])
        loop.end(sums)
        adds, part = b.icmp_signed("!=", add, _number(0)), ir.VectorType(_F32, n_outs)
        at_once = LANES // n_outs
        for lo in range(0, n_rows, at_once):
            among = range(lo, min(n_rows, lo + at_once))
            found = _sums(b, [sums[r * n_outs + o] for r in among for o in range(n_outs)])
            for r in among:
                lanes = [(r - lo) * n_outs + o for o in range(n_outs)]
                mine = b.shuffle_vector(found, found, ir.Constant(ir.VectorType(_I32, n_outs), lanes))
                place = _at(b, _past(b, out, b.mul(per_row, _number(r)), 4), part)
                b.store(b.select(adds, b.fadd(mine, b.load(place, align=4)), mine), place, align=4)
        return ctx.get_dummy_value()

    return types.void(kind, rows, outs, *[_ADDRESS] * 7), codegen


@intrinsic
@no_type_check
def scores(context, vectors, heads, query, keys, seen, m, scale, out, per_head):
    """Scores of the keys that queries see: out[h, j] = scale · query[h] · keys[seen[j]] for j < m, m > 0.

    `vectors`, the head size / 16, an even number, and `heads`, at most 3, are literals. `query` is the address of
    float32 [heads, head size], dealt; `keys` of bfloat16 [·, head size], `seen` of int32 [m], `out` of float32
    [heads, per_head], where `per_head` ≥ m + 15: what stands behind m means nothing.
    """
    if not _are_literal(vectors, heads):
        return None
    n_vectors, n_heads = (value.literal_value for value in (vectors, heads))
    at_once = LANES // n_heads

    def codegen(ctx, b, sig, args):
        query, keys, seen, m, scale, out, per_head = args[2:]
        asked = [b.load(_at(b, _past(b, query, v * LANES, 4), _VECTOR), align=4) for v in range(n_heads * n_vectors)]
        loop, last = _Loop(b, m, at_once, 0), b.sub(m, _number(1))
        totals = [ir.Constant(_VECTOR, [0.0] * LANES)] * (n_heads * at_once)
        for j in range(at_once):
            now = b.add(loop.i, _number(j))
            now = b.select(b.icmp_signed("<", now, last), now, last)
            place = b.zext(b.load(_at(b, _past(b, seen, now, 4), _I32)), _I64)
            key = _past(b, keys, place, n_vectors * LANES * 2)
            wide = [half for v in range(0, n_vectors, 2) for half in _pair(b, BF16, _past(b, key, v * LANES, 2))]
            for h in range(n_heads):
                for v in range(n_vectors):
                    at = h * at_once + j
                    totals[at] = _fma(b, asked[h * n_vectors + v], wide[v], totals[at])
        found, part = _sums(b, totals), ir.VectorType(_F32, at_once)
        for h in range(n_heads):
            lanes = ir.Constant(ir.VectorType(_I32, at_once), [h * at_once + j for j in range(at_once)])
            mine = b.fmul(b.shuffle_vector(found, found, lanes), _broadcast(b, scale, at_once))
            place = _past(b, _past(b, out, b.mul(per_head, _number(h)), 4), loop.i, 4)
            b.store(mine, _at(b, place, part), align=4)
        loop.end([])
        return ctx.get_dummy_value()

    return types.void(vectors, heads, *[_ADDRESS] * 4, types.float32, *[_ADDRESS] * 2), codegen


def _broadcast(b: Any, number: Any, lanes: int = LANES) -> Any:
    kind = ir.VectorType(_F32, lanes)
    alone = b.insert_element(ir.Constant(kind, ir.Undefined), number, _number(0, _I32))
    return b.shuffle_vector(alone, alone, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


@intrinsic
@no_type_check
def mix(context, vectors, heads, weights, per_head, values, seen, m, out):
    """The values seen, mixed: out[h] = Σⱼ weights[h, j] · values[seen[j]] over j < m, m > 0, in the order of j, dealt.

    Arguments as of `scores`.
    """
    if not _are_literal(vectors, heads):
        return None
    n_vectors, n_heads = (value.literal_value for value in (vectors, heads))

    def codegen(ctx, b, sig, args):
        weights, per_head, values, seen, m, out = args[2:]
        loop = _Loop(b, m, 1, n_heads * n_vectors)
        place = b.zext(b.load(_at(b, _past(b, seen, loop.i, 4), _I32)), _I64)
        value = _past(b, values, place, n_vectors * LANES * 2)
        wide = [half for v in range(0, n_vectors, 2) for half in _pair(b, BF16, _past(b, value, v * LANES, 2))]
        sums = list(loop.vectors)
        for h in range(n_heads):
            at = _past(b, _past(b, weights, b.mul(per_head, _number(h)), 4), loop.i, 4)
            weight = _broadcast(b, b.load(_at(b, at, _F32)))
            for v in range(n_vectors):
                sums[h * n_vectors + v] = _fma(b, weight, wide[v], sums[h * n_vectors + v])
        loop.end(sums)
        for v, done in enumerate(sums):
            b.store(done, _at(b, _past(b, out, v * LANES, 4), _VECTOR), align=4)
        return ctx.get_dummy_value()

    return types.void(vectors, heads, *[_ADDRESS] * 6), codegen


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
