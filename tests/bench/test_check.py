"""The checks pass what is right and catch what is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from workbench.bench import check
from workbench.bench.check import FAIL, LAWS, MEASURED, PASS, SKIPPED, check_greedy, check_law, check_method, corners
from workbench.bench.worlds import tiny_models
from workbench.core.sampling import SamplingParams
from workbench.engine import Models, Promise
from workbench.engine.models import load_tokenizer
from workbench.engine.parts import Verifier
from workbench.methods import registry
from workbench.methods.verifiers.typical import TypicalAcceptance

PROMPTS = [[3, 1, 4, 1, 5, 3, 1, 4], [2]]


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models(load_tokenizer("text-target"), vocabulary=8, layers=2)


@pytest.mark.parametrize("name", ["autoregressive", "prompt-lookup", "draft-model"])
def test_greedy_text_is_the_targets(models: Models, name: str) -> None:
    finding = check_greedy(registry.get(name), models, PROMPTS, max_new_tokens=10)
    assert finding.verdict == PASS, finding.detail


def test_a_value_beyond_the_target_is_refused_not_failed(models: Models) -> None:
    early_exit = registry.get("early-exit")
    shallow = dataclasses.replace(early_exit, drafter=dataclasses.replace(early_exit.drafter, exit_layer=1))
    finding = check_greedy(shallow, models, PROMPTS, max_new_tokens=4)
    assert finding.verdict == PASS, finding.detail
    assert "refused on this target: exit_layer=64" in finding.detail


def test_an_exact_method_keeps_the_law(models: Models) -> None:
    finding = check_law(registry.get("draft-model"), models, LAWS[0], runs=120)
    assert finding.verdict == PASS, finding.detail


def test_a_broken_rule_is_caught(models: Models) -> None:
    """Typical acceptance under a promise of exactness: it keeps too much of what is likely."""
    rule = TypicalAcceptance(epsilon=0.01, delta=0.05)
    broken = dataclasses.replace(
        registry.get("draft-model"), verifier=rule, policies=(registry.get("draft-model").policies[0],)
    )
    assert broken.promise is Promise.EXACT
    finding = check_law(broken, models, LAWS[0], runs=160)
    assert finding.verdict == FAIL
    approximate = dataclasses.replace(broken, promise=Promise.APPROXIMATE)
    finding = check_law(approximate, models, LAWS[0], runs=20)
    assert finding.verdict == MEASURED
    assert "total variation" in finding.detail


@pytest.mark.parametrize(("sharpness", "warmest"), [(1.0, 1.0), (300.0, 16.0)])
def test_a_sure_target_is_heated_until_its_law_has_cells(sharpness: float, warmest: float) -> None:
    made = tiny_models(load_tokenizer("text-target"), vocabulary=8, layers=2)
    head = made.target.model.get_output_embeddings()
    head.weight.data.mul_(sharpness)
    chosen = check.given_law(made, PROMPTS[0], runs=300)
    assert 1.0 <= chosen.sampling.temperature <= warmest
    assert (chosen.sampling.temperature > 1.0) is (sharpness > 1.0)
    assert f"temperature {chosen.sampling.temperature:g}" in chosen.name


def test_a_law_of_one_outcome_is_no_proof() -> None:
    made = tiny_models(load_tokenizer("text-target"), vocabulary=8, layers=2)
    finding = check_law(
        registry.get("draft-model"),
        made,
        check.Law("one outcome", SamplingParams(temperature=1.0, top_k=1), 2),
        runs=10,
    )
    assert finding.verdict == SKIPPED
    assert "no choice" in finding.detail


def test_a_broken_greedy_rule_is_caught(models: Models) -> None:
    @dataclasses.dataclass(frozen=True)
    class TakesEverything(Verifier):
        def rule(self, tree, logits, p, sampling: SamplingParams, u_stop):
            ruling = registry.get("draft-model").verifier.rule(tree, logits, p, sampling, u_stop)
            return dataclasses.replace(ruling, accept=ruling.accept * 0 + 1)

    broken = dataclasses.replace(registry.get("prompt-lookup"), verifier=TakesEverything())
    finding = check_greedy(broken, models, PROMPTS, max_new_tokens=10)
    assert finding.verdict == FAIL
    assert "differs at token" in finding.detail


def test_what_cannot_run_is_skipped_with_the_reason(models: Models) -> None:
    findings = list(check_method(registry.get("medusa"), models, PROMPTS))
    assert [f.verdict for f in findings] == [SKIPPED]
    assert "medusa" in findings[0].detail


def test_corners_are_the_ends_of_every_range() -> None:
    values = [c.values for c in corners(registry.get("prompt-lookup"))]
    depths = {v["depth"] for v in values}
    spec = registry.get("prompt-lookup").params["depth"]
    assert {spec.ge, spec.le} <= depths
    assert check.ALPHA < 1e-3
