"""Sums over two wide laws at once, compiled where functions are: what is summed is never made.

To make it costs more than to read both laws: see `workbench.core.places`.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.sampling import WIDE
from workbench.core.transfer import on_host
from workbench.engine.fused import compiled, together


def excess(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], by: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """Σ (by·p − q)₊ of each row."""
    found = _added_up(p, q, by, exceeds=True)
    return (p * by).sub_(q).clamp_(min=0).sum(1, keepdim=True) if found is None else found


def common(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], by: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """Σ min(p, by·q) of each row."""
    found = _added_up(p, q, by, exceeds=False)
    return torch.minimum(q * by, p).sum(1, keepdim=True) if found is None else found


def make_ready(device: torch.device) -> None:
    """Have it compiled, which takes seconds once: no round shall stand still for it."""
    if on_host(device):
        law = torch.full((1, WIDE), 1 / WIDE)
        common(law, law, torch.ones(1, 1))


def _added_up(p: Tensor, q: Tensor, by: Tensor, exceeds: bool) -> Float[Tensor, "R 1"] | None:
    """None where it is not compiled, or not worth it."""
    if p.dtype != torch.float32 or q.dtype != torch.float32 or p.shape[1] < WIDE or not on_host(p.device):
        return None
    if not (p.is_contiguous() and q.is_contiguous()) or (overlaps := compiled("overlaps")) is None:
        return None
    out = np.empty(len(p))
    given = (p.numpy(), q.numpy(), by.reshape(-1).contiguous().numpy(), exceeds, out, np.zeros(2, np.int64))
    together(lambda: overlaps.add_up(*given))
    return torch.from_numpy(out).to(p.dtype).unsqueeze(1)
