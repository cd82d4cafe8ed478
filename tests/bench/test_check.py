"""The checks pass correct methods and fail broken ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from capped_verifiers import FirstFew, WrongFirstFew

from workbench.bench import board, check, sampling_tests
from workbench.bench.check import check_families, check_greedy, check_method, spread_order
from workbench.bench.finding import FAIL, MEASURED, PASS, SKIPPED, Prompt, boundary_settings
from workbench.bench.goodness import chi_square, count_firsts
from workbench.bench.sampling_tests import SAMPLING_TESTS, TINY_PROMPT, check_distribution
from workbench.bench.tiny_models import tiny_models
from workbench.cli.check import _bundled_pairs as bundled_pairs
from workbench.core.errors import MethodUnavailableError
from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders import Promise
from workbench.decoders.draft_verify.parts import Drafter, Plan, Verification, Verifier
from workbench.decoders.method import Method
from workbench.engine import Models, Sequence, load_models
from workbench.methods import registry
from workbench.methods.verifiers.typical import TypicalAcceptance
from workbench.models.pretrained import load_tokenizer

PROMPTS = [[3, 1, 4, 1, 5, 3, 1, 4], [2]]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: models of this size gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reduced_method(of: str, **parts: Any) -> Method:
    """Return a method of the registry with its default parts only, some of them replaced."""
    method = registry.get(of)
    alone = {"policies": method.policies[:1], "tree_builders": method.tree_builders[:1], "other_verifiers": ()}
    return dataclasses.replace(method, **alone | parts)


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


def test_exact_method_passes_the_distribution_test(models: Models) -> None:
    method = reduced_method("draft-model", other_verifiers=registry.get("draft-model").other_verifiers[:2])
    finding = check_distribution(method, models, SAMPLING_TESTS[0], runs=40)
    assert finding.verdict == PASS, finding.detail


def test_a_broken_rule_is_caught(models: Models) -> None:
    """Typical acceptance that is declared exact: it accepts likely tokens too often."""
    broken = reduced_method("draft-model", verifier=TypicalAcceptance(epsilon=0.01, delta=0.05))
    assert broken.promise is Promise.EXACT
    finding = check_distribution(broken, models, SAMPLING_TESTS[0], runs=160)
    assert finding.verdict == FAIL
    approximate = dataclasses.replace(broken, promise=Promise.APPROXIMATE)
    finding = check_distribution(approximate, models, SAMPLING_TESTS[0], runs=20)
    assert finding.verdict == MEASURED
    assert "total variation" in finding.detail


@pytest.mark.on_demand  # tests/methods/test_round_distributions.py catches the same mistake, without sampling
def test_a_residual_where_nothing_was_rejected_is_caught(models: Models) -> None:
    """With models near each other, the default cap of two drafts shows the error; the lowest cap is tested, too."""
    near = SAMPLING_TESTS[2].build_models(models.tokenizer)
    for right, rule in ((True, FirstFew()), (False, WrongFirstFew())):
        method = reduced_method("draft-model", verifier=rule)
        assert method.promise is Promise.EXACT
        assert [c.values["most"] for c in sampling_tests.settings_by_promise(method)[0]].count(1) == 1
        finding = check_distribution(method, near, SAMPLING_TESTS[2], runs=160)
        assert (finding.verdict == PASS) is right, finding.detail
        assert right or finding.figures["settings"]["defaults"]["adjusted"] < sampling_tests.ALPHA


def test_only_exact_verifiers_are_tested_at_the_low_ends_of_their_numbers() -> None:
    """An approximate verifier would be reported as broken, or measured at a setting that nobody uses."""
    method = reduced_method(
        "draft-tree", verifier=FirstFew(), other_verifiers=(TypicalAcceptance(epsilon=0.01, delta=0.05),)
    )
    assert list(sampling_tests.low_ends(method)) == [{"verifier": "first-few", "most": 1}]
    assert all(
        c.values["most"] == 2
        for c in sampling_tests.settings_by_promise(reduced_method("draft-tree-sampled", verifier=FirstFew()))[0]
    )


def test_an_approximate_choice_is_named_and_not_judged(models: Models) -> None:
    method = reduced_method("draft-tree", other_verifiers=(TypicalAcceptance(epsilon=0.01, delta=0.05),))
    finding = check_distribution(method, models, SAMPLING_TESTS[0], runs=40)
    assert finding.verdict == PASS, finding.detail
    assert finding.figures["tests"] == 1
    assert finding.detail.endswith("no promised distribution, not tested: verifier=typical")


@dataclasses.dataclass(frozen=True)
class SometimesWrong(Drafter):
    """Repeats the last token; one of its five choices declares it as sampled from the uniform distribution."""

    kind: str = param("a", choices=("a", "b", "c", "d", "lies"), doc="which of five")

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        last, size = sequence.committed[-1:], sequence.models.target.vocab_size
        if self.kind != "lies":
            return DraftTree.chain(last, source="toy")
        q = torch.full((1, size), 1 / size, dtype=torch.float64)
        root, q_of = torch.tensor([-1]), torch.tensor([0, -1])
        return DraftTree(
            torch.tensor(last), root, q[0, last].log(), Sampling.SAMPLED, 1, q=q, child_q_rows=q_of, source="toy"
        )


def test_one_wrong_choice_is_detected_among_four_exact_ones(models: Models) -> None:
    toy = reduced_method("prompt-lookup", name="toy", drafter=SometimesWrong())
    finding = check_distribution(toy, models, SAMPLING_TESTS[0], runs=120)
    assert finding.verdict == FAIL
    assert finding.detail.endswith("broken with kind=lies")
    assert (finding.figures["tests"], finding.figures["runs"]) == (5, 120)
    exact, pooled = sampling_tests.exact_distribution(models, SAMPLING_TESTS[0], Prompt(TINY_PROMPT)), []
    for i, configured in enumerate([toy.with_params(), *boundary_settings(toy, ("choice",))]):
        pooled += sampling_tests.sample_many(configured, models, SAMPLING_TESTS[0], 16, first_seed=i * 16)
    assert chi_square(count_firsts(pooled, 2), exact).fits(sampling_tests.ALPHA), (
        "one pooled test for all choices misses the error"
    )


@dataclasses.dataclass(frozen=True)
class Refuses(Drafter):
    """Never runs."""

    def init_state(self, sequence: Sequence, models: Models) -> None:
        raise MethodUnavailableError("No.", "Never.")


@dataclasses.dataclass(frozen=True)
class Silent(Drafter):
    """Runs, but never proposes a token."""

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        return DraftTree.empty()


@pytest.mark.parametrize("promise", list(Promise))
def test_a_method_that_never_ran_does_not_pass(models: Models, promise: Promise) -> None:
    toy = dataclasses.replace(registry.get("prompt-lookup"), name="toy", drafter=Refuses(), promise=promise)
    findings = list(check_method(toy, models, PROMPTS, max_new_tokens=2, runs=10, families=["llama"]))
    assert {f.verdict for f in findings} == {FAIL}
    assert all("never ran" in f.detail for f in findings)
    judged = {"greedy", "families"} | ({"distribution"} if promise is not Promise.GREEDY_EXACT else set())
    assert {f.kind for f in findings} == judged


def test_a_method_that_drafted_nothing_was_not_tested(models: Models) -> None:
    toy = dataclasses.replace(registry.get("prompt-lookup"), name="toy", drafter=Silent())
    for finding in (
        check_greedy(toy, models, PROMPTS, max_new_tokens=4),
        check_families(toy, models.tokenizer, ["llama"], max_new_tokens=4),
    ):
        assert finding.verdict == FAIL
        assert "never drafted" in finding.detail


@pytest.mark.parametrize("promise", list(Promise))
def test_greedy_text_must_be_the_targets_for_every_promise(models: Models, promise: Promise) -> None:
    broken = reduced_method("prompt-lookup", verifier=AcceptsEverything(), promise=promise)
    assert check_greedy(broken, models, PROMPTS, max_new_tokens=10).verdict == FAIL
    kept = dataclasses.replace(registry.get("prompt-lookup"), promise=promise)
    assert check_greedy(kept, models, PROMPTS, max_new_tokens=10).verdict == PASS


def test_the_oracle_keeps_the_distribution_and_a_broken_one_is_caught(models: Models) -> None:
    oracle = registry.get("oracle")
    assert check_distribution(oracle, models, SAMPLING_TESTS[0], runs=100).verdict == PASS
    broken = dataclasses.replace(oracle, verifier=AcceptsEverything())
    assert check_distribution(broken, models, SAMPLING_TESTS[0], runs=100).verdict == FAIL


@pytest.mark.parametrize(("sharpness", "warmest"), [(1.0, 1.0), (300.0, 16.0)])
def test_temperature_is_raised_for_a_peaked_target(sharpness: float, warmest: float) -> None:
    made = tiny_models(load_tokenizer("text-target"), vocabulary=8, layers=2)
    head = made.target.model.get_output_embeddings()
    head.weight.data.mul_(sharpness)
    chosen = sampling_tests.head_sampling_test(made, PROMPTS[0], runs=300)
    assert 1.0 <= chosen.sampling.temperature <= warmest
    assert (chosen.sampling.temperature > 1.0) is (sharpness > 1.0)
    assert f"temperature {chosen.sampling.temperature:g}" in chosen.name


def test_a_distribution_with_one_outcome_is_skipped() -> None:
    made = tiny_models(load_tokenizer("text-target"), vocabulary=8, layers=2)
    finding = check_distribution(
        registry.get("draft-model"),
        made,
        sampling_tests.SamplingTest("one outcome", SamplingParams(temperature=1.0, top_k=1), 2),
        runs=10,
    )
    assert finding.verdict == SKIPPED
    assert "single outcome" in finding.detail


@dataclasses.dataclass(frozen=True)
class AcceptsEverything(Verifier):
    """Accepts every draft."""

    def rule(self, v: Verification) -> AcceptanceDecision:
        ruling = registry.get("draft-model").verifier.rule(v)
        return dataclasses.replace(ruling, accept=ruling.accept * 0 + 1)


def test_a_broken_greedy_rule_is_caught(models: Models) -> None:
    broken = reduced_method("prompt-lookup", verifier=AcceptsEverything())
    finding = check_greedy(broken, models, PROMPTS, max_new_tokens=10)
    assert finding.verdict == FAIL
    assert "differs at token" in finding.detail


@pytest.mark.parametrize("name", ["beam-search", "streaming-llm"])
def test_a_decoder_that_keeps_no_greedy_text_is_measured_and_does_not_fail(name: str, models: Models) -> None:
    """Beam search finds another text than greedy decoding, and a window of a few tokens forgets the prompt."""
    found = list(check_method(registry.get(name), models, PROMPTS, max_new_tokens=12, runs=100, families=("llama",)))
    assert [(finding.kind, finding.verdict) for finding in found] == [("distribution", MEASURED)] * len(SAMPLING_TESTS)


@pytest.mark.slow
def test_a_masked_diffusion_model_has_nothing_to_compare_with_and_no_promise() -> None:
    method, pair = registry.get("llada"), ("diffusion-target", "none")
    assert pair in bundled_pairs(method)
    (finding,) = check_method(method, load_models(*pair, "cpu", "float64"), PROMPTS, max_new_tokens=4, runs=100)
    assert (finding.kind, finding.verdict) == ("reference", SKIPPED)
    assert board.standing(method.promise.value, [dataclasses.asdict(finding)]) == board.NO_PROMISE


def test_without_time_a_sample_of_the_settings_is_tried_and_reported(models: Models) -> None:
    """The defaults are always tried on every prompt."""
    lookup = registry.get("prompt-lookup")
    here = tuple(v for v in lookup.other_verifiers if not v.needs)  # no head is trained for these models
    lookup = dataclasses.replace(lookup, other_verifiers=here)
    finding = check_greedy(lookup, models, PROMPTS, max_new_tokens=10, seconds=0)
    others = len(boundary_settings(lookup))
    assert finding.verdict == PASS
    assert f"the time limit allowed only 0 of {others} settings besides the defaults" in finding.detail
    assert finding.figures["tried"] == len(PROMPTS)
    assert (finding.figures["settings"], finding.figures["settings_left_out"]) == (1 + others, others)
    whole = check_greedy(lookup, models, PROMPTS, max_new_tokens=10)
    assert "time limit" not in whole.detail
    assert whole.figures["tried"] == len(PROMPTS) + others
    found = list(check_method(lookup, models, PROMPTS, max_new_tokens=10, runs=10, seconds=0))
    assert "the time limit allowed only" in found[0].detail


def test_hugging_face_generates_its_reference_text_once_for_all_methods(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a large target these texts take half of a check's time."""
    made, asked = dataclasses.replace(models, shared={}), []
    theirs: Any = models.target.model.generate
    monkeypatch.setattr(made.target.model, "generate", lambda *a, **k: (asked.append(1), theirs(*a, **k))[1])
    for name in ("autoregressive", "prompt-lookup"):
        assert check_greedy(registry.get(name), made, PROMPTS, 10, others=()).verdict == PASS
    assert len(asked) == len(PROMPTS)
    check_greedy(registry.get("autoregressive"), made, PROMPTS, 9, others=())
    assert len(asked) == 2 * len(PROMPTS), "texts of another length are generated anew"


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 12, 16])
def test_any_prefix_of_the_order_is_spread_over_all_settings(n: int) -> None:
    lookup = registry.get("prompt-lookup")
    settings = [lookup.with_params(depth=i + 1) for i in range(n)]
    order = [c.values["depth"] - 1 for c in spread_order(settings)]
    assert sorted(order) == list(range(n))
    if n >= 12:
        third = sorted(order[: n // 3])
        assert max(b - a for a, b in zip([-1, *third], [*third, n], strict=True)) <= n // 2


def test_the_number_of_sampled_runs_fits_the_available_time(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0.0, 32.0)  # every reading of the clock is 32 s later: 2 s a run in the trial
    monkeypatch.setattr(check, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    monkeypatch.setattr(check, "sample_many", lambda *_: None)
    lookup = reduced_method("prompt-lookup")
    assert len(sampling_tests.settings_by_promise(lookup)[0]) == 3
    assert check.affordable_runs(lookup, models, PROMPTS[0], 333, math.inf) == 333
    assert check.affordable_runs(lookup, models, PROMPTS[0], 333, 1200.0) == 200
    assert check.affordable_runs(lookup, models, PROMPTS[0], 333, 1e6) == 333
    assert check.affordable_runs(lookup, models, PROMPTS[0], 333, 1.0) == check.LEAST


def test_a_method_that_cannot_run_is_skipped_with_the_reason(models: Models) -> None:
    findings = list(check_method(registry.get("medusa"), models, PROMPTS))
    assert [f.verdict for f in findings] == [SKIPPED]
    assert "medusa" in findings[0].detail


def test_boundary_settings_are_the_ends_of_every_range() -> None:
    values = [c.values for c in boundary_settings(registry.get("prompt-lookup"))]
    depths = {v["depth"] for v in values}
    spec = registry.get("prompt-lookup").params["depth"]
    assert {spec.ge, spec.le} <= depths
    assert sampling_tests.ALPHA < 1e-3


@pytest.mark.parametrize("name", registry.names())
def test_no_two_boundary_settings_are_equivalent(name: str) -> None:
    """A parameter that only some alternatives use is varied together with one of them."""
    method = registry.get(name)
    settings = [method.with_params(), *boundary_settings(method)]
    parts = [(c.drafter, c.verifier, c.policy, c.tree_builder, c.decoder_params) for c in settings]
    assert len(set(parts)) == len(parts)
