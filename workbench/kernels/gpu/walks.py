"""Find the accepted path of a draft tree on a GPU, by one Triton program."""

from __future__ import annotations

import torch
import triton.language as tl
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from workbench.kernels.gpu.arithmetic import kernel, padded


@kernel
def _walk(parents, is_accepted, nodes, ends, n, depth, DEPTH: tl.constexpr):
    place = tl.arange(0, DEPTH)
    path = place.to(tl.int64)
    last, count = tl.full((), -1, tl.int64), tl.full((), 0, tl.int64)
    node = tl.full((), 0, tl.int64)
    for _ in range(n):
        follows = (tl.load(parents + node) == last) & (tl.load(is_accepted + node) != 0)
        path = tl.where(follows & (place == count), node, path)
        last = tl.where(follows, node, last)
        count += follows.to(tl.int64)
        node += 1
    tl.store(nodes + place, path, mask=place < depth)
    tl.store(ends, count)
    tl.store(ends + 1, last)


def find_path(
    parents: Int[Tensor, " N"], is_accepted: Bool[Tensor, " N"], depth: int
) -> tuple[Int64[Tensor, " D"], Int64[Tensor, " one"], Int64[Tensor, " one"]]:
    """Return the accepted path: its nodes, how many there are, and the last one.

    They are the fields of `workbench.kernels.device_walk.DevicePath`.
    """
    nodes = torch.empty(depth, dtype=torch.int64, device=parents.device)
    ends = torch.empty(2, dtype=torch.int64, device=parents.device)
    _walk[(1,)](
        parents.contiguous(), is_accepted.contiguous(), nodes, ends, parents.shape[0], depth, DEPTH=padded(depth),
        num_warps=1,
    )  # fmt: skip
    return nodes, ends[:1], ends[1:]
