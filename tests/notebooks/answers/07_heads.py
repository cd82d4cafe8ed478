"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_static_yield(right, wrong):
    right(expected)
    right(round(expected, 2))
    wrong(sum(accuracy[len(node) - 1][node[-1]] for node in static))  # each node independently
    wrong(mean[12][0])  # the measured value
    wrong(7.0)


def try_objection(right, wrong):
    right(own)
    right([list(row) for row in own])
    wrong(accuracy)
    wrong([row[::-1] for row in own])
    wrong([row[:5] for row in own])


def try_extrapolated(right, wrong):
    right(solved)
    right({name: [round(share, 2) for share in shares] for name, shares in solved.items()})
    wrong({"own features": solved["own features"], "true features": [7.0] * 4})
    wrong({"own features": solved["own features"], "true features": [solved["own features"][0], 7.0, 7.0, 7.0]})
    wrong({"own features": solved["own features"], "true features": [solved["own features"][0], 0.5, 0.5, 0.5]})
    wrong({"own features": solved["true features"], "true features": solved["own features"]})
