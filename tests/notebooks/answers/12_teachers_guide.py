"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_later_sibling(right, wrong):
    right({"round": saved[0][0], "node": saved[0][1]})
    right({"round": saved[-1][0], "node": saved[-1][1]})
    wrong({"round": saved[0][0], "node": 0})
    rejected = traces["draft-tree"].rounds[saved[0][0]].nodes.status.index("rejected")
    wrong({"round": saved[0][0], "node": rejected})
    wrong({"round": 10_000, "node": 0})


def try_in_a_terminal(right, wrong):
    right(solved)
    right(["workbench generate 'Once upon a time' -m draft-tree", "workbench whatif draft-model"])
    wrong(solved[::-1])
    wrong(["workbench generate 'Once' --json", solved[1]])
    wrong(["workbench generate 'Once' --method autoregressive", solved[1]])
    wrong([solved[0], "workbench whatif no-such-recording"])


def try_hand_out(right, wrong):
    right(OUT)
    right(str(OUT))
    wrong(OUT / "nowhere")
    wrong(OUT.parent)
    wrong("")
