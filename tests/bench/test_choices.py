"""Choices are tested one by one: every name has its own line, and a wrong rule fails on any target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import model_helpers
import pytest
import torch
from capped_verifiers import FirstFew

from workbench.bench import board
from workbench.bench.choices import KINDS, all_choices, check_cdf_positions, check_choice
from workbench.bench.finding import FAIL, MEASURED, NEVER_DRAFTED, PASS
from workbench.core.rejection import AcceptanceDecision
from workbench.core.tree import DraftTree
from workbench.decoders import Promise
from workbench.decoders.draft_verify.parts import Drafter, Plan, Verification
from workbench.decoders.method import ConfiguredMethod
from workbench.engine import Models
from workbench.engine.request import Sequence
from workbench.methods import registry

PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1]]


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_small_models(12, noise=0.9)


def check_positions(one: ConfiguredMethod, models: Models, texts: int = 6) -> tuple[str, dict[str, object], str]:
    found = check_cdf_positions(one, models, PROMPTS, texts=texts, tokens=40)
    return found.verdict, dict(found.figures), found.detail


def test_every_name_comes_first_and_each_setting_is_listed_once() -> None:
    choices = all_choices(registry.methods())
    offered = {
        (kind, name)
        for m in registry.methods()
        for kind in KINDS
        if kind in m.params
        for name in m.params[kind].choices
    }
    first = [choice for choice in choices if choice.rank == 0]
    assert choices[: len(first)] == first
    declared = {
        (kind, choice.values.get(kind, str(choice.method.params[kind].default)))
        for choice in first
        for kind in KINDS
        if kind in choice.method.params
    }
    assert declared == offered
    keys = [board.choice_key(choice.configured) for choice in choices]
    assert len(set(keys)) == len(keys)


def test_exact_rules_pass_at_each_position_and_approximate_ones_report_their_error(models: Models) -> None:
    method = registry.get("draft-model")
    for verifier in ("lossless", "k-seq"):
        assert check_positions(method.with_params(verifier=verifier), models)[0] == PASS
    verdict, figures, detail = check_positions(method.with_params(verifier="lenient", lenience=0.2), models)
    assert verdict == MEASURED
    assert 0.01 < float(str(figures["total_variation"])) < 1
    assert "(total variation per token)" in detail
    verdict, figures, detail = check_positions(method.with_params(verifier="typical"), models)
    assert verdict == MEASURED
    assert 0 < float(str(figures["total_variation"])) < 1
    verdict, figures, detail = check_positions(method.with_params(verifier="typical", grower="rsd-c"), models)
    assert verdict == MEASURED
    assert 0 < float(str(figures["total_variation"])) < 1
    assert "deviation at most" in detail


@dataclass(frozen=True)
class AcceptsAll(FirstFew):
    """Accepts every draft, independent of the target's distribution."""

    def rule(self, v: Verification) -> AcceptanceDecision:
        ruling = super().rule(v)
        return replace(ruling, accept=torch.ones_like(ruling.accept))


def test_wrong_verifier_fails_the_position_test() -> None:
    far = model_helpers.make_small_models(12, noise=2.0)
    broken = replace(registry.get("draft-model").with_params(depth=4), verifier=AcceptsAll())
    assert broken.promise is Promise.EXACT, "the broken rule declares itself exact"
    verdict, figures, _ = check_positions(broken, far)
    assert verdict == FAIL, figures


@dataclass(frozen=True)
class Silent(Drafter):
    """Drafts nothing."""

    needs: ClassVar[tuple[str, ...]] = ()

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        return DraftTree.empty("silent")


def test_a_method_that_never_drafts_is_not_tested(models: Models) -> None:
    silent = replace(registry.get("prompt-lookup").with_params(), drafter=Silent())
    verdict, _, detail = check_positions(silent, models, texts=1)
    assert verdict == FAIL
    assert NEVER_DRAFTED in detail


def test_a_row_of_the_board_belongs_to_one_setting_and_target(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    choice = next(c for c in all_choices(registry.methods()) if c.values == {"verifier": "typical"})
    findings = list(check_choice(choice, models, PROMPTS, 8, runs=20))
    board.save_choice(choice.configured, "there", "float64", findings)
    (row,) = board.choice_rows()
    assert (row["choice"], row["target"], row["standing"]) == ("draft-model, verifier=typical", "there", "no promise")
    assert findings[0].kind == "greedy"
    assert board.choice_standings() == {("draft-model, verifier=typical", "approximate"): "no promise"}
