"""The draft of a round as plain data: its nodes, what was computed beside them, and why each is there."""

from __future__ import annotations

from dataclasses import dataclass, field

ACCEPTED, REJECTED, DISCARDED = "accepted", "rejected", "discarded"
"""Status of a drafted node. Discarded: drafted, never tested, because the path ended before it or
took another branch."""
PROBE = "probe"
"""What a token is called that was computed beside a draft and could not be accepted: it is none of its nodes, and has
none of their statuses."""


@dataclass(slots=True)
class Nodes:
    """The draft tree of one round, column by column; index i is node i, parents come before children.

    Attributes:
        tokens: token ids [N].
        parents: parent's index [N]; −1 is the last committed token (the root).
        depth: 1 for children of the root [N].
        position: absolute position in the sequence [N]; siblings share one.
        text: the token's own text [N], for display only.
        p: the target's probability of the token given its parent [N], after temperature and filters when sampling,
            the plain softmax when greedy.
        q: the drafter's probability [N]; None where the proposal carries no law or score.
        accept: the acceptance probability that was used [N], 0 or 1 where the rule is a comparison; None where the
            node was not tested.
        u: the uniform that was drawn [N]; None where not tested or where nothing was drawn (greedy).
        status: "accepted", "rejected" or "discarded" [N].
        source: drafter that proposed the node [N].
        rule: name of the rule that judged the node [N], explained in `Header.rules`; None where the node was not
            tested, and where the verifier (or an older trace) does not say.
        inputs: what the rules read beyond p and q, by name, each [N]: "residual", "threshold", "likeliest" (a token's
            id). None where the node's rule does not read it.
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
        """Traces before schema 3 do not name the rules."""
        if not self.rule:
            self.rule = [None] * len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class Top:
    """The likeliest tokens at one place of the tree: ids, texts, probabilities (same length, best first)."""

    tokens: list[int]
    text: list[str]
    prob: list[float]


@dataclass(slots=True)
class Probe:
    """A token that went into the target's pass behind a draft, to be computed and never accepted.

    Attributes:
        token: id.
        text: its own text, for display only.
        parent: what it stands behind: −1 the last committed token, i < N node i of the draft, N + j probe j before it.
        position: absolute position in the sequence at which it was read.
        source: the part that asked for it ("reflective").
    """

    token: int
    text: str
    parent: int
    position: int
    source: str


@dataclass(slots=True)
class GrownNodes:
    """Why each node of a draft is there, and what it was worth to what put it there.

    Attributes:
        rules: in force, each with its `name`, `title`, what it `says`, and what the values `before` and `after` are.
        of: index into `rules` [N]; [] where it is the first for all.
        before: first value [N], by what was known when the node was offered; [] where there is none.
        after: second value [N], once more was known; [] where there is none.
    """

    rules: list[dict[str, str]]
    of: list[int] = field(default_factory=list[int])
    before: list[float | None] = field(default_factory=list["float | None"])
    after: list[float | None] = field(default_factory=list["float | None"])
