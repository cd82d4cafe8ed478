"""LANTERN's relaxed acceptance: a draft may spend the probability of tokens that lie near it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.rejection import Reason, Ruling, greedy_match
from workbench.core.relaxed import Lift
from workbench.core.rules import Rule
from workbench.core.transfer import listed, on_host
from workbench.engine.declared import Claim
from workbench.engine.models import Models
from workbench.engine.parts import Verifier
from workbench.engine.rejecting import relaxed_rejection
from workbench.engine.request import Row
from workbench.engine.told import Verification
from workbench.methods.verifiers.answers import FEW_RIGHT, right_answers

NEAREST = Rule(
    "nearest",
    "p of it and its neighbours",
    "min(1, (r + s) / q′)",
    {"r": "residual", "s": "near", "q′": "q_left"},
    "Tokens whose embeddings lie nearest to it lend it their probability s, as long as that stays within δ; r is its "
    "own, q′ its chance in the drafter's law (1 where it was chosen). A rejection takes it out, and those neighbours.",
    source="Jang et al. 2025, LANTERN, arXiv:2410.03355, §3",
)
MOST = 64
"""Neighbours that are looked for at once, so that asking for more of them later finds them known."""
ROWS = 4096
"""Embeddings that are widened to float32 at a time."""
_SHARED = "nearest: neighbours"


class Neighbours:
    """Which tokens lie nearest to one, by the cosine of their embeddings: found when a token is first asked about.

    What is kept is 256 bytes a token that was met, and no copy of the embeddings. Where asking the device costs a
    synchronisation nothing is kept, and all that are asked about are looked for anew.

    Args:
        weight: embeddings [V, D] of any length and dtype; read, and not copied.
    """

    def __init__(self, weight: Float[Tensor, "V D"]) -> None:
        self._weight = weight
        n, most = len(weight), min(MOST, len(weight) - 1)
        lengths = torch.cat([piece.float().square().sum(1).sqrt() for piece in self._pieces()])
        self._inverse = lengths.clamp_min(torch.finfo(torch.float32).tiny).reciprocal()  # [V]
        self._known = torch.zeros(n, dtype=torch.bool)
        self._found = torch.zeros(n, most, dtype=torch.int32)

    def of(self, tokens: Int[Tensor, " N"], k: int) -> Int[Tensor, "N k"]:
        """The k tokens nearest to each of `tokens`, itself not among them, the nearest first; fewer if V is small.

        Args:
            tokens: ids.
            k: `MOST` at most.
        """
        if not on_host(tokens.device):
            return self._look(tokens, k)
        new = torch.tensor(sorted(set(listed(tokens[~self._known[tokens]]))))
        if len(new):
            self._found[new] = self._look(new, self._found.shape[1]).int()
            self._known[new] = True
        return self._found[tokens, :k].long()

    def _pieces(self) -> list[Tensor]:
        return [self._weight[i : i + ROWS] for i in range(0, len(self._weight), ROWS)]

    def _look(self, tokens: Int[Tensor, " N"], k: int) -> Int[Tensor, "N k"]:
        asked = self._weight[tokens].float().T  # [D, N]
        cosine = torch.cat([piece.float() @ asked for piece in self._pieces()]) * self._inverse.unsqueeze(1)
        cosine.scatter_(0, tokens.unsqueeze(0), -torch.inf)
        return cosine.T.topk(min(k, len(cosine) - 1), dim=1).indices


@dataclass(frozen=True)
class Nearest(Verifier):
    """p̃ₓ(x) = p(x) + Σ p(b₁ … bₘ), m ≤ k as large as that sum stays within δ; accept x with min(1, p̃ₓ(x) / q(x)).

    b₁, b₂, … are the tokens nearest to x, by the cosine of the target's input embeddings. After a rejection the next
    token is drawn from (p̃ₓ − q)₊, normalised: p̃ₓ has nothing left at the neighbours it took from. δ = 0 or k = 0 is
    exact. What a round pays is, summed over its tests, what the neighbours add to the chance of being kept: it is the
    total variation that one chosen draft costs its place, and for drawn ones bounds it on the average. At temperature 0
    it is greedy match.

    Source: Jang et al. 2025, LANTERN, arXiv:2410.03355, §3, made for image tokens, whose neighbours lie near in the
    codebook; δ there bounds how far p̃ₓ is from p.
    """

    name: ClassVar[str] = "nearest"
    claims: ClassVar[tuple[Claim, ...]] = (
        right_answers(
            "nearest",
            "LlamaGen, pictures: their quality is kept",
            "Jang et al. 2025, LANTERN, arXiv:2410.03355 (direction; made for image tokens, no figure of tasks)",
            why_on={"smollm2": ("2026-11-24 14:31 UTC", FEW_RIGHT)},
        ),
    )
    neighbours: int = param(8, ge=0, le=MOST, doc="k, tokens nearest to a draft that may lend it their probability")
    mass: float = param(0.2, ge=0.0, le=1.0, doc="δ, most probability that they lend; 0 keeps the target's law")

    def prime(self, row: Row, models: Models) -> Neighbours:
        """By the target's input embeddings; what is found serves all rows."""
        if _SHARED not in models.shared:
            weight = models.target.embed.get_parameter("weight")[: models.target.vocab_size]
            models.shared[_SHARED] = Neighbours(weight.detach())
        return models.shared[_SHARED]

    def rule(self, v: Verification) -> Ruling:
        """Recursive rejection against p̃ₓ."""
        if v.u_stop is None:
            return greedy_match(v.tree, v.likeliest()).for_nothing
        near = v.state.of(v.tree.tokens, self.neighbours)  # [N, k]
        found = relaxed_rejection(v.tree, v.p, v.u_stop, Lift(near=near, mass=self.mass), v.late)
        inputs = {"residual": found.residual, "q_left": found.q_left, "near": found.lifted - found.residual}
        if v.tree.q is not None:
            inputs["q"] = found.q
        tiny = torch.finfo(v.p.dtype).tiny
        paid = found.accept - (found.residual / found.q_left.clamp_min(tiny)).clamp(max=1)
        several = v.tree.q is not None or v.tree.fanout > 1
        return Ruling(found.accept, found.stop, reason=Reason((NEAREST,), inputs), paid=paid, at_most=several)
