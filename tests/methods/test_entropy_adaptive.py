"""Entropy Adaptive Decoding: the writing model of each token, the exact end of the threshold, the error otherwise."""

from __future__ import annotations

import itertools
import math
from collections import deque
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
from workbench.methods.verifiers.entropy_adaptive import EntropyAdaptive, EntropyState, GeneratorState, bits
from workbench.trace.events import Trace
from workbench.trace.metrics import DISTRIBUTION_ERROR
from workbench.trace.nodes import ACCEPTED

from .test_rules import check_formulas

PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]
SAMPLED = SamplingParams(temperature=0.9)


@pytest.fixture(scope="module")
def small() -> Models:
    """Six tokens, so that the recorded most likely tokens are the whole distribution."""
    return model_helpers.make_small_models(6)


def run(models: Models, sampling: SamplingParams = SAMPLED, n: int = 60, seed: int = 0, **params: Any) -> Trace:
    method = registry.get("draft-model").with_params(**{"verifier": "entropy-adaptive", "depth": 4} | params)
    return Engine(models).generate(Request(PROMPT, method, sampling, n, seed=seed, stop_at_eos=False))


def writers(trace: Trace) -> list[bool]:
    """Return for each emitted token whether the small model wrote it, by the paper's algorithm."""
    found: list[bool] = []
    params = trace.rounds[0].params
    window: deque[float] = deque(maxlen=params["entropy_window"])
    small, since = False, params["least_run"]
    for r in trace.rounds:
        for place, token in enumerate(r.emitted):  # a chain: distributions at the root and after each draft token
            found.append(small and token.node is not None)
            if small and token.node is None:
                continue  # the target ends the small model's draft; the writing model stays the same
            probs = r.top_q[place] if small else r.top_p[place]
            assert probs is not None
            window.append(-math.fsum(p * math.log2(p) for p in probs.prob if p > 0))
            since += 1
            is_low = sum(window) / len(window) < params["mean_entropy"]
            if is_low is not small and since >= params["least_run"]:
                small, since = is_low, 0
    return found


@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams()], ids=["sampled", "greedy"])
@pytest.mark.parametrize(("window", "least"), [(1, 1), (3, 2), (5, 5)])
def test_writing_model_switches_as_in_the_papers_algorithm(
    sampling: SamplingParams, window: int, least: int, small: Models
) -> None:
    seen: set[bool] = set()
    for seed in range(4) if sampling is SAMPLED else range(1):
        trace = run(
            small,
            sampling,
            seed=seed,
            mean_entropy=1.6 if sampling is SAMPLED else 1.9,
            entropy_window=window,
            least_run=least,
        )
        tokens = [(r, token) for r in trace.rounds for token in r.emitted]
        rules = ["" if token.node is None else r.nodes.rule[token.node] for r, token in tokens]
        assert [rule == "small-model-writes" for rule in rules] == writers(trace)
        seen |= set(writers(trace))
        assert check_formulas(trace) > 0
    assert seen == {True, False}


def test_runs_have_the_minimum_length() -> None:
    rule = EntropyAdaptive(mean_entropy=1.0, entropy_window=1, least_run=3)
    pen, runs = GeneratorState(False, 3), []
    for h in (0.0, 2.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0):
        pen = pen.after_token(h, rule)
        runs.append(pen.is_draft_model)
    lengths = [len(list(same)) for _, same in itertools.groupby(runs)]
    assert runs[0], "the target hands over after its first token"
    assert min(lengths[:-1]) >= 3
    assert len(lengths) > 2


def test_golden_entropies() -> None:
    distributions = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    assert bits(distributions).tolist() == pytest.approx([1.6477, 2.0], abs=1e-4)


