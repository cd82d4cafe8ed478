"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_longer_drafts(right, wrong):
    right(solved)
    right({depth: list(pair) for depth, pair in reversed(solved.items())})
    wrong({depth: (passes, discarded + 1) for depth, (passes, discarded) in solved.items()})
    wrong({depth: (discarded, passes) for depth, (passes, discarded) in solved.items()})
    wrong({depth: (passes, 0) for depth, (passes, _) in solved.items()})


def try_hopeless(right, wrong):
    right(HARD)
    right("<|user|>Copy this text: qx 71 vj 30 wz 58<|assistant|>")
    wrong(PROMPT)
    wrong("<|user|>Repeat this text three times:\nThe little fox found a red kite<|assistant|>")
    wrong("<|user|>Write a story about Mia and Tom.<|assistant|>")


def try_copying(right, wrong):
    right(COPY, PROMPT)
    right("<|user|>Repeat this text three times:\nA green boat is on the lake<|assistant|>", PROMPT)
    wrong(PROMPT, COPY)
    wrong(COPY, COPY)
    wrong(PROMPT, PROMPT)
