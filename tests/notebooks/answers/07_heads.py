"""Answers that the checkers of this lesson are tried with, in its kernel: the names are those of the notebook."""

from __future__ import annotations


def try_static_yield(right, wrong):
    right(expected)
    right(round(expected, 2))
    wrong(sum(accuracy[len(node) - 1][node[-1]] for node in static))  # each node by itself
    wrong(mean[12][0])  # what was measured
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
