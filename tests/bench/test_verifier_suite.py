"""Cost of verification: drafts of each kind, every rule timed or named as left out, slow rules named in the table."""

from __future__ import annotations

import pytest
import torch

from workbench.bench import verifier_suite
from workbench.bench.verifier_suite import (
    KINDS,
    SIBLINGS,
    cases,
    page,
    run_suite,
    sample_draft,
    share,
    states_of,
    table,
    verifiers,
)
from workbench.core.sampling import SamplingParams
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.parts import Verification

pytestmark = pytest.mark.unchecked
V, NODES = 40, 16


def distributions(n: int) -> torch.Tensor:
    return torch.randn(n, V, generator=torch.Generator().manual_seed(0)).softmax(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_has_the_declared_kind_and_every_rule_for_it_verifies_it(kind: Sampling) -> None:
    q = distributions(NODES + 1)
    tree = sample_draft(kind, q, NODES)
    assert len(tree) == NODES
    assert tree.fanout == (1 if kind is Sampling.CHAIN else SIBLINGS)
    assert tree.depth == (NODES if kind is Sampling.CHAIN else NODES // SIBLINGS)
    siblings = tree.tokens.view(-1, tree.fanout)
    if kind in (Sampling.FIXED_NUMBER, Sampling.HEAD_AND_ONE):
        assert all(len(set(row)) == SIBLINGS for row in siblings.tolist())
    if kind is Sampling.HEAD_AND_ONE:
        assert torch.equal(siblings[:, :-1], q[: len(siblings)].topk(SIBLINGS - 1).indices)
    p, u = distributions(NODES + 1).flip(1), torch.full((NODES + 1,), 0.5, dtype=torch.float64)
    warm, timed = SamplingParams(temperature=1.0), cases(verifiers())[0]
    for case, state in states_of(timed, V, torch.device("cpu")).items():
        if case.kind is kind:
            ruling = case.verifier.rule(Verification(tree, p.log(), p, warm, u, state=state))
            assert ruling.accept.shape == (NODES,)
            assert ((ruling.accept >= 0) & (ruling.accept <= 1 + 1e-6)).all()


def test_every_verifier_of_the_registry_is_timed_or_named_as_left_out() -> None:
    timed, left_out = cases(verifiers())
    assert {case.verifier.name for case in timed} | set(left_out) == {v.name for v in verifiers()}
    assert {"lossless", "optimal-two", "nearest"} <= {case.verifier.name for case in timed}
    assert "reflective" in left_out, "this rule runs the target"


def test_shares_are_relative_to_the_forward_and_slow_rules_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_suite, "NODES", 8)
    forwards = [lambda: ("a target", 64, 1e-9), lambda: ("a slow one", 32, 1e9), lambda: ("another", 50, 1.0)]
    report = run_suite(torch.device("cpu"), 1, (32, 64), forwards)
    assert all(set(row["seconds"]) == {"32", "64"} for row in report["rows"])
    row, (quick, slow, unlike) = report["rows"][0], report["forwards"]
    assert share(row, quick) == pytest.approx(row["seconds"]["64"] / 1e-9)
    assert share(row, slow) == pytest.approx(row["seconds"]["32"] / 1e9)
    assert share(row, unlike) is None, "this vocabulary was not measured"
    over = f"over {report['nodes']} tokens"
    heading = "Verifiers that take more than 5% of the time of this forward pass"
    assert f"a target (64 tokens) {over} takes 0.0 ms here. {heading}: `{row['verifier']}`" in page(report)
    assert page(report).count("No verifier takes more than 5%") == 1
    assert f"another (50 tokens) {over} takes 1000.0 ms here. No verifier was measured" in page(report)
    assert "of a slow one" in table(report)
    assert "of a target" not in table(report | {"forwards": []})
    assert table(report).count("\n") == 1 + len(report["shared"]) + len(report["rows"])
