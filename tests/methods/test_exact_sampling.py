"""Exact methods sample from the target's joint distribution: goodness-of-fit tests with tiny vocabularies.

All seeds are fixed; a test of a correct method fails with probability below 1e-5. test_round_distributions.py sums
single rounds over all verification outcomes; here whole runs of the engine are tested.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, abc
from collections.abc import Callable, Iterator

import model_helpers
import numpy as np
import pytest
import torch

from workbench.bench.goodness import Fit, cdf_positions, chi_square, count_firsts, joint_distribution
from workbench.core.rejection import AcceptanceDecision, recursive_rejection
from workbench.core.sampling import SamplingParams, pick, to_probs
from workbench.core.tree import DraftTree
from workbench.decoders import ConfiguredMethod, Method, Promise
from workbench.decoders.draft_verify.parts import Verification
from workbench.engine import Engine, Models, Request, Sequence
from workbench.methods import registry
from workbench.methods.verifiers.lossless import Lossless

pytestmark = [pytest.mark.slow]
ALPHA = 1e-5
VOCABULARY = 6
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]
"""A prompt that repeats itself, so that methods that copy from the text have drafts."""
START = PROMPT[:1]
"""A prompt of one token for many short runs, to save prefill time."""

PLAIN = SamplingParams(temperature=1.0)
FILTERED = SamplingParams(temperature=0.8, top_k=4, top_p=0.9)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    """Return models with six tokens, a drafter of medium quality and untrained heads."""
    return model_helpers.make_small_models(VOCABULARY, device=device, heads=tmp_path_factory.mktemp("medusa"))


def test_tiny_models_have_suitable_distributions(models: Models) -> None:
    """Both distributions are far from uniform and differ, so that acceptance is neither near 0 nor near 1.

    The target's distribution also depends on the text; otherwise a rule that uses another node's one would pass.
    """
    ids = torch.tensor([PROMPT], device=models.target.device)
    assert models.drafter is not None
    with torch.inference_mode():
        p, q = (m.model(ids).logits[0].softmax(-1) for m in (models.target, models.drafter))
    overlap = float(torch.minimum(p, q).sum(-1).mean())
    entropy = float(torch.special.entr(p).sum(-1).mean())
    assert 0.4 < overlap < 0.8
    assert 0.6 < entropy < 1.7
    ids = torch.tensor([[*PROMPT, token] for token in range(VOCABULARY)], device=models.target.device)
    with torch.inference_mode():
        p = models.target.model(ids).logits[:, -1].softmax(-1)
    assert float((p[:, None] - p[None]).abs().sum(-1).mean()) / 2 > 0.3


def draw(
    models: Models,
    method: ConfiguredMethod,
    sampling: SamplingParams,
    n_tokens: int,
    runs: int,
    begin: int = 0,
    prompt: abc.Sequence[int] = START,
) -> list[list[int]]:
    """Return independent generations, run a hundred at a time, with the seeds `begin` to `runs` − 1.

    They have one token more than is tested, so that drafts are not cut.
    """
    found = list[list[int]]()
    for engine, rows in primed(models, method, sampling, n_tokens, range(begin, runs), prompt):
        while not engine.is_idle:
            engine.step()
        assert not any(row.error for row in rows), [row.error for row in rows if row.error][:1]
        found += [row.trace.token_ids for row in rows if row.trace]
    return found


def primed(
    models: Models,
    method: ConfiguredMethod,
    sampling: SamplingParams,
    n_tokens: int,
    seeds: range,
    prompt: abc.Sequence[int],
) -> Iterator[tuple[Engine, list[Sequence]]]:
    """Yield engines with up to a hundred prefilled sequences, which then start together in full batches."""
    engine = Engine(models, max_sequences=100, record=False)
    for first in seeds[::100]:
        rows = [
            engine.submit(Request(prompt, method, sampling, n_tokens + 1, seed, stop_at_eos=False))
            for seed in range(first, min(first + 100, seeds.stop))
        ]
        while engine._admit():  # a step's first part: whole steps would visit all sequences each time
            pass
        assert all(row.is_open for row in rows)
        yield engine, rows


def fit_of(models: Models, method: ConfiguredMethod, sampling: SamplingParams, n_tokens: int, runs: int) -> Fit:
    """Return the goodness of fit of sampled first tokens to their exact joint distribution."""
    exact = joint_distribution(models.target.model, START, n_tokens, lambda logits: to_probs(logits[None], sampling)[0])
    return chi_square(count_firsts(draw(models, method, sampling, n_tokens, runs), n_tokens), exact)


def setting(name: str) -> ConfiguredMethod:
    """Return a method with short drafts, so that three tokens cover all outcomes of their verification."""
    method = registry.get(name)
    return method.with_params(**method.testing.short)


EXACT = [m.name for m in model_helpers.text_methods() if m.promise in (Promise.EXACT, Promise.SIMULATION)]
END_TO_END = ("draft-model", "draft-tree", "draft-tree-sampled")
"""A sampled chain, a deterministic tree and a sampled tree; after verification all methods share the same code."""


@pytest.mark.parametrize("name", END_TO_END)
@pytest.mark.parametrize(
    ("sampling", "n_tokens", "runs"),
    [
        pytest.param(PLAIN, 2, 600, id="plain"),
        pytest.param(FILTERED, 3, 300, id="filtered", marks=pytest.mark.on_demand),  # see test_round_distributions.py
    ],
)
def test_sampled_tokens_follow_the_target(
    name: str, sampling: SamplingParams, n_tokens: int, runs: int, models: Models
) -> None:
    fit = fit_of(models, setting(name), sampling, n_tokens, runs)
    assert fit.fits(ALPHA), fit


# -- long runs ---------------------------------------------------------------------------------------------------------


def long_run_fits(
    models: Models, steps: abc.Sequence[ConfiguredMethod], sampling: SamplingParams, runs: int = 24, n: int = 50
) -> list[Fit]:
    """Return the goodness of fit of the tokens of long runs to their conditional distributions: singly, and in pairs.

    Args:
        models: target and drafter.
        steps: methods, one per round in turn.
        sampling: sampling parameters of all runs.
        runs: number of runs.
        n: tokens per run.
    """
    engine, rng, cells, pairs = Engine(models, max_sequences=runs, record=False), np.random.default_rng(0), [], []
    rows = [engine.submit(Request(PROMPT, steps[0], sampling, n, seed, stop_at_eos=False)) for seed in range(runs)]
    while not engine.is_idle:
        engine.step()
        for row in rows if len(steps) > 1 else ():
            step = steps[len(row.trace.rounds if row.trace else ()) % len(steps)]
            row.change(step.method, dict(step.values))
    for row in rows:
        assert row.error is None
        assert row.trace is not None
        assert {r.method for r in row.trace.rounds} == {step.name for step in steps[: len(row.trace.rounds)]}
        ids = torch.tensor([row.committed], device=models.target.device)
        with torch.inference_mode():
            logits = models.target.model(ids, use_cache=False).logits[0, len(PROMPT) - 1 : -1]
        p, tokens = to_probs(logits, sampling), ids[0, len(PROMPT) :]
        assert float(p.gather(1, tokens[:, None]).min()) > 0, "a token that the filters exclude was emitted"
        stand = cdf_positions(p, tokens, torch.from_numpy(rng.random(n)))
        cells += (stand * 16).long().tolist()
        pairs += ((stand[::2] * 4).long() * 4 + (stand[1::2] * 4).long()).tolist()
    return [chi_square(Counter(found), dict.fromkeys(range(16), 1 / 16)) for found in (cells, pairs)]


TEXTS = [n for n in EXACT if n not in ("msd", "specvlm")]
"""MSD and SpecVLM are left out: without an image they equal EagleVLM."""
LONG = ("draft-tree-sampled", "eagle", "lookahead", "block-diffusion")
"""Methods whose long runs are tested each time: two kinds of trees, drafts from the text, and a sampled chain."""


@pytest.mark.parametrize("name", model_helpers.mark_on_demand_unless(LONG, TEXTS))
def test_every_token_of_a_long_run_follows_its_distribution(name: str, models: Models) -> None:
    """Whole runs; single rounds of every method are tested in test_round_distributions.py."""
    for fit in long_run_fits(models, [setting(name)], PLAIN):
        assert fit.fits(ALPHA), fit


@pytest.mark.on_demand
@pytest.mark.parametrize("name", [m.name for m in model_helpers.representative_methods(map(setting, TEXTS))])
def test_every_token_of_a_long_filtered_run_follows_its_distribution(name: str, models: Models) -> None:
    """Filters change the target's distribution; test_round_distributions.py tests single rounds with them."""
    for fit in long_run_fits(models, [setting(name)], FILTERED):
        assert fit.fits(ALPHA), fit


