"""Run Triton kernels in Triton's interpreter (`TRITON_INTERPRET=1`): import this module before they run."""

from __future__ import annotations

from workbench.kernels.gpu.interpreter import accept_one_element_arrays

accept_one_element_arrays()
