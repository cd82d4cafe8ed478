"""What-if predictions on rounds whose results can be computed by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from statistics import fmean

import numpy as np
import pytest

from workbench.core.errors import WorkbenchError
from workbench.core.rules import GREEDY, POINT, POINT_RESIDUAL, RATIO, RESIDUAL
from workbench.methods.verifiers.typical import TYPICAL
from workbench.trace import acceptance, metrics, theory, whatif
from workbench.trace.events import Footer, Header, Phase, Round, Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED, Nodes, TopTokens
from workbench.trace.speedup import Estimate
from workbench.trace.tokens import BONUS, CORRECTED, EmittedToken
from workbench.views import recorded_runs

DRAFT_S, VERIFY_S, NODE_S, JUDGE_S, HOST_S = 0.001, 0.010, 0.0005, 0.0003, 0.0007
PLAIN_S = VERIFY_S + JUDGE_S + HOST_S


def header(method: str = "draft-model", **changes: object) -> Header:
    made = Header("t", method, {}, "exact", 0, "ab", [1, 2], ["a", "b"], 64, "float32", "cpu")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def chain(accepted: int, drafted: int, first: int = 100, **more: object) -> Round:
    """Return a round of a chain; times follow the cost model above exactly. Tokens count upward from `first`."""
    status = [ACCEPTED] * accepted + [REJECTED] * (drafted > accepted) + [DISCARDED] * max(0, drafted - accepted - 1)
    tokens = [first + i if i < accepted else 1 for i in range(drafted)]
    nodes = Nodes(
        tokens, list(range(-1, drafted - 1)), list(range(1, drafted + 1)), list(range(drafted)), [""] * drafted,
        [0.5] * drafted, [0.5] * drafted, [None if s == DISCARDED else 0.5 for s in status], [None] * drafted, status,
        ["d"] * drafted, [None if s == DISCARDED else RATIO.name for s in status],
    )  # fmt: skip
    kind = CORRECTED if accepted < drafted else BONUS
    emitted = [
        EmittedToken(first + i, "", 0, 0, ACCEPTED if i < accepted else kind, i if i < accepted else None, 0, 0.5)
        for i in range(accepted + 1)
    ]
    draft_s, verify_s = drafted * DRAFT_S, VERIFY_S + drafted * NODE_S
    r = Round(
        0, "draft-model", {"temperature": 0.0}, nodes, list(range(accepted)), first + accepted, kind, emitted,
        phases=[Phase("judge", 0.0, JUDGE_S)], seconds=draft_s + verify_s + JUDGE_S + HOST_S, draft_s=draft_s,
        verify_s=verify_s, overhead_s=JUDGE_S + HOST_S,
    )  # fmt: skip
    for name, value in more.items():
        setattr(r, name, value)
    return r


def run(*rounds: tuple[int, int], method: str = "draft-model") -> Trace:
    """Return a run of chains, (accepted, drafted) each, that emits 100, 101, 102 …"""
    made, at = [], 100
    for index, (accepted, drafted) in enumerate(rounds):
        r = chain(accepted, drafted, at)
        r.index = index
        made.append(r)
        at += accepted + 1
    return laid(Trace(header(method), made, Footer("length")))


def laid(trace: Trace) -> Trace:
    """Place the rounds one after the other, from the end of prefill on."""
    at = 0.0
    for r in trace.rounds:
        r.started_s, at = at, at + r.seconds
    return trace


PLAIN = run(*[(0, 0)] * 12, method="autoregressive")
RUN = run((4, 4), (1, 4), (0, 4), (3, 4), (2, 4))  # 15 tokens in 5 rounds


def test_budget_adds_up_to_the_measured_speed() -> None:
    found = whatif.time_breakdown(RUN, PLAIN)
    assert found.plain_s == pytest.approx(PLAIN_S)
    assert found.round_s == pytest.approx(4 * DRAFT_S + VERIFY_S + 4 * NODE_S + JUDGE_S + HOST_S)
    assert (found.accept_s, found.other_s) == (pytest.approx(JUDGE_S), pytest.approx(HOST_S))
    rate = lambda t: metrics.count_emitted(t.rounds) / sum(r.seconds for r in t.rounds)  # noqa: E731
    assert found.speedup == pytest.approx(rate(RUN) / rate(PLAIN))
    assert found.measured == pytest.approx(found.speedup), "no round stalled"
    assert found.predicted_speedup == pytest.approx(theory.expected_tau(10 / 14, 4) / (4 * DRAFT_S / PLAIN_S + 1))
    names, gains = zip(*found.steps(), strict=True)
    assert gains[0] == found.predicted_speedup
    assert gains[-1] == found.speedup
    assert len(names) == 4


def test_summary_names_the_largest_cost() -> None:
    slow = run(*[(0, 8)] * 9, (1, 8))
    text = " ".join(whatif.explain_speed(whatif.time_breakdown(slow, PLAIN), whatif.predict_draft_lengths(slow, PLAIN)))
    assert "×: one run, which is not conclusive" in text
    assert "is drafting, which takes 0.73 plain steps" in text
    assert "more than in this run" in text
    assert "times as fast as the recorded rounds; one run is not conclusive" in text
    for r in slow.rounds:
        r.draft_s, r.seconds = 0.0, r.seconds - r.draft_s
    assert "verifying 9.0 tokens instead of 1, which takes 0.36 plain steps" in " ".join(
        whatif.explain_speed(whatif.time_breakdown(slow, PLAIN))
    )
    assert "speed-up is unknown" in whatif.explain_speed(whatif.time_breakdown(RUN))[1]
    assert whatif.explain_speed(whatif.time_breakdown(PLAIN)) == [
        "Nothing was drafted in this run, so it is plain decoding."
    ]


@pytest.mark.parametrize(
    ("measured", "verdict", "said"),
    [
        (
            Estimate(0.6, 0.5, 0.7, 6, 1),
            "slower on this prompt",
            "Plain decoding is faster: 1.67 times as fast as this method",
        ),
        (
            Estimate(0.9, 0.7, 1.2, 6, 1),
            "no significant difference yet",
            "over several pairs, 0.90×: no significant difference yet",
        ),
    ],
)
def test_verdict_needs_an_interval_on_one_side_of_1(measured: Estimate, verdict: str, said: str) -> None:
    slow = run(*[(0, 8)] * 9, (1, 8))
    lines = whatif.explain_speed(
        whatif.time_breakdown(slow, PLAIN), whatif.predict_draft_lengths(slow, PLAIN), measured
    )
    assert lines[0].startswith(f"{measured.value:.2f}×: {verdict} (")
    assert said in lines[-1]
    assert "Plain decoding is faster" not in " ".join(whatif.explain_speed(whatif.time_breakdown(slow, PLAIN)))


@pytest.mark.parametrize("part", ["overhead_s", "verify_s", "draft_s"])
def test_nothing_is_concluded_from_rounds_that_stalled(part: str) -> None:
    """Three stalled rounds used to reverse the verdict: "not drafting at all would have been faster"."""
    usual, hit = run(*[(3, 4)] * 10), run(*[(3, 4)] * 10)
    for r in hit.rounds[2:5]:
        setattr(r, part, getattr(r, part) + 19 * r.seconds)
        r.seconds *= 20
    found, clean = whatif.time_breakdown(laid(hit), PLAIN), whatif.time_breakdown(usual, PLAIN)
    assert (found.stalled, found.rounds) == (3, 10)
    assert found.measured is not None
    assert clean.speedup is not None
    assert found.measured < 1 < clean.speedup == pytest.approx(found.speedup)
    assert asdict(whatif.fit_costs(hit, PLAIN)) == pytest.approx(asdict(whatif.fit_costs(usual, PLAIN)))
    lengths = [whatif.predict_draft_lengths(trace, PLAIN) for trace in (hit, usual)]
    assert lengths[0].best.depth == lengths[1].best.depth
    assert lengths[0].best.depth
    text = " ".join(whatif.explain_speed(found, lengths[0]))
    assert "3 of 10 rounds stalled" in text
    assert text.count("×") == 1, "only the headline's speed-up"
    assert whatif.compare_with_theory(hit, PLAIN)["best"] == pytest.approx(
        whatif.compare_with_theory(usual, PLAIN)["best"]
    )


def test_rounds_without_a_draft_count_as_plain_decoding() -> None:
    mixed = run((2, 4), (0, 0), (0, 0), (0, 0))
    assert whatif.time_breakdown(mixed).plain_s == pytest.approx(PLAIN_S)
    assert "3 rounds" in whatif.time_breakdown(mixed).plain_from
    assert whatif.time_breakdown(run((2, 4), (0, 0), (0, 0))).plain_s is None


def test_baseline_of_another_run_is_refused() -> None:
    for change in ({"target": "x"}, {"dtype": "bfloat16"}, {"prompt_tokens": [1]}):
        with pytest.raises(WorkbenchError, match="differ in their"):
            whatif.time_breakdown(RUN, Trace(header("autoregressive", **change), PLAIN.rounds))
    with pytest.raises(WorkbenchError, match="no rounds"):
        whatif.time_breakdown(Trace(header()))


def test_cost_model_is_recovered() -> None:
    model = whatif.fit_costs(RUN, PLAIN)
    assert model.node_s == pytest.approx(NODE_S)
    assert model.verify_s == pytest.approx(VERIFY_S)
    assert model.level_s == pytest.approx(DRAFT_S)
    assert model.fitted
    assert not whatif.fit_costs(RUN).fitted  # all drafts have one size, so that the cost per token is unknown


def test_shorter_drafts_are_replayed_from_verification_results() -> None:
    found = whatif.predict_draft_lengths(RUN, PLAIN)
    # (4,4) and its bonus, for which there was no draft: it would have been right with some probability
    assert [15 / a.tau for a in found.fixed] == [
        pytest.approx(n, abs=0.5) for n in (15, 3 + 1 + 1 + 2 + 2, 2 + 1 + 1 + 2 + 1, 6, 5)
    ]
    assert 15 / found.fixed[4].tau == pytest.approx(5)
    assert found.fixed[4].relative == pytest.approx(1)
    cost = lambda n: n * DRAFT_S + VERIFY_S + n * NODE_S + JUDGE_S + HOST_S  # noqa: E731
    assert found.fixed[2].tokens_per_second == pytest.approx(found.fixed[2].tau / cost(2))
    assert found.oracle.tokens_per_second == pytest.approx(15 / sum(cost(n) for n in (4, 1, 0, 3, 2)))
    assert found.oracle.tokens_per_second > found.best.tokens_per_second
    assert found.cut_short == 1


def simulate(right: list[list[bool]], most: int) -> list[tuple[int, int]]:
    """Return (accepted, drafted) of every round of a run with drafts of `most` tokens.

    `right[i][d − 1]`: whether a draft is right at position i and depth d. The last round may end beyond the text.
    """
    rounds, at = list[tuple[int, int]](), 0
    while at < len(right):
        n = next((d for d in range(most) if at + d >= len(right) or not right[at + d][d]), most)
        rounds.append((n, most))
        at += n + 1
    return rounds


@pytest.mark.parametrize("falls", [0.0, 0.25], ids=["independent of depth", "worse with depth"])
def test_drafts_of_at_most_k_are_predicted_without_bias(falls: float) -> None:
    """Earlier, each cut remainder counted as a round of its own, so that τ was too low."""
    rng, depth, errors = np.random.default_rng(0), 5, dict[int, list[float]]()
    for _ in range(60):
        luck = rng.random(
            120
        )  # one number per position: a guess that is right at a larger depth is right at smaller ones
        right = [[bool(u < 0.8 * (1 - falls * d / depth)) for d in range(depth)] for u in luck]
        found = whatif.predict_draft_lengths(run(*simulate(right, depth)), PLAIN)
        for k in range(1, depth + 1):
            real = simulate(right, k)
            errors.setdefault(k, []).append(found.fixed[k].tau / (sum(n + 1 for n, _ in real) / len(real)))
    bias = {k: fmean(ratios) for k, ratios in errors.items()}
    assert bias == pytest.approx(dict.fromkeys(bias, 1.0), abs=0.03)
    assert bias[depth] == pytest.approx(1.0, abs=1e-9), "the recorded run"


def test_remainder_of_a_cut_draft_continues_in_the_next_rounds() -> None:
    """Drafts of four, all right: with at most three, one round per four positions, wherever recorded rounds end."""
    found = whatif.predict_draft_lengths(run(*[(4, 4)] * 8), PLAIN)  # 40 tokens
    assert [a.tau for a in found.fixed[1:]] == [pytest.approx(k + 1, rel=0.05) for k in (1, 2, 3, 4)]


def test_measured_error_is_shown_with_the_prediction() -> None:
    found = whatif.analyse(RUN, [PLAIN], errors={"lengths": "Against 9 real runs: 1.00."})
    assert found["errors"] == {"lengths": "Against 9 real runs: 1.00."}


def test_better_of_two_drafters_at_every_position() -> None:
    first, second = run((3, 4), (0, 4), (0, 4), (1, 4)), run((0, 2), (0, 2), (2, 2), (2, 2))  # 8 tokens, 8 tokens
    found = whatif.combine(first, second)
    # from 0 the first drafter reaches 4; there the second is inside its round 2..4 and also reaches 5;
    # from 5 the second drafter, whose round began there, reaches 8
    assert found.tokens == 8
    assert found.tau == pytest.approx(8 / 3)
    assert (found.tau_first, found.tau_second) == (2.0, 2.0)
    assert (found.share_first, found.share_second) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert whatif.combine(first, first).tau == found.tau_first


def test_runs_of_other_texts_are_not_combined() -> None:
    other = run((3, 4))
    other.header.prompt_tokens = [9]
    with pytest.raises(WorkbenchError, match="different prompts"):
        whatif.combine(RUN, other)
    apart = run((0, 2))
    apart.rounds[0].emitted[0].token = 7
    with pytest.raises(WorkbenchError, match="no common prefix"):
        whatif.combine(RUN, apart)


def test_rescues_count_rounds_that_the_second_rank_would_have_saved() -> None:
    top = lambda *tokens: TopTokens(list(tokens), [""] * len(tokens), [0.5] * len(tokens))  # noqa: E731
    saved = chain(0, 1, 100, top_q=[top(1, 100, 7), None], top_p=[top(100, 1), top()])
    lost = chain(0, 1, 100, top_q=[top(1, 8, 9), None])
    kept = chain(1, 1, 100, top_q=[top(100, 1), top(5)])
    blind = chain(0, 1, 100)
    found = whatif.rank_emitted_tokens([saved, lost, kept, blind])
    assert len(found) == 1
    assert found[0] == whatif.EmittedTokenRanks(1, 4, {2: 1, 1: 1}, 1, 1, 1)
    assert [found[0].within(w) for w in (1, 2)] == [0.25, 0.5]
    assert [w.tau for w in whatif.estimate_widths([saved, lost, kept, blind], 2)] == [1.25, 1.5]


def test_ranks_of_a_tree_without_recorded_rankings_are_those_of_its_siblings() -> None:
    r = chain(1, 1)
    r.nodes = Nodes([5, 100], [-1, -1], [1, 1], [0, 0], ["", ""], [0.1, 0.9], [0.7, 0.2], [0.0, 1.0], [None, None],
                    [REJECTED, ACCEPTED], ["d", "d"])  # fmt: skip
    r.path = [1]
    assert whatif.rank_emitted_tokens([r])[0].ranks == {2: 1}


def test_theory_is_shown_with_the_measurement() -> None:
    found = whatif.compare_with_theory(RUN, PLAIN)
    assert found["tau"] == 3.0
    assert found["tau_by_position"] == pytest.approx(theory.tau_by_position([4 / 5, 3 / 4, 2 / 3, 1 / 2]))
    assert found["tau_iid"] == pytest.approx(theory.expected_tau(10 / 14, 4))
    assert 1 <= found["best"]["depth"] <= 8


def test_rounds_without_a_match_have_no_draft_at_any_length() -> None:
    """Prompt lookup on a new text: a few accepted copies say nothing about the other rounds."""
    best = whatif.compare_with_theory(run(*[(4, 4)] * 6, *[(0, 0)] * 6), PLAIN)["best"]
    assert best["depth"] > 0
    assert best["tau"] == pytest.approx(1 + best["depth"] / 2)


def test_tree_depth_counts_along_the_targets_path() -> None:
    short, deep = (
        chain(1, 3),
        chain(3, 3),
    )  # short: siblings 0, which the target took and which has no child, and 1, the parent of 2
    short.nodes.parents, short.nodes.depth = [-1, -1, 1], [1, 1, 2]
    short.nodes.status, short.path = [ACCEPTED, DISCARDED, DISCARDED], [0]
    found = whatif.predict_tau([short, deep])
    assert found["rates"] == [1.0, 1.0, 1.0]
    assert found["tau_by_position"] == found["tau_iid"] == metrics.tau([short, deep]) == 3.0
    ended = chain(3, 3)
    ended.emitted = ended.emitted[:2]  # the second draft token was the end of the text
    assert whatif.predict_tau([ended])["tau_by_position"] == metrics.tau([ended]) == 2.0
    rejected = whatif.predict_tau([chain(1, 3)])
    assert rejected["tau_iid"] == pytest.approx(theory.expected_tau(1 / 2, 3)), (
        "nodes that were not reached were offered"
    )


def test_sampled_siblings_stay_under_the_transport_bound() -> None:
    rounds = []
    for kept in (True, False):
        r = chain(int(kept), 1, params={"temperature": 1.0})
        r.top_p, r.top_q = [TopTokens([1, 2], ["", ""], [0.5, 0.5])] * 2, [TopTokens([1, 2], ["", ""], [0.9, 0.1])] * 2
        rounds.append(r)
    assert whatif.compare_with_transport_bound(rounds) == [
        {"siblings": 1, "places": 2, "accepted": 0.5, "bound": pytest.approx(0.6), "exact": 1.0}
    ]
    assert whatif.compare_with_transport_bound(RUN.rounds) == []


def test_every_definition_of_acceptance_from_one_trace() -> None:
    """12 accepted, 16 tested, 22 drafted in six drafts, at most 4 of them in one; the seventh round has no draft."""
    trace = run((4, 4), (1, 4), (0, 4), (3, 4), (2, 4), (2, 2), (0, 0))
    found = {(d.user, d.name): d for d in acceptance.definitions(trace.rounds, {RATIO.name: RATIO})}
    value = lambda *key: (found[key].part, found[key].whole)  # noqa: E731
    assert value("workbench", "acceptance rate") == (12, 16)
    assert value("workbench", "draft utilisation") == value("vLLM", "draft acceptance rate") == (12, 22)
    assert value("llama.cpp", "draft acceptance rate") == (12, 22)
    assert value("SGLang", "spec_accept_rate") == (12, 28)  # 7 passes of the configured 4
    assert value("workbench", "τ") == value("SGLang", "spec_accept_length") == (19, 7)
    assert value("Spec-Bench", "#Mean accepted tokens") == (19, 7)
    assert found["vLLM", "mean acceptance length"].value == found["llama.cpp", "mean acceptance length"].value == 3.0
    assert found["vLLM", "per-position acceptance rate"].values == pytest.approx((5 / 6, 4 / 6, 2 / 6, 1 / 6))
    assert found["workbench", "conditional acceptance by position"].values == pytest.approx(
        (5 / 6, 4 / 5, 2 / 3, 1 / 2)
    )
    assert found["Leviathan et al.", "α"].value == 0.5
    assert all(d.source for d in found.values())


def alpha(*tested: tuple[str | None, float]) -> acceptance.Definition:
    """Return α for one sibling after the other, each verified by the rule of that name with that probability."""
    r = chain(len(tested), len(tested))
    r.nodes.rule, r.nodes.accept = [name for name, _ in tested], [accept for _, accept in tested]
    rules = {rule.name: rule for rule in (GREEDY, RATIO, RESIDUAL, POINT, POINT_RESIDUAL, TYPICAL)}
    return next(d for d in acceptance.definitions([r], rules) if d.name == "α")


def test_alpha_is_the_mean_over_drafts_tested_against_the_whole_distribution() -> None:
    """A later sibling's probability is conditional on its elders; a threshold has none; old traces record no rule."""
    drawn = alpha(("ratio", 0.8), ("ratio", 0.4), ("residual", 0.1), ("point", 0.3))
    assert (drawn.value, drawn.whole) == (pytest.approx(0.5), 3)
    assert "Excludes 1 later siblings" in drawn.note
    assert alpha(("greedy", 1.0), ("greedy", 0.0)).value == 0.5
    typical = alpha(("typical", 1.0), ("typical", 0.0))
    assert (typical.value, typical.whole) == (None, 0)
    assert "Excludes tests by the rules typical acceptance" in typical.note
    unsaid = alpha((None, 0.5), ("point-residual", 0.5))
    assert unsaid.value is None
    assert "Excludes 1 tested drafts whose acceptance rule is not recorded" in unsaid.note


@pytest.mark.parametrize("name", recorded_runs.names())
def test_every_recording_is_analysed_into_plain_json(name: str) -> None:
    trace, plain = recorded_runs.trace(name), recorded_runs.trace("autoregressive")
    others = [plain] if trace.header.prompt_tokens == plain.header.prompt_tokens else []
    found = whatif.analyse(trace, others)
    assert set(json.loads(json.dumps(found))) == set(found)
    assert all(isinstance(rank, str) for entry in found["rescues"] for rank in entry["ranks"])  # as Gradio's JSON
    assert found["words"]
    if found["lengths"]:
        assert found["lengths"]["oracle"]["relative"] >= 0.99
        # The formula assumes that depth and acceptance are independent. Drafts by confidence or counts are deep where
        # their tokens are accepted, so that the formula deviates as much as in these recordings.
        rel = {"eagle-2": 0.1, "mtp": 0.1, "suffix": 0.2}.get(trace.header.method, 0.05)
        assert found["theory"]["tau_by_position"] == pytest.approx(found["theory"]["tau"], rel=rel)
