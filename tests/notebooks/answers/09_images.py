"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_short_answer(right, wrong):
    best = min(6, sum(lengths) / len(lengths))
    right(best)
    right(round(best, 2))
    wrong(6)
    wrong(best + 0.5)
    wrong(1)


def try_unharmed(right, wrong):
    speck = picture.copy()
    ImageDraw.Draw(speck).point((255, 255), fill=(180, 180, 180))
    right(dot)
    right(speck)
    wrong(painted(picture))
    wrong(picture)
    wrong(picture.resize((64, 64)))


def try_gate_chooses(right, wrong):
    right("none")
    right("".join(["no", "ne"]))
    wrong("pool")
    wrong("prune")
    wrong("everything")
