"""Emit LLVM code for the innermost operations of a forward pass over few tokens: products, attention, atomic counters.

For a single token, every weight is read once for two operations, so memory bandwidth is the limit. torch's products
reach about two thirds of that bandwidth: they prefetch too late, and each product starts and stops threads. Here a
product prefetches weights, and up to eight tokens share each weight while it is in a register. Sums are in float32: the
instruction that multiplies pairs of bfloat16 (vdpbf16ps) has half the throughput of float32 on the machine used for
measuring (two cores, Intel Xeon, AVX-512: 90 against 186 G products per second). On that machine a forward pass reads
SmolLM2's 269 MB in 10.3 ms with 1 token, 12.3 with 5, 14.4 with 8, 22 with 16 and 77 with 64.

**A token's result does not depend on the other tokens in the forward pass**: each output is summed in the same order
for any number of tokens, and attention visits positions in increasing order, wherever they are in the KV cache. So text
drafted and verified with this code equals plain decoding bit for bit, in bfloat16 too.

All functions here take memory addresses. The module `layer_steps` builds the steps of a decoder layer from these
functions, and the module `forward` a whole forward pass.
"""

from __future__ import annotations

from typing import Any, no_type_check

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from workbench.kernels.compiled import llvm
from workbench.kernels.compiled.llvm import BF16, INT8, LANES, SIZE

STEP = 32
"""Number of inputs that a matrix product reads per step, in even-odd order (`layer_steps.to_even_odd_order`). The width
of every product's input is a multiple of this number."""
GROUP = 64
"""Number of int8 weights that share a scale. It equals `workbench.kernels.quantised.GROUP`, but compiled code needs its
own constant."""
OUTS = 4
"""Number of outputs of a matrix product that are computed together. A product's number of outputs must be a multiple of
this number."""
ROWS = 8
"""Maximum number of rows (tokens) that a matrix product multiplies by a weight each time the weight is read."""
VECTORS = (2, 4, 6, 8)
"""Sizes of attention heads for which attention is compiled, as numbers of vectors with 16 entries."""
HEADS = 3
"""Maximum number of query heads of a token that share one read of the keys and values, limited by the number of
registers."""
AHEAD = 9216
"""Prefetch distance for weights in bytes. Multiplying this many bytes of weights by eight tokens takes about as long as
the memory latency."""

_ADDRESS = types.int64


@intrinsic
@no_type_check
def block(context, kind, rows, w, x, n, out, per_row, scale, add):
    """Compute `OUTS` neighbouring outputs of a matrix product for up to `ROWS` rows (tokens).

    out[r, o] = Σᵢ x[r, i] s(o, i) w[o, i]; the result is added to `out` if `add` is 1. The arguments are addresses:
    `w` of the first output's weights, [OUTS, n], of the given `kind`; `x` of the inputs, float32 [rows, n] in even-odd
    order (`layer_steps.to_even_odd_order`), n a multiple of `STEP`; `out` of float32, with `per_row` numbers from one
    row to the next; `scale` of the scales s, float32 [OUTS, n / GROUP], read only for int8 weights, once for all rows.

    The sums stay in the 32 registers. Therefore, with more than six rows, two outputs are computed at a time.
    """

    def codegen(ctx, b, sig, args):
        kind, rows, w, x, n, out, per_row, scale, add = args

        def some(k, n_rows, outs):
            n_outs = len(outs)
            inputs = [llvm.past(b, x, b.mul(n, llvm.number(r)), 4) for r in range(n_rows)]
            weights = [llvm.past(b, w, b.mul(n, llvm.number(o)), SIZE[k]) for o in outs]
            loop = llvm.Loop(b, n, STEP, n_rows * n_outs)
            sums = list(loop.vectors)
            addresses = [llvm.past(b, address, loop.i, SIZE[k]) for address in weights]
            for address in addresses:
                llvm.fetch(b, b.add(address, llvm.number(AHEAD)))
            wide = [llvm.pair(b, k, address) for address in addresses]
            if k == INT8:
                groups, group = b.sdiv(n, llvm.number(GROUP)), b.sdiv(loop.i, llvm.number(GROUP))
                at = [llvm.past(b, scale, b.add(b.mul(groups, llvm.number(o)), group), 4) for o in outs]
                by = [llvm.broadcast(b, b.load(llvm.at(b, address, llvm.F32))) for address in at]
                wide = [[b.fmul(half, by[o]) for half in wide[o]] for o in range(n_outs)]
            for h in range(2):
                for r in range(n_rows):
                    at = llvm.past(b, inputs[r], b.add(loop.i, llvm.number(h * LANES)), 4)
                    x_now = b.load(llvm.at(b, at, llvm.VECTOR), align=4)
                    for o in range(n_outs):
                        sums[r * n_outs + o] = llvm.fma(b, wide[o][h], x_now, sums[r * n_outs + o])
            loop.end(sums)
            adds, part = b.icmp_signed("!=", add, llvm.number(0)), ir.VectorType(llvm.F32, n_outs)
            at_once = LANES // n_outs
            for lo in range(0, n_rows, at_once):
                row_range = range(lo, min(n_rows, lo + at_once))
                totals = llvm.sums(b, [sums[r * n_outs + o] for r in row_range for o in range(n_outs)])
                for r in row_range:
                    lanes = [(r - lo) * n_outs + o for o in range(n_outs)]
                    outputs = b.shuffle_vector(totals, totals, ir.Constant(ir.VectorType(llvm.I32, n_outs), lanes))
                    address = llvm.past(b, llvm.past(b, out, b.mul(per_row, llvm.number(r)), 4), outs[0], 4)
                    address = llvm.at(b, address, part)
                    b.store(b.select(adds, b.fadd(outputs, b.load(address, align=4)), outputs), address, align=4)

        def write(k, n_rows):
            n_outs = OUTS if n_rows <= 6 else OUTS // 2
            for first in range(0, OUTS, n_outs):
                some(k, n_rows, range(first, first + n_outs))

        llvm.cases(b, kind, (BF16, INT8), lambda k: llvm.cases(b, rows, range(1, ROWS + 1), lambda r: write(k, r)))
        return ctx.get_dummy_value()

    return types.void(*[_ADDRESS] * 9), codegen