@pytest.mark.parametrize("sampling", [PLAIN, FILTERED], ids=["plain", "filtered"])
def test_run_that_switches_methods_follows_the_target_distribution(sampling: SamplingParams, models: Models) -> None:
    """All methods in turn, one round each."""
    for fit in long_run_fits(models, [setting(name) for name in EXACT], sampling):
        assert fit.fits(ALPHA), fit


@pytest.mark.parametrize("name", ["mask_filling", "amusd"])
def test_methods_with_own_decoders_follow_the_target_distribution(
    name: str,
    load_toy: Callable[[str], Method],
    models: Models,
) -> None:
    """Alone, and in turn with methods that draft and verify."""
    method = (load_toy(name) if name == "mask_filling" else registry.get(name)).with_params()
    for steps in ([method], [method, setting("draft-tree-sampled"), setting("prompt-lookup")]):
        for fit in long_run_fits(models, steps, PLAIN):
            assert fit.fits(ALPHA), fit


@pytest.mark.parametrize(
    "mistake",
    model_helpers.mark_on_demand_unless(("the parent's distribution",), ["the parent's distribution", "always accept"]),
)
def test_wrong_rule_is_detected_in_long_runs(mistake: str, models: Models) -> None:
    broken = dataclasses.replace(setting("draft-model"), verifier=Wrong(mistake))
    fit, _ = long_run_fits(models, [broken], PLAIN, n=100)
    assert not fit.fits(ALPHA), f"{mistake} went unnoticed: {fit}"