@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams()], ids=["sampled", "greedy"])
def test_threshold_0_is_exact_and_at_the_maximum_the_small_model_writes(
    sampling: SamplingParams, small: Models
) -> None:
    none = run(small, sampling, mean_entropy=0.0)
    assert none.token_ids == run(small, sampling, verifier="lossless").token_ids
    assert all(r.signals.get(DISTRIBUTION_ERROR, 0.0) == 0 for r in none.rounds)
    every = run(small, sampling, mean_entropy=16.0)
    for r in (r for r in every.rounds[1:] if r.nodes.tokens):
        assert set(r.nodes.rule) == {"small-model-writes"}
        assert set(r.nodes.status) == {ACCEPTED}, "independent of the target"


def test_distribution_error_is_the_tv_distance_of_the_small_model(small: Models) -> None:
    trace = run(small, mean_entropy=16.0)
    for r in (r for r in trace.rounds[1:] if r.nodes.tokens):
        apart = 0.0
        for place in range(len(r.nodes.tokens)):
            drawn = r.top_q[place]
            assert drawn is not None
            p, q = (dict(zip(top.tokens, top.prob, strict=True)) for top in (r.top_p[place], drawn))
            apart += sum(abs(p[t] - q[t]) for t in p) / 2
        assert r.signals[DISTRIBUTION_ERROR] == pytest.approx(apart, rel=1e-6)
        assert apart > 0.01
    greedy = run(small, SamplingParams(), mean_entropy=16.0)
    for r in (r for r in greedy.rounds[1:] if r.nodes.tokens):
        best = [r.top_p[parent + 1].tokens[0] for parent in r.nodes.parents]
        assert r.signals[DISTRIBUTION_ERROR] == sum(b != t for b, t in zip(best, r.nodes.tokens, strict=True))


def test_it_is_approximate_and_greedy_text_may_differ(small: Models) -> None:
    method = registry.get("draft-model").with_params(verifier="entropy-adaptive")
    assert method.promise is Promise.APPROXIMATE
    assert not method.verifier.keeps_greedy
    texts = [run(small, SamplingParams(), mean_entropy=x).token_ids for x in (0.0, 16.0)]
    assert texts[0] != texts[1]


def test_trees_are_verified_exactly(small: Models) -> None:
    trace = run(small, mean_entropy=16.0, grower="specinfer")
    assert "small-model-writes" not in trace.header.rules
    assert all(r.signals[DISTRIBUTION_ERROR] == 0 for r in trace.rounds if DISTRIBUTION_ERROR in r.signals)


def test_draft_models_cache_equals_a_clean_prefill(small: Models) -> None:
    """The small model continues from its own text; tokens that the target wrote in the same round are in its cache."""
    engine = Engine(small)
    method = registry.get("draft-model").with_params(verifier="entropy-adaptive", mean_entropy=16.0, depth=4)
    row = engine.submit(Request(PROMPT, method, SAMPLED, 40, stop_at_eos=False))
    while row.trace is None or len(row.trace.rounds) < 5:
        engine.step()
    with torch.inference_mode():
        clean = small.target.model(torch.tensor([row.committed])).logits[0, -1].softmax(-1)
    row.change(params={"verifier": "lossless"}, sampling=SamplingParams(temperature=1.0))
    engine.step()
    assert row.trace is not None
    top = row.trace.rounds[-1].top_p[0]
    assert [float(clean[t]) for t in top.tokens] == pytest.approx(top.prob, abs=1e-9)
    row.cancel()
    while not engine.is_idle:
        engine.step()


def test_forbidden_token_is_rejected_whichever_model_writes() -> None:
    """A drafter without allowed tokens under a grammar may propose any token: the target decides."""
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [0.5, 0.0, 0.0]], dtype=torch.float64)
    rule = EntropyAdaptive(mean_entropy=16.0)
    for token, kept in ((1, 0.0), (0, 1.0)):
        own = torch.full((1, 3), 1 / 3, dtype=torch.float64)
        tree = replace(DraftTree.chain([token]), sampling=Sampling.CHAIN, q=own)
        state = EntropyState(GeneratorState(is_draft_model=True, n_tokens=9))
        v = Verification(tree, logits, logits.softmax(1), SamplingParams(), None, state=state)
        assert float(rule.rule(v).accept[0]) == kept