@intrinsic
@no_type_check
def scores(context, vectors, heads, query, keys, seen, m, scale, out, per_head):
    """Compute the attention scores of a token's queries: out[h, j] = scale · query[h] · keys[seen[j]] for j < m, m > 0.

    `vectors`, one of `VECTORS`, is the head size / 16; `heads` is at most `HEADS`. The other arguments are addresses:
    `query` of float32 [heads, head size] in even-odd order (`layer_steps.to_even_odd_order`); `keys` of bfloat16
    [·, head size]; `seen` of int32 [m]; `out` of float32 [heads, per_head] with per_head ≥ m + 15. Entries of `out`
    after the first m of a head are undefined.
    """

    def codegen(ctx, b, sig, args):
        vectors, heads, query, keys, seen, m, scale, out, per_head = args

        def write(n_vectors, n_heads):
            at_once, queries = LANES // n_heads, range(n_heads * n_vectors)
            query_vectors = [
                b.load(llvm.at(b, llvm.past(b, query, v * LANES, 4), llvm.VECTOR), align=4) for v in queries
            ]
            loop, last = llvm.Loop(b, m, at_once, 0), b.sub(m, llvm.number(1))
            totals = [ir.Constant(llvm.VECTOR, [0.0] * LANES)] * (n_heads * at_once)
            for j in range(at_once):
                index = b.add(loop.i, llvm.number(j))
                index = b.select(b.icmp_signed("<", index, last), index, last)
                wide = _row(b, keys, seen, index, n_vectors)
                for h in range(n_heads):
                    for v in range(n_vectors):
                        at = h * at_once + j
                        totals[at] = llvm.fma(b, query_vectors[h * n_vectors + v], wide[v], totals[at])
            lane_sums, part = llvm.sums(b, totals), ir.VectorType(llvm.F32, at_once)
            for h in range(n_heads):
                lanes = ir.Constant(ir.VectorType(llvm.I32, at_once), [h * at_once + j for j in range(at_once)])
                head_scores = b.fmul(b.shuffle_vector(lane_sums, lane_sums, lanes), llvm.broadcast(b, scale, at_once))
                address = llvm.past(b, llvm.past(b, out, b.mul(per_head, llvm.number(h)), 4), loop.i, 4)
                b.store(head_scores, llvm.at(b, address, part), align=4)
            loop.end([])

        llvm.cases(b, heads, range(1, HEADS + 1), lambda h: llvm.cases(b, vectors, VECTORS, lambda v: write(v, h)))
        return ctx.get_dummy_value()

    return types.void(*[_ADDRESS] * 6, types.float32, *[_ADDRESS] * 2), codegen


