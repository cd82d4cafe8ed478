"""A kernel that does nothing, to measure the time of a launch."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.kernels.gpu.arithmetic import kernel


@kernel
def _nothing(x):
    pass


def launch_nothing(x: Tensor) -> None:
    """Launch one program of a kernel that neither reads nor writes. `x` is a tensor on the GPU."""
    with torch.cuda.device(x.device):
        _nothing[(1,)](x, num_warps=1)
