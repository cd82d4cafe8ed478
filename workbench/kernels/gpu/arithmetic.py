"""Products and rounding of the Triton kernels, on a GPU and in Triton's interpreter.

The interpreter multiplies the bit patterns of bfloat16 operands, and truncates where a cast to bfloat16 should round to
nearest (Triton 3.6). With `EMULATE` the functions here widen operands first and round by integer arithmetic.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from workbench.kernels.gpu import interpreter

EMULATED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether the kernels run in Triton's interpreter. Kernels receive this value as their argument `EMULATE`."""
if EMULATED:
    interpreter.accept_one_element_arrays()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function by Triton, without the run-time checks of shapes that tests add to all functions."""
    return triton.jit(inspect.unwrap(function))


@kernel
def multiply_add(a, b, total, EMULATE: tl.constexpr):
    """Return `total` + a b, summed in float32; float32 operands are not rounded to TF32."""
    if EMULATE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return tl.dot(a, b, total, input_precision="ieee")


@kernel
def round_to(x, dtype: tl.constexpr, EMULATE: tl.constexpr):
    """Return float32 values rounded to the nearest value of `dtype`, ties to even."""
    if EMULATE and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.to(tl.float32, bitcast=True).to(tl.bfloat16)
    return x.to(dtype)


def padded(n: int) -> int:
    """Return the smallest power of two that is at least n and at least 16, the shortest side of a matrix product."""
    return max(16, 1 << (n - 1).bit_length())
