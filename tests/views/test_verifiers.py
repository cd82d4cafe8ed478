"""The verifier bench's page computes the same as Python: acceptance, bounds, exactness, block, lenience."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from typing import Any

import model_helpers
import pytest
import torch
from methods.test_exact_verifiers import FIXED, HEAD, SAMPLED, P, Q, first_token_distribution, pair
from methods.test_round_enumeration import WARM, distance
from torch import Tensor
from views.test_modules import ENV, needs_node

from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.methods import registry
from workbench.methods.verifiers.block import Block
from workbench.methods.verifiers.deterministic import Deterministic
from workbench.methods.verifiers.greedy_draft import GreedyDraft
from workbench.methods.verifiers.independent import Independent
from workbench.methods.verifiers.k_seq import KSeq
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.optimal_two import OptimalTwo
from workbench.methods.verifiers.typical import TypicalAcceptance
from workbench.trace import theory
from workbench.views import module_path

pytestmark = pytest.mark.unchecked
WAYS = {"independent": SAMPLED, "without": FIXED, "head": HEAD}
RULES: dict[str, Verifier] = {
    "recursive": Lossless(),
    "independent": Independent(),
    "k-seq": KSeq(),
    "optimal-two": OptimalTwo(steps=40),  # the number of the page's optimisation steps
    "greedy-draft": GreedyDraft(),
    "deterministic": Deterministic(),
}
DISTRIBUTIONS = {"golden": (P, Q), "random": pair(2, 4), "another": pair(6, 4), "with zeros": pair(1, 5)}
DRAFTS = 3


def in_page(p: Tensor, q: Tensor, ask: str) -> Any:
    """Evaluate a JavaScript expression with the page's modules for p and q."""
    modules = {name: module_path(f"verifiers/{name}").as_uri() for name in ("acceptance", "rules", "sampling")}
    script = "".join(f"import * as {name} from {json.dumps(uri)};" for name, uri in modules.items())
    script += f"const p = {p.tolist()}, q = {q.tolist()}; console.log(JSON.stringify({ask}));"
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True, timeout=60, env=ENV
    )
    return json.loads(node.stdout)


