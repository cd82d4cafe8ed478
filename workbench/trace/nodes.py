"""Describe a round's draft as plain data: its nodes, probe positions, and the tree builder's explanation."""

from __future__ import annotations

from dataclasses import dataclass, field

ACCEPTED, REJECTED, DISCARDED = "accepted", "rejected", "discarded"
"""Statuses of a drafted node. Discarded: drafted but not tested, because the path ended before it or took another
branch."""
PROBE = "probe"
"""Display name of a probe position: a token computed with a draft that cannot be accepted. It is not a draft node and
has no status."""


@dataclass(slots=True)
class Nodes:
    """Draft tree of one round in columns; index i is node i, parents come before children.

    Attributes:
        tokens: token ids [N].
        parents: index of the parent [N]; −1 is the last committed token (the root).
        depth: depth [N]; 1 for children of the root.
        position: absolute position in the sequence [N]; siblings have equal positions.
        text: text of the token [N], for display only.
        p: the target's probability of the token given its parent [N]; after temperature and filters when sampling,
            the plain softmax in greedy decoding.
        q: draft probability [N]; None if the proposal has no distribution or score.
        accept: acceptance probability used [N], 0 or 1 for a comparison; None if the node was not tested.
        u: uniform random number compared with `accept` [N]; None if the node was not tested or the test is
            deterministic.
        status: "accepted", "rejected" or "discarded" [N].
        source: drafter that proposed the node [N].
        rule: name of the acceptance rule that tested the node [N], described in `Header.rules`; None if the node was
            not tested, or if the verifier or an older trace does not record it.
        inputs: inputs of the rules other than p and q, by name, each [N]: "residual", "threshold", "likeliest" (a
            token id). None where the node's rule does not use it.
    """

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    depth: list[int] = field(default_factory=list[int])
    position: list[int] = field(default_factory=list[int])
    text: list[str] = field(default_factory=list[str])
    p: list[float] = field(default_factory=list[float])
    q: list[float | None] = field(default_factory=list[float | None])
    accept: list[float | None] = field(default_factory=list[float | None])
    u: list[float | None] = field(default_factory=list[float | None])
    status: list[str] = field(default_factory=list[str])
    source: list[str] = field(default_factory=list[str])
    rule: list[str | None] = field(default_factory=list[str | None])
    inputs: dict[str, list[float | None]] = field(default_factory=dict[str, list[float | None]])

    def __post_init__(self) -> None:
        """Fill the column `rule` with None for traces before schema 3, which do not record acceptance rules."""
        if not self.rule:
            self.rule = [None] * len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class TopTokens:
    """Most likely next tokens at one position of a draft tree, best first: ids, texts, probabilities."""

    tokens: list[int]
    text: list[str]
    prob: list[float]


@dataclass(slots=True)
class Probe:
    """Probe position: a token computed in the target's pass after a draft but never accepted.

    Attributes:
        token: token id.
        text: text of the token, for display only.
        parent: predecessor: −1 the last committed token, i < N node i of the draft, N + j the earlier probe j.
        position: absolute position in the sequence.
        source: name of the component of a method that requested the probe ("reflective").
    """

    token: int
    text: str
    parent: int
    position: int
    source: str


@dataclass(slots=True)
class TreeExplanationRecord:
    """Explanation of a draft tree's shape, a `workbench.core.tree_explanation.TreeExplanation` as plain data.

    Attributes:
        rules: tree builder's rules, each with `name`, `title`, `says` (explanation), and the meanings of the values
            `before` and `after`.
        of: index into `rules` [N]; [] if the first rule added all nodes.
        before: first value of each node [N], known when it was proposed; [] if there is none.
        after: second value of each node [N], computed with more information; [] if there is none.
    """

    rules: list[dict[str, str]]
    of: list[int] = field(default_factory=list[int])
    before: list[float | None] = field(default_factory=list["float | None"])
    after: list[float | None] = field(default_factory=list["float | None"])
