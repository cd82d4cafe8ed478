"""Muon for CPUs without fast bfloat16 products, where `torch.optim.Muon` takes most of a training step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class FloatMuon(torch.optim.Muon):
    """`torch.optim.Muon` with its default options, except that the Newton–Schulz iteration is computed in float32.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one optimizer step: update every matrix; return the result of `closure`, which computes the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                mean = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix.grad))
                mean.lerp_(matrix.grad, 1 - momentum)
                update = orthogonal(matrix.grad.lerp(mean, momentum), group["ns_coefficients"], group["ns_steps"])
                matrix.mul_(1 - rate * group["weight_decay"])
                matrix.add_(update, alpha=-rate * math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1])))
        return loss


def orthogonal(
    matrix: Float[Tensor, "m n"], coefficients: tuple[float, float, float], steps: int
) -> Float[Tensor, "m n"]:
    """Return approximately U Vᵀ of the singular value decomposition U S Vᵀ, by fifth-order Newton–Schulz iterations."""
    a, b, c = coefficients
    wide = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / wide.norm().clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrix.shape[0] > matrix.shape[1] else x