def _row(b: Any, rows: Any, seen: Any, at: Any, n_vectors: int) -> list[Any]:
    """Load the key or value at KV-cache position seen[at] as float32; of each 32 numbers, even indices come first."""
    position = b.zext(b.load(llvm.at(b, llvm.past(b, seen, at, 4), llvm.I32)), llvm.I64)
    row = llvm.past(b, rows, position, n_vectors * LANES * 2)
    return [half for v in range(0, n_vectors, 2) for half in llvm.pair(b, BF16, llvm.past(b, row, v * LANES, 2))]


@intrinsic
@no_type_check
def mix(context, vectors, heads, weights, per_head, values, seen, m, out):
    """Compute the attention output: the weighted sum of values out[h] = Σⱼ weights[h, j] · values[seen[j]] for j < m.

    Terms are added in the order of j; m > 0. The arguments are addresses: `weights` of float32 [heads, per_head];
    `values` of bfloat16 [·, head size]; `seen` of int32 [m]; `out` of float32 [heads, head size] in even-odd order.
    Even-odd order: see `layer_steps.to_even_odd_order`. `vectors`, one of `VECTORS`, is the head size / 16; `heads` is
    at most `HEADS`.
    """

    def codegen(ctx, b, sig, args):
        vectors, heads, weights, per_head, values, seen, m, out = args

        def write(n_vectors, n_heads):
            loop = llvm.Loop(b, m, 1, n_heads * n_vectors)
            wide, sums = _row(b, values, seen, loop.i, n_vectors), list(loop.vectors)
            for h in range(n_heads):
                at = llvm.past(b, llvm.past(b, weights, b.mul(per_head, llvm.number(h)), 4), loop.i, 4)
                weight = llvm.broadcast(b, b.load(llvm.at(b, at, llvm.F32)))
                for v in range(n_vectors):
                    sums[h * n_vectors + v] = llvm.fma(b, weight, wide[v], sums[h * n_vectors + v])
            loop.end(sums)
            for v, total in enumerate(sums):
                b.store(total, llvm.at(b, llvm.past(b, out, v * LANES, 4), llvm.VECTOR), align=4)

        llvm.cases(b, heads, range(1, HEADS + 1), lambda h: llvm.cases(b, vectors, VECTORS, lambda v: write(v, h)))
        return ctx.get_dummy_value()

    return types.void(*[_ADDRESS] * 8), codegen


@intrinsic
@no_type_check
def put(context, address, value):
    """Store a float32 `value` at an address as bfloat16, rounded to nearest, ties to even."""

    def codegen(ctx, b, sig, args):
        bits = b.bitcast(args[1], llvm.I32)
        odd = b.and_(b.lshr(bits, llvm.number(16, llvm.I32)), llvm.number(1, llvm.I32))
        bits = b.lshr(b.add(b.add(bits, llvm.number(0x7FFF, llvm.I32)), odd), llvm.number(16, llvm.I32))
        b.store(b.trunc(bits, llvm.I16), llvm.at(b, args[0], llvm.I16))
        return ctx.get_dummy_value()

    return types.void(_ADDRESS, types.float32), codegen


@intrinsic
@no_type_check
def float_of(context, bits):
    """Return the float32 number that has the same bits as an int32."""

    def codegen(ctx, b, sig, args):
        return b.bitcast(args[0], llvm.F32)

    return types.float32(types.int32), codegen


@intrinsic
@no_type_check
def fetch_add(context, address, by):
    """Add `by` to the int64 at an address atomically (sequentially consistent) and return its previous value."""

    def codegen(ctx, b, sig, args):
        return b.atomic_rmw("add", b.inttoptr(args[0], llvm.I64.as_pointer()), args[1], "seq_cst")

    return types.int64(_ADDRESS, types.int64), codegen


@intrinsic
@no_type_check
def give_way(context):
    """Yield this core to a waiting thread, if there is one."""

    def codegen(ctx, b, sig, args):
        function = b.module.globals.get("sched_yield")
        b.call(function or ir.Function(b.module, ir.FunctionType(llvm.I32, []), "sched_yield"), [])
        return ctx.get_dummy_value()

    return types.void(), codegen
