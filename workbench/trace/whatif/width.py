"""Would rank 2 have saved it? What a wider tree would have been worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.trace.events import Round
from workbench.trace.nodes import ACCEPTED, DISCARDED
from workbench.trace.whatif.predicted import depths, tau_of


@dataclass(frozen=True, slots=True)
class Rescue:
    """At one depth: where the tokens stood that the target wanted.

    Attributes:
        depth: in the draft, from 1.
        tested: rounds that tested this depth.
        ranks: rounds by rank, from 1, of the wanted token among the drafter's: accepted siblings and corrections.
        beyond: rounds whose wanted token was not among the recorded ones.
        unknown: rounds for which the drafter's ranking was not recorded.
        second_for_target: rejections in which the target ranked the draft second.
    """

    depth: int
    tested: int
    ranks: dict[int, int]
    beyond: int
    unknown: int
    second_for_target: int

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON, in which ranks are texts."""
        return asdict(self) | {"ranks": {str(rank): n for rank, n in sorted(self.ranks.items())}}

    def within(self, width: int) -> float:
        """Share of the tests that siblings down to rank `width` would have passed (what is unknown counts as lost)."""
        return sum(n for rank, n in self.ranks.items() if rank <= width) / self.tested


@dataclass(frozen=True, slots=True)
class Width:
    """A tree of `width` siblings at every place, as deep as the recorded drafts.

    Attributes:
        width: siblings.
        tau: tokens a round, estimated: no such tree was run. At each depth as many pass as passed of the tests that
            were made there with the wanted token among the first `width` ranks. Two errors pull against each other:
            tests whose ranking was not recorded count as lost, and places that only a sibling would have reached,
            which were never tested and may be harder, are taken to pass as often as those that were.
    """

    width: int
    tau: float


def rescues(rounds: Sequence[Round]) -> list[Rescue]:
    """Would rank 2 have saved it? For every depth, the rank at which the drafter had what the target wanted.

    The drafter's ranking is the recorded one (`top_q`). Where it is missing and the drafter offered several siblings,
    their order by q stands for it; where it offered one, a rejection stays unknown.
    """
    found: dict[int, Rescue] = {}
    for r in rounds:
        for depth, place, wanted in tests_of(r):
            entry = found.get(depth) or Rescue(depth, 0, {}, 0, 0, 0)
            rank = _rank(r, place, wanted)
            changed: dict[str, Any] = {"tested": entry.tested + 1}
            if rank is None:
                changed["unknown"] = entry.unknown + 1
            elif rank == 0:
                changed["beyond"] = entry.beyond + 1
            else:
                changed["ranks"] = dict(Counter(entry.ranks) + Counter({rank: 1}))
            if _second_for_target(r, place):
                changed["second_for_target"] = entry.second_for_target + 1
            found[depth] = replace(entry, **changed)
    return [found[d] for d in sorted(found)]


def tests_of(r: Round) -> list[tuple[int, int, int]]:
    """(depth, place, token the target took there) of each place whose children were tested; place −1 is the root."""
    tested = list[tuple[int, int, int]]()
    for depth, place in enumerate((-1, *r.path), 1):
        children = [i for i, parent in enumerate(r.nodes.parents) if parent == place]
        if not any(r.nodes.status[i] != DISCARDED for i in children):
            continue
        kept = next((i for i in children if r.nodes.status[i] == ACCEPTED), None)
        if kept is not None:
            tested.append((depth, place, r.nodes.tokens[kept]))
        elif r.bonus is not None:
            tested.append((depth, place, r.bonus))
    return tested


def _rank(r: Round, place: int, wanted: int) -> int | None:
    """Rank from 1; 0 beyond what is recorded; None unknown."""
    top = r.top_q[place + 1] if place + 1 < len(r.top_q) else None
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
    kept = any(parent == place and s == ACCEPTED for parent, s in zip(r.nodes.parents, r.nodes.status, strict=True))
    if kept or not rejected or place + 1 >= len(r.top_p):
        return False
    likeliest = r.top_p[place + 1].tokens
    return len(likeliest) > 1 and any(r.nodes.tokens[i] == likeliest[1] for i in rejected)


def widths(rounds: Sequence[Round], most: int = 5) -> list[Width]:
    """Estimated τ of trees with 1 … `most` siblings at every place: what a wider tree might have been worth."""
    found, levels = rescues(rounds), depths(rounds)
    return [Width(w, tau_of([entry.within(w) for entry in found], levels)) for w in range(1, most + 1)]
