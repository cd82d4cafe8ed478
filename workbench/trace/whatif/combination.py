"""Two recorded drafters of one text: what the better of both would give."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.trace.events import Trace


@dataclass(frozen=True, slots=True)
class Combination:
    """Two recorded drafters of one text, and the better of both at every place.

    Attributes:
        first: method of the first run.
        second: method of the second run.
        tokens: tokens that both wrote alike, from the beginning.
        tau_first: of the first on these tokens.
        tau_second: of the second.
        tau: of the better one in every round, which is also that of both drafts in one tree: a ceiling for every rule
            that chooses between the two.
        share_first: part of the combined rounds in which the first one reached further.
        share_second: the same for the second; the rest are ties.
    """

    first: str
    second: str
    tokens: int
    tau_first: float
    tau_second: float
    tau: float
    share_first: float
    share_second: float

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def combine(first: Trace, second: Trace) -> Combination:
    """The oracle combination of two drafters: from every place on, the draft that reaches further.

    A recorded round says how far a draft made at its start, or at any place inside its accepted part, would have
    reached; so every place of the text has an answer for both drafters.

    Raises:
        WorkbenchError: the runs have other prompts or targets, or wrote no common beginning.
    """
    for what, a, b in (
        ("targets", first.header.target, second.header.target),
        ("prompts", first.header.prompt_tokens, second.header.prompt_tokens),
    ):
        if a != b:
            raise WorkbenchError(f"The two runs have different {what}.", "Combine runs of one target and prompt.")
    common = 0
    for a, b in zip(first.token_ids, second.token_ids, strict=False):
        if a != b:
            break
        common += 1
    if not common:
        raise WorkbenchError("The two runs share no beginning.", "Combine greedy runs, which write the same text.")
    starts, reaches = zip(*(_reach(t, common) for t in (first, second)), strict=True)
    at, n, wins = 0, 0, [0, 0]
    while at < common:
        ends = [reach[bisect_right(start, at) - 1] for start, reach in zip(starts, reaches, strict=True)]
        if ends[0] != ends[1]:
            wins[ends[1] > ends[0]] += 1
        at, n = max(ends), n + 1
    return Combination(
        first.header.method, second.header.method, common,
        common / len(starts[0]), common / len(starts[1]), common / n, wins[0] / n, wins[1] / n,
    )  # fmt: skip


def _reach(trace: Trace, common: int) -> tuple[list[int], list[int]]:
    """Start of every round in the common text, and where its tokens end."""
    starts, ends, at = list[int](), list[int](), 0
    for r in trace.rounds:
        if at >= common:
            break
        if r.emitted:
            starts.append(at)
            at += len(r.emitted)
            ends.append(min(at, common))
    return starts, ends
