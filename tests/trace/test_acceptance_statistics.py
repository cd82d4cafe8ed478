"""Calibration and acceptance by entropy and kind of token, on rounds whose counts are found by hand."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from workbench.trace import metrics
from workbench.trace.acceptance_statistics import (
    CONTINUATION,
    FRAGMENT,
    KINDS,
    NUMBER,
    PUNCTUATION,
    SPECIAL,
    WHITE_SPACE,
    WORD_START,
    acceptance_by_entropy,
    acceptance_by_token_kind,
    acceptance_statistics,
    calibration,
    token_kind,
)
from workbench.trace.events import Header, Round, Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED, Nodes
from workbench.trace.tokens import CORRECTED, EmittedToken
from workbench.views import recorded_runs


def draft(
    texts: list[str],
    parents: list[int],
    status: list[str],
    p: list[float],
    q: list[float | None],
    entropy: list[float],
    emitted: list[str],
) -> Round:
    n = len(texts)
    nodes = Nodes(list(range(n)), parents, [1] * n, [0] * n, texts, p, q, [None] * n, [None] * n, status, ["d"] * n)
    tokens = [EmittedToken(0, text, 0, 0, ACCEPTED, None, 0, 0.5) for text in emitted]
    path = [i for i, one in enumerate(status) if one == ACCEPTED]
    return Round(0, "draft-model", {}, nodes, path, 1, CORRECTED, tokens, entropy=entropy)


# The first round drafts " red" → "dish" and, as a sibling of "dish", " 12" → "."; the second drafts "." and "'s".
ROUNDS = [
    draft(
        [" red", "dish", " 12", "."], [-1, 0, 0, 2], [ACCEPTED, REJECTED, ACCEPTED, DISCARDED],
        [0.6, 0.1, 0.4, 0.9], [0.95, 0.25, 0.21, 1.0], [0.05, 1.0, 4.0, 0.0, 0.0], [" red", " 12", " cats", ""],
    ),
    draft([".", "'s"], [-1, -1], [REJECTED, ACCEPTED], [0.3, 0.7], [0.05, None], [0.3, 2.5, 2.5], ["'s", "\n"]),
]  # fmt: skip
TRACE = Trace(
    Header("t", "draft-model", {}, "exact", 0, "a", [1, 2], ["see", " the"], 8, "float32", "cpu"), rounds=ROUNDS
)


def test_a_bin_has_the_mean_p_of_all_its_drafts_and_the_acceptance_of_its_tested_ones() -> None:
    bins = calibration(ROUNDS)
    assert [one.drafted for one in bins] == [1, 0, 2, 0, 0, 0, 0, 0, 0, 2], "q = 1 belongs to the last bin"
    assert bins[2].mean_p == pytest.approx((0.1 + 0.4) / 2)
    assert bins[2].mean_q == pytest.approx((0.25 + 0.21) / 2)
    assert (bins[2].acceptance.accepted, bins[2].acceptance.tested) == (1, 2)
    assert bins[9].mean_p == pytest.approx((0.6 + 0.9) / 2), "a discarded token has a p too"
    assert (bins[9].acceptance.accepted, bins[9].acceptance.tested) == (1, 1), "but it was not tested"
    assert (bins[1].mean_p, bins[1].mean_q, bins[1].acceptance.rate) == (None, None, None)
    assert bins[2].to_wire()["start"] == 0.2
    assert bins[2].to_wire()["rate"] == 0.5


def test_the_calibration_error_weights_bins_by_their_drafts() -> None:
    found = acceptance_statistics(TRACE)
    gaps = 1 * abs(0.3 - 0.05) + 2 * abs(0.25 - 0.23) + 2 * abs(0.75 - 0.975)
    assert found.calibration_error == pytest.approx(gaps / 5)
    assert (found.drafted, found.without_q) == (6, 1)


def test_a_test_counts_at_the_entropy_after_its_parent() -> None:
    found = {one.group: (one.accepted, one.tested) for one in acceptance_by_entropy(ROUNDS)}
    # round 1: " red" after the root (0.05); "dish" and " 12" after " red" (1.0); round 2: both after the root (0.3)
    assert found == {"0–0.1": (1, 1), "0.1–0.3": (0, 0), "0.3–1": (1, 2), "1–2": (1, 2), "2–3": (0, 0),
                     "3 or more": (0, 0)}  # fmt: skip
    bare = draft(["a", "b"], [-1, 0], [ACCEPTED, REJECTED], [1.0, 1.0], [None, None], [3.5], ["a"])
    assert {one.group: one.tested for one in acceptance_by_entropy([bare]) if one.tested} == {"3 or more": 1}
    assert acceptance_statistics(Trace(TRACE.header, [bare])).without_entropy == 1


def test_a_test_counts_for_the_kind_of_the_drafted_token() -> None:
    found = {one.group: (one.accepted, one.tested) for one in acceptance_by_token_kind(TRACE)}
    # "'s" follows " cats": the last committed token with a text is not the incomplete one after it
    assert found == {WORD_START: (1, 1), CONTINUATION: (1, 2), NUMBER: (1, 1), PUNCTUATION: (0, 1)}


@pytest.mark.parametrize(
    ("text", "before", "kind"),
    [
        (" kite", "red", WORD_START),
        ("Once", "\n", WORD_START),
        ("Once", "", WORD_START),
        ("able", " think", CONTINUATION),
        ("st", " 1", CONTINUATION),
        ("'s", " Mia", CONTINUATION),
        ("'s", " ", PUNCTUATION),
        ("'", " Mia", PUNCTUATION),
        ("(see", " ", PUNCTUATION),
        (" 12", "at", NUMBER),
        ("½", " ", NUMBER),
        ("…", "a", PUNCTUATION),
        (" \n", "a", WHITE_SPACE),
        ("<|assistant|>", ".", SPECIAL),
        ("</s>", ".", SPECIAL),
        ("<start_of_turn>", ".", SPECIAL),
        ("[INST]", ".", SPECIAL),
        ("<", " a", PUNCTUATION),
        ("\ufffd", "a", FRAGMENT),
        ("", "a", FRAGMENT),
        ("ि", "क", CONTINUATION),
        ("語", "日", CONTINUATION),
    ],
)
def test_kinds_of_tokens(text: str, before: str, kind: str) -> None:
    assert token_kind(text, before) == kind


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled", "token-recycling", "aggressive", "llada"])
def test_rows_add_up_to_the_metrics_of_the_run(name: str) -> None:
    trace = recorded_runs.trace(name)
    found, rounds = acceptance_statistics(trace), trace.rounds
    assert sum(one.drafted for one in found.calibration) + found.without_q == metrics.count_drafted(rounds)
    for rows, missing in ((found.by_entropy, found.without_entropy), (found.by_kind, 0)):
        assert sum(one.tested for one in rows) + missing == metrics.count_tested(rounds)
    assert sum(one.accepted for one in found.by_kind) == metrics.count_accepted(rounds)
    assert {one.group for one in found.by_kind} <= set(KINDS)


@pytest.mark.parametrize(("accepted", "tested"), [(0, 5), (3, 7), (40, 40), (1, 200)])
def test_the_interval_is_wilsons(accepted: int, tested: int) -> None:
    expected = binomtest(accepted, tested).proportion_ci(0.95, "wilson")
    assert metrics.wilson_interval(accepted, tested) == pytest.approx((expected.low, expected.high), abs=1e-12)
