"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_two_guesses(right, wrong):
    class Same(TwoSuccessors):
        """The same drafter under another name."""

    class Twice(own.Successor):
        """The first guess, twice."""

        def propose_one(self, sequence, plan):
            first = own.Successor.propose_one(self, sequence, plan).tokens.tolist()[:1]
            return DraftTree.from_parents(
                2 * first, [-1] * len(2 * first), source="twice", device=sequence.models.target.device
            )

    class Nothing(own.Successor):
        """An empty draft."""

        def propose_one(self, sequence, plan):
            return DraftTree.from_parents([], [], source="nothing", device=sequence.models.target.device)

    right(TwoSuccessors)
    right(Same)
    wrong(own.Successor)
    wrong(Twice)
    wrong(Nothing)


def try_for_nothing(right, wrong):
    right(solved)
    right({name: list(pair) for name, pair in solved.items()})
    wrong(tested_only)
    wrong({name: pair[::-1] for name, pair in solved.items()})
    wrong(dict.fromkeys(solved, (0, 0)))


def try_adapts(right, wrong):
    found = [len(r.nodes) for r in adaptive.rounds]
    right(found)
    right(tuple(found))
    wrong(found[:-1])
    wrong([len(r.path) for r in adaptive.rounds])
    wrong([4] * len(found))
