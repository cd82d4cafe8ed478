"""Run Triton kernels in Triton's interpreter (`TRITON_INTERPRET=1`): import this module before they run.

Triton 3.6 converts arrays with one element by `int`, which NumPy 2.4 refuses; the conversion is replaced here.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _with_conversion(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _with_conversion
