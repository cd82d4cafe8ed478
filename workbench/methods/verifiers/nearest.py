"""LANTERN's relaxed acceptance: a draft token is tested with the probability of itself and its nearest tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision, RuleExplanation, greedy_match
from workbench.core.relaxed import Lift
from workbench.core.rules import GREEDY, Rule
from workbench.core.transfer import on_host, to_list
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.engine.request import Sequence
from workbench.kernels.rejection import relaxed_rejection
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.methods.verifiers.siblings import has_target_token_sibling
from workbench.models.loading import Models

NEAREST = Rule(
    "nearest",
    "Target probability of the draft and its neighbours",
    "min(1, (r + s) / q′)",
    {"r": "residual", "s": "near", "q′": "q_left"},
    "s is the probability of the tokens with the nearest embeddings, limited by the bound; r is the draft's own "
    "target probability, q′ its draft probability (1 if it was deterministic). A rejection removes the draft and "
    "these neighbours.",
    source="Jang et al. 2025, LANTERN, arXiv:2410.03355, §3",
)
NEAREST_GREEDY = Rule(
    "nearest-greedy",
    "Draft likeliest with its neighbours",
    "p̃ > p*",
    {"p̃": "lifted", "p*": "best"},
    "At temperature 0 a draft is accepted if p̃, the probability of the draft and of its neighbours within the bound, "
    "exceeds p*, the probability of the target's likeliest token. The target's own token is accepted too.",
    source="Jang et al. 2025, LANTERN, arXiv:2410.03355, and its released code: argmax of the lifted distribution",
)
NEAREST_OWN = replace(GREEDY, name="nearest-own", leviathan=False)  # the sample lacks the lifted drafts
MOST = 64
"""Number of nearest tokens that a search finds per token, so that a later request for more needs no new search."""
ROWS = 4096
"""Number of embeddings that the search for nearest tokens converts to float32 at a time."""
_SHARED = "nearest: neighbours"


class Neighbours:
    """Search for the nearest tokens of a token, by the cosine of their embeddings, with a cache of the results.

    The cache takes 256 bytes per requested token; the embeddings are not copied. On a GPU, where reading the cache
    would force the host to wait for the device, nothing is cached, and every request searches again.

    Args:
        weight: embeddings [V, D] of any norm and dtype. They are not copied.
    """

    def __init__(self, weight: Float[Tensor, "V D"]) -> None:
        self._weight = weight
        n, most = len(weight), min(MOST, len(weight) - 1)
        norms = torch.cat([piece.float().square().sum(1).sqrt() for piece in self._pieces()])
        self._inverse = norms.clamp_min(torch.finfo(torch.float32).tiny).reciprocal()  # [V]
        self._known = torch.zeros(n, dtype=torch.bool)
        self._found = torch.zeros(n, most, dtype=torch.int32)

    def of(self, tokens: Int[Tensor, " N"], k: int) -> Int[Tensor, "N k"]:
        """Return the k tokens nearest to each of N tokens by embedding, the nearest first; at most V − 1.

        Args:
            tokens: ids of the N tokens.
            k: number of neighbours per token, at most `MOST`.
        """
        if not on_host(tokens.device):
            return self._look(tokens, k)
        new = torch.tensor(sorted(set(to_list(tokens[~self._known[tokens]]))))
        if len(new):
            self._found[new] = self._look(new, self._found.shape[1]).int()
            self._known[new] = True
        return self._found[tokens, :k].long()

    def _pieces(self) -> list[Tensor]:
        return [self._weight[i : i + ROWS] for i in range(0, len(self._weight), ROWS)]

    def _look(self, tokens: Int[Tensor, " N"], k: int) -> Int[Tensor, "N k"]:
        queries = self._weight[tokens].float().T  # [D, N]
        cosine = torch.cat([piece.float() @ queries for piece in self._pieces()]) * self._inverse.unsqueeze(1)
        cosine.scatter_(0, tokens.unsqueeze(0), -torch.inf)
        return cosine.T.topk(min(k, len(cosine) - 1), dim=1).indices


@dataclass(frozen=True)
class Nearest(Verifier):
    """Accept x with min(1, p̃ₓ(x) / q(x)), where p̃ₓ(x) is the probability of x and its neighbours.

    p and q are the target's and the drafter's distribution. p̃ₓ(x) = p(x) + p(b₁) + … + p(bₘ), where b₁, b₂, … are the
    tokens nearest to x by the cosine of the target's input embeddings, and m ≤ k is the largest number for which the
    added sum is at most δ + λ·p(x). LANTERN uses δ alone (λ = 0), LANTERN++ λ alone (δ = 0). p̃ₓ is 0 at b₁ … bₘ, and
    equals p at all other tokens. After a rejection the next token is drawn from (p̃ₓ − q)₊, normalised. k = 0, or δ = λ
    = 0, is exact. The deviation of a round is the acceptance probability that the neighbours add, summed over the
    tests. For one deterministic draft it is the total variation at its position; for sampled drafts it is an upper
    bound on average.

    At temperature 0, p is the plain softmax. Then x is accepted if it is the target's likeliest token, or if p̃ₓ(x)
    exceeds the probability of that token. Among greedy siblings the target's own token has priority. The deviation is
    the number of accepted tokens that are not the target's own. At any temperature, nothing is added to a token that a
    logits processor forbids.

    Source: Jang et al. 2025, LANTERN, arXiv:2410.03355, §3, and its released code (`evaluate_posterior`); Park et al.
    2025, LANTERN++, arXiv:2502.06352. Both papers decode image tokens, whose neighbours are near in the codebook.
    """

    name: ClassVar[str] = "nearest"
    claims: ClassVar[tuple[Claim, ...]] = tuple(
        at_matched_accuracy(
            "nearest", ({"mass": 0.05}, {"mass": 0.1}, {"mass": 0.2}),
            "LlamaGen, image tokens: more drafts accepted, images of equal quality",
            "Jang et al. 2025, LANTERN, arXiv:2410.03355 (only the direction is compared; its numbers are run "
            "times of image models)",
            temperature=temperature,
        )
        for temperature in (0.0, 0.7)
    )  # fmt: skip
    keeps_greedy: ClassVar[bool] = False
    neighbours: int = param(
        8, ge=0, le=MOST, doc="k, number of nearest tokens whose probability may be added to a draft token's"
    )
    mass: float = param(
        0.2, ge=0.0, le=1.0, doc="δ, maximum probability that neighbours add; 0 is exact if λ is 0, too"
    )
    mass_ratio: float = param(
        0.0,
        ge=0.0,
        le=10.0,
        doc="λ of LANTERN++: neighbours add at most δ plus λ times the draft token's probability; use δ = 0",
    )

    def init_state(self, sequence: Sequence, models: Models) -> Neighbours:
        """Return the searcher for nearest tokens by the target's input embeddings, which all sequences share."""
        if _SHARED not in models.shared:
            weight = models.target.embed.get_parameter("weight")[: models.target.vocab_size]
            models.shared[_SHARED] = Neighbours(weight.detach())
        return models.shared[_SHARED]

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Test drafts against p̃ₓ, the probability of a token and its nearest tokens, by the greedy or sampled rule."""
        tree, is_exact = v.tree, not self.neighbours or not (self.mass or self.mass_ratio)
        if v.u_bonus is None and (is_exact or not len(tree)):
            return greedy_match(tree, v.likeliest()).without_error
        neighbours = v.state.of(tree.tokens, self.neighbours)  # [N, k]
        if v.sampling.processors:
            is_forbidden = v.logits[tree.parents + 1, tree.tokens].isneginf()
            neighbours = torch.where(is_forbidden.unsqueeze(1), tree.tokens.unsqueeze(1), neighbours)
        lift = Lift(neighbours=neighbours, mass=self.mass, ratio=self.mass_ratio)
        if v.u_bonus is None:
            return _greedy(v, lift)
        test = relaxed_rejection(tree, v.p, v.u_bonus, lift, v.lazy)
        inputs = {"residual": test.residual, "q_left": test.q_left, "near": test.lifted - test.residual}
        if tree.q is not None:
            inputs["q"] = test.q
        tiny = torch.finfo(v.p.dtype).tiny
        deviation = test.accept - (test.residual / test.q_left.clamp_min(tiny)).clamp(max=1)
        is_bound = tree.q is not None or tree.fanout > 1
        return AcceptanceDecision(
            test.accept,
            test.bonus,
            explanation=RuleExplanation((NEAREST,), inputs),
            distribution_error=deviation,
            is_upper_bound=is_bound,
        )


def _greedy(v: Verification, lift: Lift) -> AcceptanceDecision:
    """Accept the target's likeliest token, and each draft x whose p̃ₓ(x) exceeds the likeliest token's probability.

    Args:
        v: inputs of the verifier, with a tree of at least one node.
        lift: function that returns p̃ₓ: it adds the probability of the neighbours of x to the probability of x.
    """
    tree, at = v.tree, v.tree.parents + 1
    exact = greedy_match(tree, v.likeliest())
    assert exact.explanation is not None
    x, p = tree.tokens.unsqueeze(1), v.p[at]
    lifted = lift(p, torch.arange(len(tree), device=p.device), x).gather(1, x).squeeze(1)
    best = v.p.gather(1, v.likeliest().unsqueeze(1)).squeeze(1)[at]
    is_lifted = (exact.accept < 0.5) & ~has_target_token_sibling(tree, exact.accept)
    is_good = is_lifted & (lifted > best)
    inputs = {**exact.explanation.inputs, "lifted": lifted, "best": best}
    explanation = RuleExplanation((NEAREST_OWN, NEAREST_GREEDY), inputs, is_lifted.long())
    accept = torch.where(is_good, 1.0, exact.accept)
    return AcceptanceDecision(
        accept, exact.bonus, explanation=explanation, distribution_error=torch.where(is_good, 1.0, 0.0)
    )
