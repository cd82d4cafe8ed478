"""As drafted: what is kept unseen, what that costs, and that nobody is promised more than an approximation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.promise import Promise
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.feedback import Verification
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.method_info import MethodInfo
from workbench.methods.verifiers.as_drafted import AsDrafted
from workbench.trace.events import Trace
from workbench.trace.metrics import DISTRIBUTION_ERROR
from workbench.trace.nodes import ACCEPTED

from .test_rules import check_formulas

PARTS = ("early-exit", "unified-skip", "swift", "duo", "lexical-unit")
"""Methods whose drafter is a part of the target, and in their papers a decoder of its own."""
WEAK: dict[str, dict[str, Any]] = {
    "early-exit": {"exit_layer": 1},
    "unified-skip": {"speedup": 2.0},
    "swift": {"ratio": 0.6, "window": 4, "policy": "fixed"},
    "duo": {"share": 0.2},
    "lexical-unit": {"places": 2},
}
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]
SAMPLED = SamplingParams(temperature=0.9)
BOTH = pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams()], ids=["sampled", "greedy"])
P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
"""The golden p and q of the cards."""


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """Six tokens, three layers: the recorded likeliest tokens are the whole law."""
    return model_helpers.make_small_models(6, noise=None, device=device, num_hidden_layers=4, intermediate_size=32)


def run(name: str, models: Models, sampling: SamplingParams, n: int = 24, seed: int = 0, **params: Any) -> Trace:
    method = registry.get(name).with_params(**{"depth": 2, "verifier": "as-drafted", "sure": 0.0} | WEAK[name] | params)
    trace = Engine(models).generate(Request(PROMPT, method, sampling, n, seed=seed, stop_at_eos=False))
    assert trace.footer.error == ""
    return trace


def verification(token: int, sampling: SamplingParams, p: torch.Tensor = P) -> Verification:
    tree = replace(
        DraftTree.chain([token]),
        sampling=Sampling.CHAIN,
        q=Q[None],
        child_q_rows=torch.tensor([0, -1]),
        logq=Q[token].log()[None],
    )
    u = None if sampling.greedy else torch.tensor([0.5, 0.5], dtype=torch.float64)
    return Verification(tree, p.log().expand(2, -1), p.expand(2, -1), sampling, u)


def test_golden_price() -> None:
    """(q − p)₊ = (0, 0.1, 0.15, 0.15): of all tokens 0.4 = TV, of those with q > 0.25 the first two."""
    for sure, price, kept in (
        (0.0, 0.4, (1, 1, 1, 1)),
        (0.25, 0.25, (1, 1, 1, 0.25)),
        (1.0, 0.0, (1, 0.75, 0.5, 0.25)),
    ):
        rulings = [AsDrafted(sure).rule(verification(token, SAMPLED)) for token in range(4)]
        assert [float(r.accept[0]) for r in rulings] == pytest.approx(kept)
        assert all(
            r.distribution_error is not None and float(r.distribution_error[0]) == pytest.approx(price) for r in rulings
        ), sure
    greedy = [AsDrafted(0.25).rule(verification(token, SamplingParams())) for token in range(4)]
    assert [float(r.accept[0]) for r in greedy] == [1, 1, 1, 0], "its own likeliest, and those that it is sure of"
    assert [float(r.distribution_error[0]) for r in greedy if r.distribution_error is not None] == [0, 1, 1, 0]


@pytest.mark.parametrize("sure", [0.0, 0.25, 1.0])
def test_the_price_is_how_far_the_law_of_a_place_is_from_the_targets(sure: float) -> None:
    """Enumerated: what a place emits over all drafts, after a rejection from (p − q)₊."""
    out = torch.zeros_like(P)
    left = (P - Q).clamp(min=0)
    for token in range(4):
        accept = float(AsDrafted(sure).rule(verification(token, SAMPLED)).accept[0])
        out[token] += Q[token] * accept
        out += Q[token] * (1 - accept) * left / left.sum()
    paid = AsDrafted(sure).rule(verification(0, SAMPLED)).distribution_error
    assert paid is not None
    assert float((out - P).abs().sum() / 2) == pytest.approx(float(paid[0]), abs=1e-12)


def test_a_token_that_a_processor_forbids_is_not_kept_and_not_paid_for() -> None:
    forbids = P.clone().index_fill_(0, torch.tensor(3), 0.0)
    ruling = AsDrafted().rule(verification(3, SAMPLED, forbids / forbids.sum()))
    assert float(ruling.accept[0]) == 0
    assert ruling.distribution_error is not None
    assert float(ruling.distribution_error[0]) == pytest.approx(
        float((Q - forbids / forbids.sum()).clamp(min=0)[:3].sum())
    )


@BOTH
@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_target_writes_and_its_price_is_told(name: str, sampling: SamplingParams, models: Models) -> None:
    """β = 0: every draft is kept. The price is summed from the recorded laws; β = 1 is the exact rule's text."""
    trace, drafted = run(name, models, sampling), 0
    for r in trace.rounds[:-1]:
        assert set(r.nodes.status) <= {ACCEPTED}, "whatever the target says"
        assert set(r.nodes.rule) <= {"as-drafted"}
        apart = 0.0
        for place, token in enumerate(r.nodes.tokens):
            drawn = r.top_q[place]
            assert drawn is not None
            p, q = (dict(zip(top.tokens, top.prob, strict=True)) for top in (r.top_p[place], drawn))
            apart += sum(abs(p[t] - q[t]) for t in p) / 2 if not sampling.greedy else r.top_p[place].tokens[0] != token
        drafted += len(r.nodes.tokens)
        if r.nodes.tokens:
            assert r.signals[DISTRIBUTION_ERROR] == pytest.approx(apart, rel=1e-4, abs=1e-6)
    assert drafted > 10
    assert sum(r.signals.get(DISTRIBUTION_ERROR, 0.0) for r in trace.rounds) > 0
    assert check_formulas(trace) > 0
    exact = run(name, models, sampling, verifier="lossless")
    assert trace.token_ids != exact.token_ids
    free = run(name, models, sampling, sure=1.0)
    assert free.token_ids == exact.token_ids
    assert all(r.signals.get(DISTRIBUTION_ERROR, 0.0) == 0 for r in free.rounds)


