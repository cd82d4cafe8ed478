"""Describe acceptance rules: name, formula, and how a rejection changes the distribution for the next sibling.

Each verification result contains the rules that it used, and the trace stores them. Views can therefore explain a test
without knowing its rule. This module has plain data, without tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

EXCESS, OTHERS, ALL = "excess", "others", "all"
"""Values of `Rule.leaves`: names of the distribution that remains after a draft token is rejected. r is the
distribution that the token was tested against.

EXCESS: (r − q)₊. OTHERS: r without the rejected token. ALL: r unchanged.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for the acceptance test of a drafted node, described as data.

    Attributes:
        name: kebab-case identifier; permanent, because traces store it.
        title: display name.
        formula: acceptance probability, or a comparison that evaluates to 1 (true) or 0 (false), with the symbols in
            `places`. Allowed: numbers, ( ), + − · /, min, max, exp and one of = > <; `views/js/live/formula.js`
            parses the same grammar.
        places: formula symbol → source of its value: a column of the trace's nodes ("p", "q", "token"), an input of
            the rule ("residual"), a parameter of the method ("epsilon"), or "elders.p", the sum of p over the
            earlier siblings.
        says: explanation of the test in one or two sentences, for display.
        because: formula symbol → formula that computes its value from other symbols; symbols without a formula are
            absent.
        leaves: distribution after a rejection, for the next sibling or the corrected token: `EXCESS`, `OTHERS` or
            `ALL`.
        share: name of the method parameter that scales q after a rejection, (r − share · q)₊; "": factor 1.
        leviathan: whether the test is min(1, p/q) with the unchanged target distribution p. The mean of min(1, p/q) is
            the acceptance rate α of Leviathan et al. 2023. q is a point mass for a deterministic proposal, and p is a
            point mass in greedy decoding.
        source: paper and section.
    """

    name: str
    title: str
    formula: str
    places: Mapping[str, str]
    says: str
    because: Mapping[str, str] = field(default_factory=dict[str, str])
    leaves: str = ALL
    share: str = ""
    leviathan: bool = False
    source: str = ""

    @property
    def sources(self) -> frozenset[str]:
        """Return the sources of all values in the rule's formula: trace columns, rule inputs, method parameters."""
        return frozenset(self.places.values())

    def to_wire(self) -> dict[str, Any]:
        """Return the acceptance rule as JSON data."""
        return asdict(self)


GREEDY = Rule(
    "greedy",
    "Target's most likely token",
    "x = x*",
    {"x": "token", "x*": "likeliest"},
    "At temperature 0 a drafted token is accepted if it is x*, the target's most likely token at its position.",
    leviathan=True,
    source="Leviathan et al. 2023, arXiv:2211.17192, §2.2: greedy decoding as a point-mass distribution",
)
RATIO = Rule(
    "ratio",
    "p over q",
    "min(1, p / q)",
    {"p": "p", "q": "q"},
    "The drafter sampled this token from q, so it is accepted with probability min(1, p/q). If rejected, a sample from "
    "(p − q)₊ replaces it. The output then follows the target's distribution.",
    leaves=EXCESS,
    leviathan=True,
    source="Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1",
)
RESIDUAL = Rule(
    "residual",
    "Residual over q",
    "min(1, r / q′)",
    {"r": "residual", "q′": "q_left"},
    "Earlier drafted tokens at this position were rejected. r is the token's probability in the residual distribution, "
    "and q′ is its probability in the draft distribution that it was sampled from.",
    leaves=EXCESS,
    source="Jeon et al. 2024, arXiv:2402.14160, Algorithm 1; Miao et al. 2024, arXiv:2305.09781, Algorithm 2",
)
POINT = Rule(
    "point",
    "p alone",
    "p",
    {"p": "p"},
    "The drafter proposed this token deterministically, so it is accepted with probability p. If rejected, it is "
    "removed from p before the next test.",
    leaves=OTHERS,
    leviathan=True,
    source="Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1 with q = 1 for the drafted token",
)
POINT_RESIDUAL = Rule(
    "point-residual",
    "Residual of p",
    "r",
    {"r": "residual", "p": "p", "t": "elders.p"},
    "The drafter proposed this token deterministically, after other tokens at this position were rejected. r is "
    "this token's probability in p without the rejected tokens, whose total probability was t.",
    because={"r": "p / (1 − t)"},
    leaves=OTHERS,
    source="Miao et al. 2024, SpecInfer, arXiv:2305.09781, Algorithm 2 with point masses",
)
