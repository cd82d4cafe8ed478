"""Sums over two wide laws at once, compiled where functions are: what is summed is never made.

To make it costs more than to read both laws: see `workbench.core.places`.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.sampling import WIDE
from workbench.core.transfer import of_numpy, on_host
from workbench.engine.fused import compiled, together


def excess(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], by: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """Σ (by·p − q)₊ of each row."""
    found = _added_up(p, q, by, exceeds=True)
    return (p * by).sub_(q).clamp_(min=0).sum(1, keepdim=True) if found is None else found


def common(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], by: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """Σ min(p, by·q) of each row."""
    found = _added_up(p, q, by, exceeds=False)
    return torch.minimum(q * by, p).sum(1, keepdim=True) if found is None else found


def lifted_apart(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], lift: float) -> Float[Tensor, " R"]:
    """The total variation between p and what comes of one draft from q that is tested against lift · p.

    The draft is kept with min(1, lift·p / q), and else replaced from (lift·p − q)₊: Leviathan et al. 2023,
    arXiv:2211.17192, appendix A.5.

    Args:
        p: the target's laws.
        q: the drafter's.
        lift: 1 or more.
    """
    if (overlaps := _passes(p, q)) is not None:
        out = np.empty(len(p))
        given = (p.numpy(), q.numpy(), np.float32(lift), out, np.zeros(2, np.int64))
        together(lambda: overlaps.lifted_apart(*given))
        return of_numpy(out).to(p.dtype)
    lifted = p * lift
    kept, rest = torch.minimum(lifted, q), (lifted - q).clamp_(min=0)
    missed = (1 - kept.sum(1, keepdim=True)).clamp_min(0)
    share = missed / rest.sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
    return kept.addcmul_(rest, share).sub_(p).clamp_(min=0).sum(1)


def make_ready(device: torch.device) -> None:
    """Have it compiled, which takes seconds once: no round shall stand still for it."""
    if on_host(device):
        law = torch.full((1, WIDE), 1 / WIDE)
        common(law, law, torch.ones(1, 1))
        lifted_apart(law, law, 1.0)


def _added_up(p: Tensor, q: Tensor, by: Tensor, exceeds: bool) -> Float[Tensor, "R 1"] | None:
    """None where it is not compiled, or not worth it."""
    if (overlaps := _passes(p, q)) is None:
        return None
    out = np.empty(len(p))
    given = (p.numpy(), q.numpy(), by.reshape(-1).contiguous().numpy(), exceeds, out, np.zeros(2, np.int64))
    together(lambda: overlaps.add_up(*given))
    return of_numpy(out).to(p.dtype).unsqueeze(1)


def _passes(p: Tensor, q: Tensor) -> ModuleType | None:
    """The compiled passes, if these laws are for them."""
    if p.dtype != torch.float32 or q.dtype != torch.float32 or p.shape[1] < WIDE or not on_host(p.device):
        return None
    return compiled("overlaps") if p.is_contiguous() and q.is_contiguous() else None
