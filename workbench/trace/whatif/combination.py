"""Combine two recorded runs of the same text: compute τ if the better of their two drafts were used in every round."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.trace.events import Trace


@dataclass(frozen=True, slots=True)
class Combination:
    """Oracle combination of the drafters of two recorded runs: the better draft is used in every round.

    Attributes:
        first: method of the first run.
        second: method of the second run.
        tokens: length of the common prefix of both outputs, in tokens.
        tau_first: τ of the first run on these tokens.
        tau_second: τ of the second run on these tokens.
        tau: τ with the better draft in every round, or with both drafts in one tree. This is an upper bound for every
            rule that chooses between the two drafts.
        share_first: share of the combined rounds in which the first drafter's draft reached further.
        share_second: share of the combined rounds in which the second drafter's draft reached further. In all other
            rounds both drafts reached equally far.
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
        """Return the oracle combination of two runs as JSON data."""
        return asdict(self)


def combine(first: Trace, second: Trace) -> Combination:
    """Return the oracle combination of two drafters, which uses at each position the draft that is accepted further.

    A draft that starts with a recorded round, or at one of the round's accepted positions, ends where the round ended.
    So for both drafters the end of the draft is known at every position of the common prefix.

    Args:
        first: run of one drafter.
        second: run of the other drafter, with the same target and prompt.

    Raises:
        WorkbenchError: the runs have different prompts or targets, or their outputs have no common prefix.
    """
    for field, a, b in (
        ("targets", first.header.target, second.header.target),
        ("prompts", first.header.prompt_tokens, second.header.prompt_tokens),
    ):
        if a != b:
            raise WorkbenchError(f"The two runs have different {field}.", "Combine runs of the same target and prompt.")
    common = 0
    for a, b in zip(first.token_ids, second.token_ids, strict=False):
        if a != b:
            break
        common += 1
    if not common:
        raise WorkbenchError("The outputs of the two runs have no common prefix.", "Combine greedy runs.")
    starts, reaches = zip(*(_round_ranges(t, common) for t in (first, second)), strict=True)
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


def _round_ranges(trace: Trace, common: int) -> tuple[list[int], list[int]]:
    """Return two lists: the position in the output at which each round starts, and the position at which it ends.

    Only rounds that start within the first `common` tokens of the output count; ends are at most `common`.
    """
    starts, ends, at = list[int](), list[int](), 0
    for r in trace.rounds:
        if at >= common:
            break
        if r.emitted:
            starts.append(at)
            at += len(r.emitted)
            ends.append(min(at, common))
    return starts, ends
