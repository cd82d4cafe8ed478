"""Verifier `as-drafted`: which drafts it accepts untested, the distribution error, and its approximate promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.promise import Promise
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.method_info import MethodInfo
from workbench.methods.verifiers.as_drafted import AsDrafted
from workbench.trace.events import Trace
from workbench.trace.metrics import DISTRIBUTION_ERROR
from workbench.trace.nodes import ACCEPTED

from .test_rules import check_formulas

PARTS = ("early-exit", "unified-skip", "swift", "duo", "lexical-unit")
"""Methods whose drafter is a part of the target and whose paper describes an own decoder."""
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
"""p and q of the verifier card's example."""


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """Six tokens and three layers, so that the recorded most likely tokens are the whole distribution."""
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


def test_golden_distribution_errors() -> None:
    """(q − p)₊ = (0, 0.1, 0.15, 0.15): over all tokens 0.4 = TV, over those with q > 0.25 the first two."""
    for sure, expected_error, accept_probs in (
        (0.0, 0.4, (1, 1, 1, 1)),
        (0.25, 0.25, (1, 1, 1, 0.25)),
        (1.0, 0.0, (1, 0.75, 0.5, 0.25)),
    ):
        decisions = [AsDrafted(sure).rule(verification(token, SAMPLED)) for token in range(4)]
        assert [float(r.accept[0]) for r in decisions] == pytest.approx(accept_probs)
        assert all(
            r.distribution_error is not None and float(r.distribution_error[0]) == pytest.approx(expected_error)
            for r in decisions
        ), sure
    greedy = [AsDrafted(0.25).rule(verification(token, SamplingParams())) for token in range(4)]
    assert [float(r.accept[0]) for r in greedy] == [1, 1, 1, 0], (
        "accepts the target's greedy token and tokens with q > β"
    )
    assert [float(r.distribution_error[0]) for r in greedy if r.distribution_error is not None] == [0, 1, 1, 0]


@pytest.mark.parametrize("sure", [0.0, 0.25, 1.0])
def test_distribution_error_is_the_tv_distance_of_the_output(sure: float) -> None:
    """Sum the emitted distribution of one position over all drafts; after a rejection it is (p − q)₊."""
    out = torch.zeros_like(P)
    residual = (P - Q).clamp(min=0)
    for token in range(4):
        accept = float(AsDrafted(sure).rule(verification(token, SAMPLED)).accept[0])
        out[token] += Q[token] * accept
        out += Q[token] * (1 - accept) * residual / residual.sum()
    error = AsDrafted(sure).rule(verification(0, SAMPLED)).distribution_error
    assert error is not None
    assert float((out - P).abs().sum() / 2) == pytest.approx(float(error[0]), abs=1e-12)


def test_forbidden_token_is_rejected_without_distribution_error() -> None:
    masked = P.clone().index_fill_(0, torch.tensor(3), 0.0)
    decision = AsDrafted().rule(verification(3, SAMPLED, masked / masked.sum()))
    assert float(decision.accept[0]) == 0
    assert decision.distribution_error is not None
    assert float(decision.distribution_error[0]) == pytest.approx(
        float((Q - masked / masked.sum()).clamp(min=0)[:3].sum())
    )


@BOTH
@pytest.mark.parametrize("name", PARTS)
def test_untested_drafts_are_accepted_and_the_error_is_recorded(
    name: str, sampling: SamplingParams, models: Models
) -> None:
    """β = 0 accepts every draft and sums the error over recorded distributions; β = 1 gives the exact rule's text."""
    trace, drafted = run(name, models, sampling), 0
    for r in trace.rounds[:-1]:
        assert set(r.nodes.status) <= {ACCEPTED}, "accepted independently of the target"
        assert set(r.nodes.rule) <= {"as-drafted"}
        error = 0.0
        for position, token in enumerate(r.nodes.tokens):
            top_q = r.top_q[position]
            assert top_q is not None
            p, q = (dict(zip(top.tokens, top.prob, strict=True)) for top in (r.top_p[position], top_q))
            error += (
                sum(abs(p[t] - q[t]) for t in p) / 2 if not sampling.greedy else r.top_p[position].tokens[0] != token
            )
        drafted += len(r.nodes.tokens)
        if r.nodes.tokens:
            assert r.signals[DISTRIBUTION_ERROR] == pytest.approx(error, rel=1e-4, abs=1e-6)
    assert drafted > 10
    assert sum(r.signals.get(DISTRIBUTION_ERROR, 0.0) for r in trace.rounds) > 0
    assert check_formulas(trace) > 0
    exact = run(name, models, sampling, verifier="lossless")
    assert trace.token_ids != exact.token_ids
    free = run(name, models, sampling, sure=1.0)
    assert free.token_ids == exact.token_ids
    assert all(r.signals.get(DISTRIBUTION_ERROR, 0.0) == 0 for r in free.rounds)


@pytest.mark.parametrize("name", PARTS)
def test_as_drafted_is_never_the_default_and_is_declared_approximate(name: str) -> None:
    method = registry.get(name)
    assert method.verifier.name == "lossless"
    assert method.promise is Promise.EXACT
    assert method.promises == {"lossless": Promise.EXACT, "as-drafted": Promise.APPROXIMATE}
    configured = method.with_params(verifier="as-drafted")
    assert configured.promise is Promise.APPROXIMATE
    assert configured.unsound_reason
    assert not configured.verifier.keeps_greedy
    assert MethodInfo.of(method).promises["as-drafted"] == "approximate"
    for policy in method.params["policy"].choices:  # also with the oracle policy
        assert method.with_params(verifier="as-drafted", policy=policy).promise is Promise.APPROXIMATE


def test_lexical_unit_accepts_confident_drafts_untested(models: Models) -> None:
    """With β between 0 and 1, exactly the drafts whose own probability exceeds β are accepted untested."""
    seen = set[str]()
    for r in run("lexical-unit", models, SAMPLED, 60, sure=0.3).rounds:
        for position, (token, rule) in enumerate(zip(r.nodes.tokens, r.nodes.rule, strict=True)):
            top_q = r.top_q[position]
            assert top_q is not None
            draft_prob = dict(zip(top_q.tokens, top_q.prob, strict=True))[token]
            if rule is not None:  # the draft was tested
                assert (rule == "as-drafted") is (draft_prob > 0.3)
                seen.add(rule)
    assert len(seen) == 2
    assert registry.get("lexical-unit").params["sure"].default == 0.9


@pytest.mark.parametrize("name", PARTS)
def test_differences_explain_that_the_target_reads_every_draft(name: str) -> None:
    """The approximate decoder does not reach the paper's speed here; the method's page must give the reason."""
    sentences = [text for text in registry.get(name).differences if "reads every draft" in text]
    assert len(sentences) == 1
    assert "deviation" in sentences[0] or "total variation distance" in sentences[0]


def test_only_these_methods_offer_as_drafted() -> None:
    """A new method that offers this verifier must also state the difference tested above."""
    offers = {m.name for m in model_helpers.text_methods() if any(isinstance(v, AsDrafted) for v in m.other_verifiers)}
    assert offers == set(PARTS)
