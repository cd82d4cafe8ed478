"""Events to JSON and back; figures follow their definitions."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import model_helpers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.bench.sample import sample_of
from workbench.core.rules import RATIO
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import SCHEMA_VERSION, Footer, Header, Round, Trace
from workbench.trace.images import PromptImage
from workbench.trace.nodes import Nodes, TopTokens
from workbench.trace.tokens import EmittedToken


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "sampled"])
def trace(request: pytest.FixtureRequest, device: str) -> Trace:
    """Record a real run with a drafter of medium quality and changes in its middle."""
    engine = Engine(model_helpers.make_models("llama", noise=0.15, device=device))
    row = engine.submit(
        Request(
            model_helpers.repeating_prompt(12), registry.get("draft-tree-sampled"), SamplingParams(request.param), 40
        )
    )
    while not engine.is_idle:
        engine.step()
        if row.trace is not None and len(row.trace.rounds) == 3:
            row.change(registry.get("draft-model"), {"depth": 2})
    assert row.trace is not None
    return row.trace


def test_trace_round_trip_through_json(trace: Trace) -> None:
    text = json.dumps(trace.to_wire(), allow_nan=False)
    back = Trace.from_wire(json.loads(text))
    assert back.to_wire() == json.loads(text)
    assert back.rounds == trace.rounds
    assert back.footer == trace.footer
    assert metrics.summary(back) == metrics.summary(trace)


def test_newer_schema_is_refused_with_a_reason(trace: Trace) -> None:
    wire = trace.to_wire()
    wire["header"] = wire["header"] | {"schema": SCHEMA_VERSION + 1}
    with pytest.raises(ValueError, match="Update the workbench"):
        Trace.from_wire(wire)


def test_a_headers_wire_form_shares_the_prompt_and_is_otherwise_a_copy() -> None:
    """Viewers poll it many times per second, and a prompt has thousands of tokens."""
    image = PromptImage("data:,", 2, 2, 1, 1, 0, 1)
    header = Header("t", "m", {"depth": 4}, "exact", 0, "ab", [1, 2], ["a", "b"], 8, "float64", "cpu")
    header.pictures, header.rules = [image], {RATIO.name: RATIO}
    wire = header.to_wire()
    assert wire == dataclasses.asdict(header)
    assert wire["prompt_tokens"] is header.prompt_tokens
    assert wire["prompt_text"] is header.prompt_text
    header.params["depth"], header.promise = 5, "approximate"
    assert (wire["params"], wire["promise"]) == ({"depth": 4}, "exact")
    assert Header.from_wire(json.loads(json.dumps(wire))).rules == header.rules


def test_real_trace_is_consistent(trace: Trace) -> None:
    """Columns, path and emitted tokens of every round agree."""
    committed = list(trace.header.prompt_tokens)
    text = ""
    for r in trace.rounds:
        nodes = r.nodes
        n = len(nodes)
        for column in (nodes.parents, nodes.depth, nodes.position, nodes.text, nodes.p, nodes.q, nodes.accept, nodes.u,
                       nodes.status, nodes.source):  # fmt: skip
            assert len(column) == n
        assert [i for i, s in enumerate(nodes.status) if s == "accepted"] == sorted(r.path)
        assert all(nodes.parents[b] == a for a, b in zip([-1, *r.path], r.path, strict=False))
        assert [e.node for e in r.emitted if e.node is not None] == r.path
        assert [e.kind for e in r.emitted if e.node is None] == ([r.bonus_kind] if r.bonus_kind else [])
        assert [e.position for e in r.emitted] == list(range(len(committed), len(committed) + len(r.emitted)))
        assert all(nodes.position[i] == len(committed) - 1 + nodes.depth[i] for i in range(n))
        for e in r.emitted:
            assert e.start == len(text)
            text += e.text
            assert e.end == len(text)
            assert e.token == (r.bonus if e.node is None else nodes.tokens[e.node])
        for i in range(n):
            tested = nodes.status[i] != "discarded"
            assert (nodes.accept[i] is not None) == tested
            u, chance = nodes.u[i], nodes.accept[i]
            if u is not None:
                assert tested
                assert chance is not None
                assert (u < chance) == (nodes.status[i] == "accepted")
        assert len(r.top_p) == len(r.entropy) == n + 1
        assert r.bonus_kind != "corrected" or "rejected" in nodes.status
        assert r.draft_s >= 0
        assert r.verify_s > 0
        assert r.seconds >= r.overhead_s >= 0
        assert r.target_forwards == 1
        committed += [e.token for e in r.emitted]
    assert text == trace.text
    assert trace.token_ids == committed[len(trace.header.prompt_tokens) :]
    assert len(trace.token_ids) == 40
    if trace.header.params["temperature"] == 0:
        for r in trace.rounds:  # the emitted token is the target's most likely one
            assert all(
                e.token == r.top_p[0 if i == 0 else r.path[i - 1] + 1].tokens[0] for i, e in enumerate(r.emitted)
            )


def test_probabilities_in_the_trace_are_the_targets(trace: Trace, device: str) -> None:
    """Compare p of emitted tokens with plain forward passes over the text."""
    import torch

    model = model_helpers.family("llama", device=device)
    whole = [*trace.header.prompt_tokens, *trace.token_ids]
    with torch.inference_mode():
        p = model(torch.tensor([whole], device=device), use_cache=False).logits[0].softmax(-1)
    for r in trace.rounds:
        for e in r.emitted:
            assert e.p == pytest.approx(float(p[e.position - 1, e.token]), abs=1e-9)


# -- figures ----------------------------------------------------------------------------------------------------------


def a_round(status: list[str], path: list[int], depth: list[int], n_emitted: int, index: int = 0) -> Round:
    """Return a round with the fields that figures read."""
    n = len(status)
    nodes = Nodes(
        tokens=[1] * n, parents=[-1] * n, depth=depth, position=depth, text=[""] * n, p=[0.5] * n, q=[None] * n,
        accept=[None] * n, u=[None] * n, status=status, source=[""] * n,
    )  # fmt: skip
    emitted = [EmittedToken(1, "a", i, i + 1, "accepted", None, i, 0.5) for i in range(n_emitted)]
    parts = {"draft_s": 0.1, "verify_s": 0.2, "waited_s": 0.1, "overhead_s": 0.1}
    return Round(index, "m", {}, nodes, path, 1, "bonus", emitted, started_s=0.6 * index + 0.2, seconds=0.5, **parts)


A, R, D = "accepted", "rejected", "discarded"
ROUNDS = [
    a_round([A, A, R, D], [0, 1], [1, 2, 3, 4], 3),  # a chain of four, two accepted
    a_round([R, A, R, R], [1], [1, 1, 2, 2], 2, 1),  # two siblings, then two
    a_round([], [], [], 1, 2),
]
"""The rounds begin 0.2 s after the end of prefill, 0.1 s apart; the last one ends after 1.9 s."""


def test_figures_by_hand() -> None:
    assert metrics.tau(ROUNDS) == pytest.approx(6 / 3)
    assert metrics.acceptance_rate(ROUNDS) == pytest.approx(3 / 7)
    assert metrics.draft_utilisation(ROUNDS) == pytest.approx(3 / 8)
    assert metrics.acceptance_by_depth(ROUNDS) == [(1, 2, 2), (2, 2, 1), (3, 1, 0)]
    assert metrics.accepted_histogram(ROUNDS) == {0: 1, 1: 1, 2: 1}
    header = Header("t", "m", {}, "exact", 0, "", [], [], 8, "float64", "cpu")
    found = metrics.summary(Trace(header, ROUNDS))
    assert found["seconds"] == pytest.approx(1.9)
    assert found["tokens_per_second"] == pytest.approx(6 / 1.9), (
        "by its definition; over the rounds only it would be 6 / 1.5"
    )
    assert found["overhead_seconds"] == pytest.approx(1.9 - 3 * 0.4), "time between rounds included"
    assert found["overhead_share"] == pytest.approx(0.7 / 1.9)
    assert found["overhead_ms_per_round"] == pytest.approx(700 / 3)
    sample = sample_of(Trace(header, ROUNDS, Footer("length", "", seconds=2.5)), "c", 0, 0, 3.0)
    assert sample.decode_rate == found["tokens_per_second"], "benchmark, comparison and page use the same denominator"
    assert sample.figures["overhead_s"] == found["overhead_seconds"]
    assert found["conditional_acceptance"] == [1.0, 0.5, 0.0]


def test_empty_denominators_are_none() -> None:
    assert metrics.tau([]) is None
    assert metrics.acceptance_rate(ROUNDS[2:]) is None
    assert metrics.accepted_histogram([]) == {}


def test_every_figure_shown_has_a_definition() -> None:
    header = Header("t", "m", {}, "exact", 0, "", [], [], 8, "float64", "cpu")
    found = metrics.summary(Trace(header, ROUNDS))
    assert {"tau", "acceptance_rate", "draft_utilisation", "conditional_acceptance", "tokens_per_second",
            "overhead_share"} <= set(found) & set(metrics.DEFINITIONS)  # fmt: skip


json_values: Any = st.one_of(st.none(), st.integers(-5, 5), st.floats(0, 1), st.text(max_size=3))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([A, R, D]), max_size=6),
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=3), json_values),
)
def test_any_round_survives_the_wire(status: list[str], text: str, params: dict[str, Any]) -> None:
    r = a_round(status, [], [1] * len(status), 2)
    r.params, r.notes = params, [text]
    r.top_q, r.top_p = [None, TopTokens([1], [text], [0.5])], [TopTokens([2], [text], [1.0])]
    assert Round.from_wire(json.loads(json.dumps(r.to_wire()))) == r


# -- words about the image ---------------------------------------------------------------------------------------------


def a_caption(parts: list[tuple[str, str, float]], blind: list[float] | None = None) -> Trace:
    """Return a trace of one round from (text, kind, p) of its tokens, and the probabilities with a blank image."""
    made = a_round([], [], [], 0)
    made.emitted = [EmittedToken(i, text, 0, 0, kind, None, i, p) for i, (text, kind, p) in enumerate(parts)]
    header = Header("t", "m", {}, "exact", 0, "", [], [], 8, "float64", "cpu")
    return Trace(header, [made], attribution=None if blind is None else {"p_blind": blind})


CAPTION = [
    ("A", "accepted", 0.9), (" re", "corrected", 0.9), ("d", "accepted", 1.0), (" cir", "corrected", 0.7),
    ("cle.", "bonus", 0.9), (" Two", "accepted", 0.5), (" reds", "accepted", 0.5),
]  # fmt: skip
LEXICON = {"red": "colour", "circle": "shape", "two": "number"}


def test_token_has_the_kind_of_its_whole_word() -> None:
    kinds = metrics.word_kinds(a_caption(CAPTION), LEXICON)
    assert kinds == ["other", "colour", "colour", "shape", "shape", "number", "other"]
    assert metrics.acceptance_by_kind(a_caption(CAPTION), LEXICON) == {
        "colour": (2, 1), "shape": (1, 0), "number": (1, 1), "other": (2, 2),
    }  # fmt: skip


def test_grounded_and_other_words_are_counted_apart_and_bonus_tokens_nowhere() -> None:
    trace = a_caption(CAPTION, [0.9, 0.2, 0.9, 0.4, 0.0, 0.5])  # the last token was emitted after the explanation
    assert metrics.grounded(trace) == [False, True, False, True, True, False]
    found = metrics.summary(trace)
    assert found["grounded_acceptance"] == 0.0, "two positions were tested, both corrected; the bonus had no draft"
    assert found["language_acceptance"] == 1.0
    assert metrics.summary(a_caption(CAPTION))["grounded_acceptance"] is None, "no attribution was requested"


def test_plain_decoding_is_not_a_bonus_also_in_older_traces() -> None:
    emitted = EmittedToken(1, "a", 0, 1, "bonus", None, 0, 0.5)
    made = Round(0, "autoregressive", {}, Nodes(), [], 1, "bonus", [emitted])
    assert (made.bonus_kind, made.emitted[0].kind) == ("plain", "plain")
    old = made.to_wire() | {"bonus_kind": "bonus", "emitted": [made.to_wire()["emitted"][0] | {"kind": "bonus"}]}
    assert Round.from_wire(old) == made