@pytest.mark.parametrize("name", PARTS)
def test_it_is_nobodys_default_and_promises_no_more_than_an_approximation(name: str) -> None:
    method = registry.get(name)
    assert method.verifier.name == "lossless"
    assert method.promise is Promise.EXACT
    assert method.promises == {"lossless": Promise.EXACT, "as-drafted": Promise.APPROXIMATE}
    made = method.with_params(verifier="as-drafted")
    assert made.promise is Promise.APPROXIMATE
    assert made.unsound_reason
    assert not made.verifier.keeps_greedy
    assert MethodInfo.of(method).promises["as-drafted"] == "approximate"
    for policy in method.params["policy"].choices:  # one that knows everything makes it no better
        assert method.with_params(verifier="as-drafted", policy=policy).promise is Promise.APPROXIMATE


def test_a_lexical_unit_goes_on_while_the_target_was_sure(models: Models) -> None:
    """β between: what is kept unseen are just the drafts whose own chance is above it."""
    seen = set[str]()
    for r in run("lexical-unit", models, SAMPLED, 60, sure=0.3).rounds:
        for place, (token, rule) in enumerate(zip(r.nodes.tokens, r.nodes.rule, strict=True)):
            drawn = r.top_q[place]
            assert drawn is not None
            own = dict(zip(drawn.tokens, drawn.prob, strict=True))[token]
            if rule is not None:  # it was tested
                assert (rule == "as-drafted") is (own > 0.3)
                seen.add(rule)
    assert len(seen) == 2
    assert registry.get("lexical-unit").params["sure"].default == 0.9


@pytest.mark.parametrize("name", PARTS)
def test_the_page_says_why_the_target_reads_on(name: str) -> None:
    """Who tries the approximate decoder sees no speed of the paper's: the method's page tells before."""
    said = [text for text in registry.get(name).differences if "reads every draft" in text]
    assert len(said) == 1
    assert "deviation" in said[0]


def test_no_other_method_offers_it() -> None:
    """A new one that does has to say it, too."""
    offers = {m.name for m in model_helpers.text_methods() if any(isinstance(v, AsDrafted) for v in m.other_verifiers)}
    assert offers == set(PARTS)
