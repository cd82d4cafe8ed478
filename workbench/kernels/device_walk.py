"""Find the accepted path of a draft tree on the device, so that the next round can start before the host reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from workbench.core.transfer import on_host


@dataclass(frozen=True, slots=True)
class DevicePath:
    """Accepted path of a draft tree, on the device.

    Attributes:
        nodes: int64 [D], accepted nodes from the root down. Entries from `n` on repeat their own index.
        n: int64 [1], number of accepted nodes.
        last: int64 [1], the last accepted node; −1 if no node was accepted.
    """

    nodes: Int64[Tensor, " D"]
    n: Int64[Tensor, " one"]
    last: Int64[Tensor, " one"]


def find_path(
    parents: Int[Tensor, " N"], accept: Float[Tensor, " N"], uniform: Float[Tensor, " N"] | None, depth: int
) -> DevicePath:
    """Test the nodes of a draft tree in order, as `workbench.core.rejection.walk` does. Does not synchronise.

    A node is tested if its parent is the last accepted node. Nodes come after their parents, and siblings in the order
    of their tests, so one pass over the nodes finds the path.

    Args:
        parents: parent of each node; −1: the root.
        accept: acceptance probability of each node.
        uniform: random number of each node; None if all acceptance probabilities are 0 or 1.
        depth: length D of the result, at least the tree's depth.
    """
    n = parents.shape[0]
    is_accepted = accept > 0.5 if uniform is None else uniform < accept
    if n and not on_host(parents.device):
        from workbench.kernels.gpu.walks import find_path as find_path_on_gpu  # Triton is not installed everywhere

        return DevicePath(*find_path_on_gpu(parents, is_accepted, depth))
    nodes = place = torch.arange(depth, device=parents.device)
    count = torch.zeros(1, dtype=torch.int64, device=parents.device)
    last = count - 1
    for node in range(n):
        follows = is_accepted[node : node + 1] & (parents[node : node + 1] == last)
        last = torch.where(follows, node, last)
        nodes = torch.where(follows & (place == count), node, nodes)
        count = count + follows
    return DevicePath(nodes, count, last)
