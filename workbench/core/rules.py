"""What an acceptance rule says of itself: its name, the formula that decides, and what it leaves for the next draft.

A verifier gives these with each ruling, the trace keeps them, and whatever shows a node states the rule from them: no
view knows a rule by heart. Plain data, without tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

EXCESS, OTHERS, ALL = "excess", "others", "all"
"""What a rejection leaves of the law r a draft was judged against: (r − q)₊; r without the token; r as it is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one drafted node is judged.

    Attributes:
        name: kebab-case and permanent; traces carry it.
        title: for people.
        formula: what decides, over the symbols in `places`: a probability of acceptance, or a comparison that holds
            (1) or does not (0). Numbers, ( ), + − · /, min, max, exp and one of = > <: `views/js/live/formula.js`
            reads the same.
        places: symbol in the formula → where its value stands: a column of the trace's nodes ("p", "q", "token"), one
            of the rule's inputs ("residual"), a parameter of the method ("epsilon"), or "elders.p", the sum of p over
            the elder siblings.
        says: one or two sentences: why this is the test.
        because: symbol of the formula → formula that gives its value, where it follows from others.
        leaves: what a rejection leaves of the law for the next sibling, or for the target's own token: `EXCESS`,
            `OTHERS` or `ALL`.
        share: parameter of the method by which q counts in what a rejection leaves, (r − share · q)₊; "": 1.
        leviathan: whether it is min(1, p/q) against the target's whole law, of which α is the mean (q is a point mass
            where a draft was chosen, p where the target takes its likeliest token).
        source: paper and place.
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
    def reads(self) -> frozenset[str]:
        """Names of what its formulas read."""
        return frozenset(self.places.values())

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


GREEDY = Rule(
    "greedy",
    "The target's likeliest token",
    "x = x*",
    {"x": "token", "x*": "likeliest"},
    "Nothing is drawn at temperature 0: a draft is kept if it is x*, the token that the target would write here.",
    leviathan=True,
    source="Leviathan et al. 2023, arXiv:2211.17192, §2.2: greedy decoding as a law of one token",
)
RATIO = Rule(
    "ratio",
    "p over q",
    "min(1, p / q)",
    {"p": "p", "q": "q"},
    "The drafter drew it from q. Kept with probability min(1, p/q), and replaced from (p − q)₊ if not, what comes out "
    "has the target's law.",
    leaves=EXCESS,
    leviathan=True,
    source="Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1",
)
RESIDUAL = Rule(
    "residual",
    "Residual over q",
    "min(1, r / q′)",
    {"r": "residual", "q′": "q_left"},
    "Drafts for the same place were rejected before it: r is what they left of p at this token, q′ its chance in the "
    "drafter's law when it was drawn.",
    leaves=EXCESS,
    source="Jeon et al. 2024, arXiv:2402.14160, Algorithm 1; Miao et al. 2024, arXiv:2305.09781, Algorithm 2",
)
POINT = Rule(
    "point",
    "p alone",
    "p",
    {"p": "p"},
    "It was chosen, not drawn: its law is a point mass, so that p alone decides, and a rejection takes the token out.",
    leaves=OTHERS,
    leviathan=True,
    source="Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1 with q = 1 for the token",
)
POINT_RESIDUAL = Rule(
    "point-residual",
    "Residual of p",
    "r",
    {"r": "residual", "p": "p", "t": "elders.p"},
    "Chosen, not drawn, and drafts for the same place were rejected before it: r is its share of what is left of p "
    "without them (they held t).",
    because={"r": "p / (1 − t)"},
    leaves=OTHERS,
    source="Miao et al. 2024, SpecInfer, arXiv:2305.09781, Algorithm 2 with point masses",
)
