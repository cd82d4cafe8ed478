"""LANTERN's relaxed acceptance: a draft may spend the probability of tokens that lie near it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.rejection import Reason, Ruling, greedy_match
from workbench.core.relaxed import Lift
from workbench.core.rules import GREEDY, Rule
from workbench.core.transfer import listed, on_host
from workbench.engine.declared import Claim
from workbench.engine.models import Models
from workbench.engine.parts import Verifier
from workbench.engine.rejecting import relaxed_rejection
from workbench.engine.request import Row
from workbench.engine.told import Verification
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.methods.verifiers.siblings import beside_the_targets_own

NEAREST = Rule(
    "nearest",
    "p of it and its neighbours",
    "min(1, (r + s) / q′)",
    {"r": "residual", "s": "near", "q′": "q_left"},
    "Tokens whose embeddings lie nearest to it lend it their probability s, as long as that stays within δ; r is its "
    "own, q′ its chance in the drafter's law (1 where it was chosen). A rejection takes it out, and those neighbours.",
    source="Jang et al. 2025, LANTERN, arXiv:2410.03355, §3",
)
NEAREST_GREEDY = Rule(
    "nearest-greedy",
    "The likeliest with its neighbours",
    "p̃ > p*",
    {"p̃": "lifted", "p*": "best"},
    "At temperature 0 a draft is kept if its own probability and that of its neighbours, as long as that stays within "
    "the bound, add up to p̃ > p*, the probability of the target's likeliest token. The target's own token is kept too.",
    source="Jang et al. 2025, LANTERN, arXiv:2410.03355, and its released code: argmax of the lifted distribution",
)
NEAREST_OWN = replace(GREEDY, name="nearest-own", leviathan=False)  # the lifted drafts are missing among them
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
    """Accept x with min(1, p̃ₓ(x) / q(x)), where p̃ₓ adds the probability of x's neighbours to its own.

    p̃ₓ(x) = p(x) + Σ p(b₁ … bₘ), with the largest m ≤ k whose sum stays within δ + λ·p(x). LANTERN bounds it by δ alone
    (λ = 0), LANTERN++ by λ·p(x) alone (δ = 0). b₁, b₂, … are the tokens nearest to x, by the cosine of the target's
    input embeddings. After a rejection the next token is drawn from (p̃ₓ − q)₊, normalised: p̃ₓ is 0 at the neighbours
    that were added. k = 0, or δ = λ = 0, is exact. The price of a round is, summed over its tests, the probability that
    the neighbours add to the chance of acceptance. It is the total variation that one deterministic draft costs its
    position, and for sampled ones bounds it on average.

    At temperature 0, p is the plain softmax: x is accepted if it is the target's likeliest token, or if p̃ₓ(x) exceeds
    the probability of that token. Among greedy siblings the target's own token goes first. The price is the number of
    accepted tokens that are not the target's own. A token that a logits processor forbids borrows nothing.

    Source: Jang et al. 2025, LANTERN, arXiv:2410.03355, §3, and its released code (`evaluate_posterior`); Park et al.
    2025, LANTERN++, arXiv:2502.06352. Both are made for image tokens, whose neighbours lie near in the codebook.
    """

    name: ClassVar[str] = "nearest"
    claims: ClassVar[tuple[Claim, ...]] = tuple(
        at_matched_accuracy(
            "nearest", ({"mass": 0.05}, {"mass": 0.1}, {"mass": 0.2}),
            "LlamaGen, image tokens: more accepted, images as good",
            "Jang et al. 2025, LANTERN, arXiv:2410.03355 (direction; its figures are seconds of image models)",
            temperature=temperature,
        )
        for temperature in (0.0, 0.7)
    )  # fmt: skip
    keeps_greedy: ClassVar[bool] = False
    neighbours: int = param(8, ge=0, le=MOST, doc="k, tokens nearest to a draft that may lend it their probability")
    mass: float = param(
        0.2, ge=0.0, le=1.0, doc="δ, most probability that they lend; with λ = 0, 0 keeps the target's law"
    )
    mass_ratio: float = param(
        0.0, ge=0.0, le=10.0, doc="λ of LANTERN++: they lend up to λ times the draft's own probability more; use δ = 0"
    )

    def prime(self, row: Row, models: Models) -> Neighbours:
        """By the target's input embeddings; what is found serves all rows."""
        if _SHARED not in models.shared:
            weight = models.target.embed.get_parameter("weight")[: models.target.vocab_size]
            models.shared[_SHARED] = Neighbours(weight.detach())
        return models.shared[_SHARED]

    def rule(self, v: Verification) -> Ruling:
        """Return recursive rejection against p̃ₓ; at temperature 0 the argmax of p̃ₓ."""
        tree, is_exact = v.tree, not self.neighbours or not (self.mass or self.mass_ratio)
        if v.u_stop is None and (is_exact or not len(tree)):
            return greedy_match(tree, v.likeliest()).for_nothing
        near = v.state.of(tree.tokens, self.neighbours)  # [N, k]
        if v.sampling.processors:
            is_forbidden = v.logits[tree.parents + 1, tree.tokens].isneginf()
            near = torch.where(is_forbidden.unsqueeze(1), tree.tokens.unsqueeze(1), near)
        lift = Lift(near=near, mass=self.mass, ratio=self.mass_ratio)
        if v.u_stop is None:
            return _greedy(v, lift)
        found = relaxed_rejection(tree, v.p, v.u_stop, lift, v.late)
        inputs = {"residual": found.residual, "q_left": found.q_left, "near": found.lifted - found.residual}
        if tree.q is not None:
            inputs["q"] = found.q
        tiny = torch.finfo(v.p.dtype).tiny
        paid = found.accept - (found.residual / found.q_left.clamp_min(tiny)).clamp(max=1)
        several = tree.q is not None or tree.fanout > 1
        return Ruling(found.accept, found.stop, reason=Reason((NEAREST,), inputs), paid=paid, at_most=several)


def _greedy(v: Verification, lift: Lift) -> Ruling:
    """Accept the target's likeliest token, and a draft whose lifted probability exceeds that token's.

    Args:
        v: of a tree of one node at least.
        lift: with neighbours.
    """
    tree, at = v.tree, v.tree.parents + 1
    exact = greedy_match(tree, v.likeliest())
    assert exact.reason is not None
    x, p = tree.tokens.unsqueeze(1), v.p[at]
    lifted = lift(p, torch.arange(len(tree), device=p.device), x).gather(1, x).squeeze(1)
    best = v.p.gather(1, v.likeliest().unsqueeze(1)).squeeze(1)[at]
    is_lifted = (exact.accept < 0.5) & ~beside_the_targets_own(tree, exact.accept)
    good = is_lifted & (lifted > best)
    inputs = {**exact.reason.inputs, "lifted": lifted, "best": best}
    reason = Reason((NEAREST_OWN, NEAREST_GREEDY), inputs, is_lifted.long())
    accept = torch.where(good, 1.0, exact.accept)
    return Ruling(accept, exact.stop, reason=reason, paid=torch.where(good, 1.0, 0.0))
