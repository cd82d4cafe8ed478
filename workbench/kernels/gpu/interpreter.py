"""Repair of Triton's interpreter for NumPy 2.4.

Triton 3.6 converts arrays with one element by `int`, which NumPy 2.4 refuses.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def accept_one_element_arrays() -> None:
    """Replace the conversion of arrays with one element to integers in Triton's interpreter."""
    from triton.runtime import interpreter  # needed on a CPU only

    patch = interpreter._patch_lang_tensor

    def with_conversion(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = with_conversion
