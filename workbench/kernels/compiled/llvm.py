"""Emit LLVM code for vectors of 16 numbers, addresses, loops and branches, for the module `instructions`.

`b` is llvmlite's builder throughout. These functions return LLVM values, not Python numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

BF16, INT8, TILES = 0, 1, 2
"""Kinds of weights in compiled matrix products: bfloat16; int8 with scales; bfloat16 multiplied by AMX tiles. Keys and
values are always bfloat16."""
SIZE = (2, 1, 2)
"""Number of bytes per weight of a compiled matrix product, by kind of weights (`BF16`, `INT8`, `TILES`)."""
LANES = 16
"""Number of float32 entries in a vector."""
F32, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
VECTOR, WORDS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


def number(value: int, kind: Any = I64) -> Any:
    """Return an LLVM constant of type `kind` for a Python number."""
    return ir.Constant(kind, value)


def at(b: Any, address: Any, kind: Any) -> Any:
    """Return an LLVM pointer to values of type `kind` at an address."""
    return b.inttoptr(address, kind.as_pointer())


def past(b: Any, address: Any, count: Any, size: int = 1) -> Any:
    """Return an LLVM value: an address increased by `count` numbers of `size` bytes each."""
    if isinstance(count, int):
        return b.add(address, number(count * size))
    return b.add(address, b.mul(count, number(size)))


def pair(b: Any, kind: int, address: Any) -> list[Any]:
    """Emit LLVM code that loads 32 weights from an address as two vectors of float32.

    For bfloat16 the first vector gets the weights at even positions, and the second vector those at odd positions. Two
    bfloat16 weights are one 32-bit word, which a shift and a mask split; to keep their order would cost twice as much.
    Int8 weights stay in order.
    """
    if kind == INT8:
        raw = [b.load(at(b, past(b, address, LANES * h), ir.VectorType(I8, LANES)), align=1) for h in range(2)]
        return [b.sitofp(b.sext(half, WORDS), VECTOR) for half in raw]
    raw = b.load(at(b, address, WORDS), align=2)
    return [b.bitcast(word, VECTOR) for word in (b.shl(raw, every(16)), b.and_(raw, every(-0x10000)))]


def every(word: int) -> Any:
    """Return an LLVM constant: a vector that repeats one 32-bit word."""
    return ir.Constant(WORDS, [word] * LANES)


def sums(b: Any, vectors: list[Any]) -> Any:
    """Emit LLVM code for a vector whose lane i is the sum of all lanes of vector i, for up to 16 vectors.

    The order of additions is the same in every lane.
    """
    level, half = [*vectors, *[ir.Constant(VECTOR, [0.0] * LANES)] * (LANES - len(vectors))], LANES // 2
    while half:
        level = [
            _fold(b, *vector_pair, half)
            for vector_pair in zip(level[: len(level) // 2], level[len(level) // 2 :], strict=True)
        ]
        half //= 2
    return level[0]


def _fold(b: Any, one: Any, other: Any, half: int) -> Any:
    """Emit LLVM code that adds the two halves of each block of 2 · half lanes, for two vectors.

    Each block of the resulting vector has the sums of `one` in its first half and those of `other` in its second half.
    """
    is_first = [i // half % 2 == 0 for i in range(LANES)]
    same_block = [i if first else LANES + i for i, first in enumerate(is_first)]
    other_block = [i + half if first else LANES + i - half for i, first in enumerate(is_first)]
    return b.fadd(*(b.shuffle_vector(one, other, ir.Constant(WORDS, lanes)) for lanes in (same_block, other_block)))


def turned(b: Any, rows: list[Any]) -> list[Any]:
    """Emit LLVM code that transposes a matrix of 16 vectors with 16 numbers.

    Blocks of 1, 2, 4 and 8 numbers are exchanged in turn.
    """
    half = 1
    while half < LANES:
        is_even_block = [i & half == 0 for i in range(LANES)]
        upper = [i if is_even else LANES + i - half for i, is_even in enumerate(is_even_block)]
        lower = [i + half if is_even else LANES + i for i, is_even in enumerate(is_even_block)]
        exchanged = list(rows)
        for i in (i for i, is_even in enumerate(is_even_block) if is_even):
            for to, lanes in ((i, upper), (i + half, lower)):
                exchanged[to] = b.shuffle_vector(rows[i], rows[i + half], ir.Constant(WORDS, lanes))
        rows, half = exchanged, 2 * half
    return rows


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """Return the LLVM value x · y + z, rounded once (fused multiply–add of vectors)."""
    name = f"llvm.fma.v{LANES}f32"
    return b.call(b.module.declare_intrinsic(name, (), ir.FunctionType(VECTOR, [VECTOR] * 3)), [x, y, z])


def fetch(b: Any, address: Any) -> None:
    """Emit a prefetch of the cache line at an address."""
    pointer = I8.as_pointer()
    prefetch = b.module.declare_intrinsic(
        "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    )
    b.call(prefetch, [b.inttoptr(address, pointer), *(number(v, I32) for v in (0, 3, 1))])


class Loop:
    """Loop in LLVM code: `for i in range(0, n, step)`, n > 0, with `carried` vectors that each iteration updates.

    The vectors start at 0. Code that is emitted between the constructor and `end` is the body of the loop.
    """

    def __init__(self, b: Any, n: Any, step: int, carried: int) -> None:
        self._b, self._n, self._step = b, n, step
        before, self._body, self._after = b.block, b.append_basic_block("body"), b.append_basic_block("after")
        b.branch(self._body)
        b.position_at_end(self._body)
        self.i = b.phi(I64)
        self.i.add_incoming(number(0), before)
        self.vectors = [b.phi(VECTOR) for _ in range(carried)]
        for vector in self.vectors:
            vector.add_incoming(ir.Constant(VECTOR, [0.0] * LANES), before)

    def end(self, vectors: list[Any]) -> None:
        b = self._b
        following = b.add(self.i, number(self._step))
        self.i.add_incoming(following, b.block)
        for old, new in zip(self.vectors, vectors, strict=True):
            old.add_incoming(new, b.block)
        b.cbranch(b.icmp_signed("<", following, self._n), self._body, self._after)
        b.position_at_end(self._after)


def cases(b: Any, value: Any, options: Sequence[int], write: Callable[[int], None]) -> None:
    """Emit an LLVM switch on `value`, which is one of the options at run time; `write` emits the code for an option."""
    after, blocks = b.append_basic_block("after"), [b.append_basic_block("case") for _ in options]
    choice = b.switch(value, blocks[-1])
    for option, block in zip(options, blocks, strict=True):
        if block is not blocks[-1]:
            choice.add_case(number(option), block)
        b.position_at_end(block)
        write(option)
        b.branch(after)
    b.position_at_end(after)


def broadcast(b: Any, value: Any, lanes: int = LANES) -> Any:
    """Return an LLVM vector that repeats one float32 value."""
    kind = ir.VectorType(F32, lanes)
    vector = b.insert_element(ir.Constant(kind, ir.Undefined), value, number(0, I32))
    return b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))
