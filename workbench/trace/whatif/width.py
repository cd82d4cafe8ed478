"""Estimate τ of a wider draft tree, from the ranks of emitted tokens in the drafter's distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.trace.events import Round
from workbench.trace.nodes import ACCEPTED, DISCARDED
from workbench.trace.whatif.tau_prediction import draft_depths, tau_of


@dataclass(frozen=True, slots=True)
class EmittedTokenRanks:
    """Ranks that the emitted tokens at one depth of the draft have in the drafter's distribution.

    Attributes:
        depth: depth in the draft, from 1.
        tested: number of rounds that tested this depth.
        ranks: rank of the emitted token in the drafter's distribution (from 1) → number of rounds, for accepted
            siblings and corrected tokens.
        beyond: number of rounds in which the emitted token was not in the recorded ranking.
        unknown: number of rounds in which the drafter's ranking was not recorded.
        second_for_target: number of rejections in which the draft was the target's second most likely token.
    """

    depth: int
    tested: int
    ranks: dict[int, int]
    beyond: int
    unknown: int
    second_for_target: int

    def to_wire(self) -> dict[str, Any]:
        """Return the ranks of emitted tokens as JSON data; the keys of `ranks` become strings."""
        return asdict(self) | {"ranks": {str(rank): n for rank, n in sorted(self.ranks.items())}}

    def within(self, width: int) -> float:
        """Return the share of tested positions whose emitted token has a rank of at most `width`.

        Tests with an unknown rank count as if the rank were larger.
        """
        return sum(n for rank, n in self.ranks.items() if rank <= width) / self.tested


@dataclass(frozen=True, slots=True)
class WidthEstimate:
    """Estimated τ of a tree with `width` siblings at every position, as deep as the recorded drafts.

    Attributes:
        width: number of siblings.
        tau: estimated tokens per round. The acceptance rate at each depth is the share of recorded tests whose emitted
            token is among the first `width` ranks. The estimate has two opposite errors. It is too low because tests
            without a recorded ranking count as rejected. It is too high because positions that only a wider tree would
            have reached were not tested. They may be harder to predict, but are assumed to be accepted as often as the
            tested positions.
    """

    width: int
    tau: float


def rank_emitted_tokens(rounds: Sequence[Round]) -> list[EmittedTokenRanks]:
    """Return, for every depth of the draft, the ranks that the emitted tokens have in the drafter's distribution.

    Ranks come from the recorded `top_q` or `ranking`. If both are missing, several siblings are ranked by q; with a
    single sibling the rank after a rejection is unknown.
    """
    by_depth: dict[int, EmittedTokenRanks] = {}
    for r in rounds:
        for depth, place, token in tested_positions(r):
            entry = by_depth.get(depth) or EmittedTokenRanks(depth, 0, {}, 0, 0, 0)
            rank = rank_of(r, place, token)
            changes: dict[str, Any] = {"tested": entry.tested + 1}
            if rank is None:
                changes["unknown"] = entry.unknown + 1
            elif rank == 0:
                changes["beyond"] = entry.beyond + 1
            else:
                changes["ranks"] = dict(Counter(entry.ranks) + Counter({rank: 1}))
            if _second_for_target(r, place):
                changes["second_for_target"] = entry.second_for_target + 1
            by_depth[depth] = replace(entry, **changes)
    return [by_depth[d] for d in sorted(by_depth)]


def tested_positions(r: Round) -> list[tuple[int, int, int]]:
    """Return (depth, node, emitted token) of each tree position whose children were tested; node −1 is the root."""
    tested = list[tuple[int, int, int]]()
    for depth, place in enumerate((-1, *r.path), 1):
        children = [i for i, parent in enumerate(r.nodes.parents) if parent == place]
        if not any(r.nodes.status[i] != DISCARDED for i in children):
            continue
        accepted = next((i for i in children if r.nodes.status[i] == ACCEPTED), None)
        if accepted is not None:
            tested.append((depth, place, r.nodes.tokens[accepted]))
        elif r.bonus is not None:
            tested.append((depth, place, r.bonus))
    return tested


def rank_of(r: Round, place: int, wanted: int) -> int | None:
    """Return the rank of a token in the drafter's distribution at a tree position, from 1.

    Args:
        r: the round.
        place: tree position: index of a node; −1: the root.
        wanted: token id.

    Returns:
        The rank; 0 if the token is not in the recorded ranking; None if no ranking was recorded.
    """
    top = next((tops[place + 1] for tops in (r.top_q, r.ranking) if place + 1 < len(tops)), None)
    if top is not None:
        return top.tokens.index(wanted) + 1 if wanted in top.tokens else 0
    children = [i for i, parent in enumerate(r.nodes.parents) if parent == place]
    order = sorted(children, key=lambda i: -(r.nodes.q[i] or 0.0))
    tokens = [r.nodes.tokens[i] for i in order]
    if wanted in tokens:
        return tokens.index(wanted) + 1
    return 0 if len(children) > 1 else None


def _second_for_target(r: Round, place: int) -> bool:
    rejected = [i for i, parent in enumerate(r.nodes.parents) if parent == place and r.nodes.status[i] == "rejected"]
    is_accepted = any(
        parent == place and s == ACCEPTED for parent, s in zip(r.nodes.parents, r.nodes.status, strict=True)
    )
    if is_accepted or not rejected or place + 1 >= len(r.top_p):
        return False
    likeliest = r.top_p[place + 1].tokens
    return len(likeliest) > 1 and any(r.nodes.tokens[i] == likeliest[1] for i in rejected)


def estimate_widths(rounds: Sequence[Round], most: int = 5) -> list[WidthEstimate]:
    """Return the estimated τ of draft trees with 1 … `most` siblings at every position.

    Args:
        rounds: rounds of a recorded run.
        most: maximum number of siblings.
    """
    by_depth, levels = rank_emitted_tokens(rounds), draft_depths(rounds)
    return [WidthEstimate(w, tau_of([entry.within(w) for entry in by_depth], levels)) for w in range(1, most + 1)]
