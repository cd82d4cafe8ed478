"""Acceptance probability of several drafts for one position (golden numbers), and claims declared by parts."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from workbench.bench import claims, text_lab, verifiers_on_drafts
from workbench.bench.claims import Scale
from workbench.bench.text_lab import TextLab
from workbench.bench.verifiers_on_drafts import TextDistributions, VerifierSetup
from workbench.core.rejection import AcceptanceDecision
from workbench.core.tree import Sampling
from workbench.engine import datastore_builder
from workbench.engine.datastore import open_store
from workbench.methods import registry
from workbench.methods.verifiers.block import Block
from workbench.methods.verifiers.deterministic import Deterministic
from workbench.methods.verifiers.greedy_draft import GreedyDraft
from workbench.methods.verifiers.independent import Independent
from workbench.methods.verifiers.k_seq import KSeq
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.optimal_two import OptimalTwo

P, Q = [0.5, 0.3, 0.15, 0.05], [0.1, 0.4, 0.3, 0.2]
ALIKE = TextDistributions(*(torch.tensor([probs] * 100, dtype=torch.float64) for probs in (P, Q)))


@pytest.mark.parametrize(
    ("way", "siblings", "golden"),
    [
        ((Independent(), Sampling.SAMPLED), 2, 0.64),
        ((Independent(), Sampling.SAMPLED), 3, 0.676),
        ((KSeq(), Sampling.SAMPLED), 2, 0.658443),
        ((KSeq(), Sampling.SAMPLED), 3, 0.710003),
        ((OptimalTwo(), Sampling.SAMPLED), 2, 0.69),
        ((OptimalTwo(), Sampling.FIXED_NUMBER), 2, 0.734524),
        ((Lossless(), Sampling.FIXED_NUMBER), 2, 0.656845),
        ((Lossless(), Sampling.FIXED_NUMBER), 3, 0.748988),
        ((GreedyDraft(), Sampling.HEAD_AND_ONE), 2, 0.666667),
        ((GreedyDraft(), Sampling.HEAD_AND_ONE), 3, 0.833333),
    ],
    ids=lambda value: type(value[0]).__name__ if isinstance(value, tuple) else str(value),
)
def test_the_acceptance_probability_of_a_position_is_the_golden_number(
    way: VerifierSetup, siblings: int, golden: float
) -> None:
    """6,400 sets of drafts are sampled; the acceptance probability of each set is computed."""
    assert verifiers_on_drafts.acceptance_probability(ALIKE, way, siblings) == pytest.approx(golden, abs=0.01)


def test_another_rule_on_the_same_drafts_has_another_acceptance_probability() -> None:
    drawn = verifiers_on_drafts.acceptance_probability(ALIKE, (Independent(), Sampling.SAMPLED), 3)
    followed = verifiers_on_drafts.acceptance_probability(ALIKE, (Deterministic(), Sampling.SAMPLED), 3)
    assert abs(drawn - followed) > 0.05


def test_the_bound_is_the_optimal_transport_bound() -> None:
    few = TextDistributions(ALIKE.p[:3], ALIKE.q[:3])
    assert verifiers_on_drafts.acceptance_probability(few, (None, Sampling.SAMPLED), 2) == pytest.approx(0.69, abs=1e-6)
    assert verifiers_on_drafts.acceptance_probability(few, (None, Sampling.FIXED_NUMBER), 2) == pytest.approx(
        0.734524, abs=1e-5
    )


def test_distributions_of_a_pair_sum_to_one_at_each_drafted_position() -> None:
    lab = TextLab("draft-tree-sampled", Scale(per_group=1, tokens=12)).on_groups("maths")
    (first, *_) = verifiers_on_drafts.distributions_of(lab.models, lab.prompts()[:1], 12, 1.0)
    assert 4 <= len(first) <= 12
    for probs in (first.p, first.q):
        assert torch.allclose(probs.sum(1), torch.ones(len(first)), atol=1e-4)
    assert not torch.allclose(first.p, first.q, atol=1e-2)


def test_two_rules_are_compared_on_the_same_chains() -> None:
    """Expected tokens by hand; the exact rule's ratio to itself is 1; block verification is slightly better."""
    decision = AcceptanceDecision(torch.tensor([0.5, 0.5]), torch.zeros(3, dtype=torch.long))
    assert verifiers_on_drafts.expected_tokens(decision) == 1.75
    lab = TextLab("draft-model", Scale(tokens=16, draws=1)).on_groups("maths")
    alike, better = (lab.tau_of_same_drafts(rule, {"depth": 6}, 1.0) for rule in (Lossless(), Block()))
    assert (alike.value, alike.low, alike.n) == (1, 1, len(lab.prompts()))
    assert 1 < better.value < 1.2
    assert "1 sampled runs per prompt, expected value over the same drafts" in better.setting


@pytest.mark.on_demand
def test_the_datastore_of_code_is_built_once_and_used_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers to the prompts replace Python's library, so that only they are drafted from."""
    library, tables = tmp_path / "library", tmp_path / "library" / "encodings"
    tables.mkdir(parents=True)
    (tables / "table.py").write_text("no code\n")
    monkeypatch.setattr(text_lab.sysconfig, "get_path", lambda name: str(library))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(datastore_builder.ENV, str(tmp_path / "nowhere"))
    lab = TextLab("rest", Scale(tokens=24)).on_groups("code")
    written = [[e.token for r in rounds for e in r.emitted] for rounds in lab.rounds("autoregressive", {})]
    (library / "said.py").write_text("".join(lab.models.tokenizer.decode(ids) + "\n" for ids in written))
    own, read = lab.tau(), lab.with_code().tau()
    assert read.value > 1.5 * own.value, "the answers are in the datastore"
    store = open_store(text_lab.code_datastore(lab.models))
    assert [name for name, _ in store.card.texts] == ["said.py"]
    (library / "said.py").write_text("pass\n")
    assert lab.with_code().tau().value == read.value, "the datastore is not built again"
    assert f"datastore of the standard library of Python {platform.python_version()}" in lab.with_code().setting
    assert "store" not in own.setting
    assert os.environ[datastore_builder.ENV] == str(tmp_path / "nowhere")


def test_a_parts_claim_belongs_to_its_method_and_not_to_derived_methods() -> None:
    (claim,) = claims.claims_of("draft-tree-sampled", "k-seq")
    assert claim.command() == "workbench claims --method draft-tree-sampled --key k-seq"
    assert "drafter" in claim.needs
    (stop,) = claims.claims_of("draft-model", "specdec++")
    assert stop.needs == ("drafter", "acceptance")
    assert stop.missing_requirement("smollm2") == ""
    assert stop.missing_requirement("nobody") == "there is no draft model for nobody yet"
    method = registry.get("draft-tree-sampled")
    assert replace(method, name="mine").claims == ()
    assert [c.key for c in replace(method).claims] == [c.key for c in method.claims]


@pytest.mark.on_demand
def test_a_setting_is_compared_with_the_fastest_of_the_others() -> None:
    lab = TextLab("draft-model", Scale(tokens=8, repeats=1)).on_groups("maths")
    found = lab.speed_over({"depth": 4}, [{"depth": 1}, {"depth": 16}])
    assert found.n == len(lab._for_timing().prompts()) < len(lab.prompts())
    assert found.low < found.value < found.high
    assert "the fastest of 2" in found.setting
