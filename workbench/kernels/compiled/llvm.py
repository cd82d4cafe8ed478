"""What `instructions` are written with: vectors of 16 numbers, addresses, loops and choices, in LLVM's own terms.

`b` is llvmlite's builder throughout, and what these functions return are values of it, not numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

BF16, INT8, TILES = 0, 1, 2
"""Kinds of weights: bfloat16, signed bytes with scales, and bfloat16 that tiles multiply. Keys and values are
bfloat16."""
SIZE = (2, 1, 2)
"""Bytes of a number of each kind."""
LANES = 16
"""Numbers of a vector."""
F32, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
VECTOR, WORDS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


def number(value: int, kind: Any = I64) -> Any:
    """A constant."""
    return ir.Constant(kind, value)


def at(b: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer to what is of a kind."""
    return b.inttoptr(address, kind.as_pointer())


def past(b: Any, address: Any, count: Any, size: int = 1) -> Any:
    """An address `count` numbers of `size` bytes further on."""
    if isinstance(count, int):
        return b.add(address, number(count * size))
    return b.add(address, b.mul(count, number(size)))


def pair(b: Any, kind: int, address: Any) -> list[Any]:
    """32 weights at an address, in float32, in two vectors.

    Of bfloat16 the first are those at even places and the second those at odd ones: two of them are a word, and a shift
    and a mask take it apart, where 16 in their order cost twice as much. Bytes lie in that order.
    """
    if kind == INT8:
        raw = [b.load(at(b, past(b, address, LANES * h), ir.VectorType(I8, LANES)), align=1) for h in range(2)]
        return [b.sitofp(b.sext(half, WORDS), VECTOR) for half in raw]
    raw = b.load(at(b, address, WORDS), align=2)
    return [b.bitcast(word, VECTOR) for word in (b.shl(raw, every(16)), b.and_(raw, every(-0x10000)))]


def every(word: int) -> Any:
    """A vector of one word."""
    return ir.Constant(WORDS, [word] * LANES)


def sums(b: Any, vectors: list[Any]) -> Any:
    """One vector of the sums of up to 16, in their order; each is made by the same tree wherever it comes."""
    level, half = [*vectors, *[ir.Constant(VECTOR, [0.0] * LANES)] * (LANES - len(vectors))], LANES // 2
    while half:
        level = [_fold(b, *two, half) for two in zip(level[: len(level) // 2], level[len(level) // 2 :], strict=True)]
        half //= 2
    return level[0]


def _fold(b: Any, one: Any, other: Any, half: int) -> Any:
    """Lanes in blocks of 2 · half, their halves added: the first half of each block of `one`, the second of `other`."""
    is_first = [i // half % 2 == 0 for i in range(LANES)]
    own = [i if first else LANES + i for i, first in enumerate(is_first)]
    across = [i + half if first else LANES + i - half for i, first in enumerate(is_first)]
    return b.fadd(*(b.shuffle_vector(one, other, ir.Constant(WORDS, lanes)) for lanes in (own, across)))


def turned(b: Any, rows: list[Any]) -> list[Any]:
    """16 vectors of 16 numbers as a matrix: its columns. Squares of 1, 2, 4, 8 numbers change places in turn."""
    half = 1
    while half < LANES:
        is_own = [i & half == 0 for i in range(LANES)]
        upper = [i if own else LANES + i - half for i, own in enumerate(is_own)]
        lower = [i + half if own else LANES + i for i, own in enumerate(is_own)]
        now = list(rows)
        for i in (i for i, own in enumerate(is_own) if own):
            for to, lanes in ((i, upper), (i + half, lower)):
                now[to] = b.shuffle_vector(rows[i], rows[i + half], ir.Constant(WORDS, lanes))
        rows, half = now, 2 * half
    return rows


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """The product of x and y, and z: rounded once."""
    name = f"llvm.fma.v{LANES}f32"
    return b.call(b.module.declare_intrinsic(name, (), ir.FunctionType(VECTOR, [VECTOR] * 3)), [x, y, z])


def fetch(b: Any, address: Any) -> None:
    """Ask memory for a line of the cache, and do not wait for it."""
    pointer = I8.as_pointer()
    ask = b.module.declare_intrinsic(
        "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    )
    b.call(ask, [b.inttoptr(address, pointer), *(number(v, I32) for v in (0, 3, 1))])


class Loop:
    """`for i in range(0, n, step)` whose body, written between `with` and its end, carries vectors along; n > 0."""

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
    """Code for each option, of which a number chooses when it is run; the number is one of them."""
    after, places = b.append_basic_block("after"), [b.append_basic_block("case") for _ in options]
    choice = b.switch(value, places[-1])
    for option, place in zip(options, places, strict=True):
        if place is not places[-1]:
            choice.add_case(number(option), place)
        b.position_at_end(place)
        write(option)
        b.branch(after)
    b.position_at_end(after)


def broadcast(b: Any, value: Any, lanes: int = LANES) -> Any:
    """A vector of one number, float32."""
    kind = ir.VectorType(F32, lanes)
    alone = b.insert_element(ir.Constant(kind, ir.Undefined), value, number(0, I32))
    return b.shuffle_vector(alone, alone, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))