@needs_node
@pytest.mark.parametrize("name", model_helpers.mark_on_demand_unless(("golden", "with zeros"), DISTRIBUTIONS))
def test_every_rule_has_the_same_acceptance_in_the_page_and_in_python(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = DISTRIBUTIONS[name]
    most = int((q > 0).sum())
    seen = in_page(
        p, q,
        "Object.fromEntries(Object.entries(rules.RULES).flatMap(([rule, { exact }]) => exact.map((way) => "
        "[`${rule}/${way}`, [1, 2, 3].map((k) => acceptance.acceptance(p, q, k, way, rule))])))",
    )  # fmt: skip
    compared = 0
    for rule, verifier in RULES.items():
        for way, how in WAYS.items():
            if f"{rule}/{way}" not in seen:
                continue
            for n in range(1, min(DRAFTS, most) + 1):
                probs, kept = first_token_distribution(verifier, p, q, n, how, monkeypatch)
                assert float(distance(probs, p)) < 1e-9, "only exact pairs are compared"
                # Python finds K-SEQ's divisor to k / 2³⁰, the page more precisely
                assert seen[f"{rule}/{way}"][n - 1] == pytest.approx(kept, abs=1e-7), (rule, way, n)
                compared += 1
    assert compared >= 30


@needs_node
def test_a_rule_is_exact_for_the_same_drafts_in_page_and_python() -> None:
    """Except deterministic drafts: verifiers detect them by their missing q, the page applies each rule literally."""
    seen = in_page(P, Q, "Object.fromEntries(Object.entries(rules.RULES).map(([name, r]) => [name, r.exact]))")
    for rule, verifier in RULES.items():
        ways = {way for way, how in WAYS.items() if how in verifier.exact_for}
        assert set(seen[rule]) - {"fixed"} == ways, rule


@needs_node
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_bounds_and_closed_forms_equal_pythons(name: str) -> None:
    p, q = DISTRIBUTIONS[name]
    most, a, b = int((q > 0).sum()), p.numpy(), q.numpy()
    found = in_page(p, q, "acceptance.curves(p, q)")
    for k in range(1, most + 1):
        assert found["bound/independent"][k - 1] == pytest.approx(theory.optimal_acceptance(a, b, k), abs=1e-9)
        assert found["bound/without"][k - 1] == pytest.approx(theory.optimal_acceptance(a, b, k, False), abs=1e-6)
        assert found["greedy-draft/head"][k - 1] == pytest.approx(theory.greedy_scheme_acceptance(a, b, k), abs=1e-9)
        assert found["k-seq/independent"][k - 1] == pytest.approx(theory.kseq_acceptance(a, b, k)[0], abs=1e-6)


def chain(tokens: list[int], q: Tensor) -> DraftTree:
    n = len(tokens)
    tree, q_of = DraftTree.from_parents(tokens, list(range(-1, n - 1))), torch.tensor([0] * n + [-1])
    return replace(tree, sampling=Sampling.CHAIN, q=q[None], child_q_rows=q_of, logq=q[tokens].log())


@needs_node
@pytest.mark.parametrize("name", ["golden", "random"])
def test_block_verification_accepts_as_many_drafts_of_a_chain(name: str) -> None:
    """All chains of three: the probability that a walk reaches each draft."""
    p, q = DISTRIBUTIONS[name]
    kept = 0.0
    for i in range(len(p)):
        for j in range(len(p)):
            for k in range(len(p)):
                chance = float(q[i] * q[j] * q[k])
                if chance == 0:
                    continue
                distributions = p.expand(4, -1)
                u = torch.full((4,), 0.5, dtype=torch.float64)
                ruling = Block().rule(Verification(chain([i, j, k], q), distributions.log(), distributions, WARM, u))
                kept += chance * float(ruling.accept.cumprod(0).sum())
    assert in_page(p, q, "acceptance.chains(p, q).block[2]") == pytest.approx(kept, abs=1e-9)


@needs_node
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_approximate_rules_have_the_same_gain_and_error_in_page_and_python(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = DISTRIBUTIONS[name]
    found = in_page(p, q, "acceptance.priced(p, q)")
    for n in range(1, DRAFTS + 1):
        probs, kept = first_token_distribution(Lenient(), p, q, n, SAMPLED, monkeypatch)
        seen = found["lenient/independent"][n - 1]
        assert seen["accepted"] == pytest.approx(kept, abs=1e-9)
        assert seen["error"] == pytest.approx(float(distance(probs, p)), abs=1e-9)
    rule = TypicalAcceptance()
    least = min(rule.epsilon, rule.delta * math.exp(float((p * p.clamp_min(1e-300).log()).sum())))
    kept = 1 - float(q[p <= least].sum()) ** 2
    assert found["typical/independent"][1]["accepted"] == pytest.approx(kept, abs=1e-9)


@needs_node
@pytest.mark.parametrize("lenience", [0.2, 0.5, 1.0])
def test_lenience_has_the_same_gain_and_error_in_page_and_python(
    lenience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = DISTRIBUTIONS["random"]
    probs, kept = first_token_distribution(Lenient(lenience), p, q, 1, SAMPLED, monkeypatch)
    found = in_page(p, q, f"acceptance.lenient(p, q, {lenience})")
    assert found["accepted"] == pytest.approx(kept, abs=1e-9)
    assert found["error"] == pytest.approx(float((probs - p).clamp_min(0).sum()), abs=1e-9)


@needs_node
def test_the_bench_link_of_a_position_has_its_tree_builders_kind_of_siblings() -> None:
    """The link's table has each tree builder of the registry that does not sample without replacement."""
    uri = json.dumps(module_path("shared/benchlink").as_uri())
    script = f"import {{ WAY_OF }} from {uri}; console.log(JSON.stringify(WAY_OF));"
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True, timeout=60, env=ENV
    )
    names = {
        Sampling.SAMPLED: "independent", Sampling.HEAD_AND_ONE: "head", Sampling.DETERMINISTIC: "fixed",
    }  # fmt: skip
    tree_builders = {grower.name: grower.siblings for method in registry.methods() for grower in method.tree_builders}
    assert json.loads(node.stdout) == {name: names[how] for name, how in tree_builders.items() if how in names}