# -- broken rules are caught ------------------------------------------------------------------------------------------

Rule = Callable[[DraftTree, torch.Tensor, torch.Tensor], AcceptanceDecision]


@dataclasses.dataclass(frozen=True)
class Wrong(Lossless):
    """A verifier with one mistake."""

    mistake: str = ""

    def rule(self, v: Verification) -> AcceptanceDecision:
        tree, p, u_stop = v.tree, v.p, v.u_bonus
        assert u_stop is not None
        ruling = recursive_rejection(tree, p, u_stop)
        if self.mistake == "p instead of the residual":
            return AcceptanceDecision(ruling.accept, pick(p, u_stop))
        if self.mistake == "always accept":
            return AcceptanceDecision(torch.ones_like(ruling.accept), ruling.bonus)
        if self.mistake == "the parent's distribution" and len(tree):
            shifted = torch.cat([p[:1], p[:-1]])
            return recursive_rejection(tree, shifted, u_stop)
        if self.mistake == "ignore elder siblings" and tree.q is not None:
            q = tree.q[tree.child_q_rows.clamp_min(0)].to(p.dtype)
            p_x, q_x = (x[tree.parents + 1, tree.tokens] for x in (p, q))
            return AcceptanceDecision((p_x / q_x).clamp(max=1), ruling.bonus)
        return ruling


def test_a_rule_that_ignores_elder_siblings_is_caught_end_to_end(models: Models) -> None:
    broken = dataclasses.replace(setting("draft-tree-sampled"), verifier=Wrong("ignore elder siblings"))
    fit = fit_of(models, broken, PLAIN, 1, 1000)
    assert not fit.fits(ALPHA), f"it went unnoticed: {fit}"


def test_typical_acceptance_accepts_tokens_above_its_threshold(models: Models) -> None:
    """The threshold is min(ε, δ·exp(−H)), computed from the trace."""
    method = registry.get("medusa-typical").with_params(epsilon=0.3, delta=0.8, depth=2)
    trace = Engine(models).generate(Request(PROMPT, method, PLAIN, 30, stop_at_eos=False))
    kept = 0
    for r in trace.rounds:
        for node in r.path:
            threshold = min(0.3, 0.8 * math.exp(-r.entropy[r.nodes.parents[node] + 1]))
            assert r.nodes.p[node] > threshold
            kept += 1
    assert kept > 3
