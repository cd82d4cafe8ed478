"""Reflective verification: output distribution and its error, the second reading's attention, and its exact setting."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import model_helpers
import pytest
import torch
from methods.test_round_enumeration import DistributionTables, Text, chains, distance, output_distribution, texts_of
from torch import Tensor

from workbench.core.probes import ProbeOutput
from workbench.core.rejection import recursive_rejection
from workbench.core.sampling import SamplingParams, apply_logits_processors
from workbench.core.tree import DraftTree, Sampling, tree_attention_mask
from workbench.decoders import Promise
from workbench.decoders.draft_verify.parts import Verification
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.verifiers.reflective import QUESTION, Reflective, second_reading
from workbench.trace import metrics

V = 4
P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
"""p and q of the verifier card's example."""
WARM = SamplingParams(temperature=1.0)


def sampled_draft(token: int, q: Tensor = Q) -> DraftTree:
    tree = DraftTree.chain([token])
    return replace(
        tree, sampling=Sampling.CHAIN, q=q[None], child_q_rows=torch.tensor([0, -1]), logq=q[token].log()[None]
    )


def second_pass_results(tree: DraftTree, second: Tensor) -> ProbeOutput:
    """Return a probe result with these logits at the tree's nodes in the second reading; the lead probes are unused."""
    lead = torch.zeros(3, second.shape[1], dtype=second.dtype)
    logits = torch.cat([lead, second])[1:]
    return ProbeOutput(second_reading(tree, torch.tensor([0, 0, 0])), logits, logits)


def run_verifier(verifier: Reflective, tree: DraftTree, first: Tensor, second: Tensor, **more: Any) -> Any:
    u = torch.zeros(len(tree) + 1, dtype=torch.float64)
    v = Verification(tree, first, first.softmax(1), WARM, u, probe_output=second_pass_results(tree, second))
    return verifier.rule(replace(v, **more))


@pytest.mark.parametrize(
    ("alpha", "expected", "acceptance", "error"),
    [
        (0.0, [0.5, 0.3, 0.15, 0.05], 0.6, 0.0),
        (0.5, [0.2534796, 0.3926889, 0.2404719, 0.1133595], 0.8465204, 0.2465204),
        (1.0, [0.1, 0.4, 0.3, 0.2], 1.0, 0.4),
    ],
)
def test_it_verifies_by_interpolated_logits(
    alpha: float, expected: list[float], acceptance: float, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With second reading q: p̂ ∝ p^(1−α)·q^α, acceptance rate Σ min(p̂, q), distribution error TV(p̂, p)."""
    seen: list[Tensor] = []
    monkeypatch.setattr("workbench.core.sibling_groups.pick", lambda w, u: (seen.append(w), w.argmax(1))[1])
    out, chance = torch.zeros(V, dtype=torch.float64), 0.0
    for x in range(V):
        ruling = run_verifier(Reflective(alpha), sampled_draft(x), P.log().expand(2, V), Q.log().expand(2, V))
        rest = seen.pop()[0]
        accept = ruling.accept[0]
        out[x] += Q[x] * accept
        out += Q[x] * (1 - accept) * rest / rest.sum()
        chance += float(Q[x] * accept)
        assert float(ruling.distribution_error.sum()) == pytest.approx(error, abs=1e-6)
    assert out.tolist() == pytest.approx(expected, abs=1e-6)
    assert chance == pytest.approx(acceptance, abs=1e-6)


class Reflecting(Reflective):
    """A verifier whose second reading has the distributions of a third model."""

    second: Any = None

    def rule(self, v: Verification) -> Any:
        second = torch.stack([self.second[text].log() for text in texts_of(v.tree)])
        return super().rule(replace(v, probe_output=second_pass_results(v.tree, second)))


def test_output_distribution_of_a_chain_is_the_interpolated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joint distribution of two tokens and the bonus token: p̂ at tested nodes, p after the last one."""
    generator = torch.Generator().manual_seed(4)
    texts = [text for n in range(3) for text in itertools.product(range(3), repeat=n)]
    p, q, second = (
        {text: torch.rand(3, dtype=torch.float64, generator=generator) + 0.1 for text in texts} for _ in "pqs"
    )
    p, q, second = ({text: a / a.sum() for text, a in distributions.items()} for distributions in (p, q, second))
    world = DistributionTables(3, 2, p, q)
    verifier = Reflecting(0.4)
    object.__setattr__(verifier, "second", second)
    interpolated: dict[Text, Tensor] = dict(p)
    for text in texts:
        if len(text) < 2:
            mixed = p[text] ** 0.6 * second[text] ** 0.4
            interpolated[text] = mixed / mixed.sum()
    out = output_distribution(world, chains(world), verifier, monkeypatch)
    joint = torch.zeros(3, 3, 3, dtype=torch.float64)
    for x, y in itertools.product(range(3), repeat=2):
        kept = torch.minimum(q[()], interpolated[()])[x]  # if x came from the residual, the rest of the text is from p
        joint[x, y] = (kept * interpolated[(x,)][y] + (interpolated[()][x] - kept) * p[(x,)][y]) * p[(x, y)]
    assert distance(out, joint) < 1e-12
    assert distance(out, world.joint()[()]) > 0.01


@pytest.mark.parametrize(
    "tree", [DraftTree.chain([0, 1]), DraftTree.from_parents([0, 1, 2], [-1, -1, 0])], ids=["chain", "tree"]
)
def test_alpha_zero_equals_the_exact_rule(tree: DraftTree) -> None:
    first = torch.randn(len(tree) + 1, V, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ruling = run_verifier(Reflective(0.0), tree, first, -first)
    wanted = recursive_rejection(tree, first.softmax(1), torch.zeros(len(tree) + 1, dtype=torch.float64))
    assert torch.allclose(ruling.accept, wanted.accept, atol=1e-12)
    assert torch.equal(ruling.bonus, wanted.bonus)
    assert float(ruling.distribution_error.abs().max()) == 0.0


def test_penalties_are_applied_once_to_the_interpolated_logits() -> None:
    """The model's raw logits are interpolated; then the sequence's own penalties apply."""
    sampling = SamplingParams(temperature=0.7, repetition_penalty=1.8)
    generator = torch.Generator().manual_seed(2)
    first, second = (torch.randn(2, V, dtype=torch.float64, generator=generator) for _ in range(2))
    histories = [torch.tensor([1, 3]), torch.tensor([1, 3, 2])]
    shaped = apply_logits_processors(first, sampling, histories)
    p = (shaped / 0.7).softmax(1)
    tree = DraftTree.chain([1])
    v = Verification(
        tree,
        shaped,
        p,
        sampling,
        torch.zeros(2, dtype=torch.float64),
        probe_output=second_pass_results(tree, second),
        raw_logits=first,
        histories=histories,
    )
    mixed = apply_logits_processors(0.75 * first + 0.25 * second, sampling, histories)
    wanted = (mixed / 0.7).softmax(1)[0, 1]
    assert float(Reflective(0.25).rule(v).accept[0]) == pytest.approx(float(wanted), abs=1e-12)


@pytest.mark.parametrize("parents", [[-1, 0, 1], [-1, -1, 0, 0, 1]], ids=["chain", "tree"])
def test_second_reading_attends_to_the_whole_first_one_and_its_own_path(parents: list[int]) -> None:
    tree = DraftTree.from_parents(list(range(10, 10 + len(parents))), parents)
    n, lead = len(tree), torch.tensor([7, 8])
    probes = second_reading(tree, lead)
    assert probes.tokens.tolist() == [7, 8, *tree.tokens.tolist()]
    assert bool(probes.attention_mask[:, :n].all())
    assert probes.attention_mask[0, n:].int().tolist() == [1] + [0] * (n + 1)
    assert bool(probes.attention_mask[1:, n : n + 2].all())
    own = tree_attention_mask(tree.parents, tree.depth)
    assert torch.equal(probes.attention_mask[2:, n + 2 :], own)
    assert not bool(probes.attention_mask[:2, n + 2 :].any()), "the question precedes the second reading"
    deep = tree.depth
    assert probes.depths.tolist() == [deep + 1, deep + 2, *(deep + 2 + own.sum(1)).tolist()]
    assert probes.max_depth >= int(probes.depths.max())
    assert probes.parents.tolist() == [n - 1, n, *(n + 2 + p if p >= 0 else n + 1 for p in parents)]


# -- through the engine ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device)


def make_request(models: Models, name: str, temperature: float = 1.0, **values: Any) -> Request:
    method = registry.get(name).with_params(**values)
    return Request(model_helpers.random_prompt(13), method, SamplingParams(temperature), 32, stop_at_eos=False)


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled"])
def test_second_reading_in_a_run_equals_a_plain_pass(name: str, models: Models) -> None:
    """For chains: logits after text, draft, question, the last tokens and the draft again, without a cache."""
    trace = Engine(models).generate(make_request(models, name, verifier="reflective", again=4))
    question = models.tokenizer.encode(QUESTION, add_special_tokens=False)
    text = list(trace.header.prompt_tokens)
    looked = 0
    for r in trace.rounds:
        if len(r.nodes):
            assert [p.token for p in r.probes] == [*question, *text[-4:], *r.nodes.tokens]
            assert metrics.count_verified([r]) == 1 + 2 * len(r.nodes) + len(question) + 4
            if name == "draft-model":
                whole = torch.tensor([[*text, *r.nodes.tokens, *question, *text[-4:], *r.nodes.tokens]])
                with torch.inference_mode():
                    logits = models.target.model(whole.to(models.target.device), use_cache=False).logits[0]
                second = logits[-len(r.nodes) - 1 :].softmax(1).cpu()
                reflected = r.nodes.inputs["reflected"]
                for i, value in enumerate(reflected):
                    if value is not None:
                        assert value == pytest.approx(float(second[i, r.nodes.tokens[i]]), abs=1e-9)
                        looked += 1
        text += [e.token for e in r.emitted]
    assert name != "draft-model" or looked > 5


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled"])
def test_without_a_second_reading_the_text_is_the_exact_rules(name: str, models: Models) -> None:
    exact = Engine(models).generate(make_request(models, name))
    zero = Engine(models).generate(make_request(models, name, verifier="reflective", reflection=0.0))
    assert zero.token_ids == exact.token_ids
    assert all(not r.probes for r in zero.rounds)
    off = {"verifier": "reflective", "reflection": 0.0}
    greedy = [Engine(models).generate(make_request(models, name, 0.0, **v)) for v in ({}, off)]
    assert greedy[0].token_ids == greedy[1].token_ids
    assert all(not r.probes for r in greedy[1].rounds)


def test_greedy_rounds_accept_the_most_likely_token_of_the_interpolated_logits() -> None:
    """The paper interpolates logits at temperature 0, too; the token after the draft uses the first reading only."""
    first = torch.tensor([[0.0, 2.0, 1.9, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    second = torch.tensor([[0.0, 0.0, 5.0, 0.0], [0.0, 0.0, 0.5, 0.0], [9.0, 0.0, 0.0, 0.0]])
    tree = DraftTree.chain([2, 1])
    v = Verification(
        tree, first, first.softmax(1), SamplingParams(), None, probe_output=second_pass_results(tree, second)
    )
    ruling = Reflective(0.3).rule(v)
    assert ruling.accept.tolist() == [1, 0], "0.7 · 1.9 + 0.3 · 5 > 0.7 · 2; the second token stays 0"
    assert ruling.bonus.tolist() == [2, 0, 3]
    assert ruling.distribution_error is not None
    assert ruling.distribution_error.tolist() == [1, 0], "tested positions at which the target's own token differs"
    assert Reflective(0.0).rule(replace(v, probe_output=None)).accept.tolist() == [0, 0]
    assert not Reflective.keeps_greedy


def test_greedy_run_records_the_effect_of_the_second_reading(models: Models) -> None:
    """With α = 1 only the second reading decides: accepted drafts are its greedy tokens and add to the error."""
    trace = Engine(models).generate(make_request(models, "draft-model", 0.0, verifier="reflective", reflection=1.0))
    exact = Engine(models).generate(make_request(models, "draft-model", 0.0))
    assert any(r.probes for r in trace.rounds)
    assert trace.token_ids != exact.token_ids
    assert sum(r.signals["distribution error (TV)"] for r in trace.rounds) >= 1


def test_it_is_declared_approximate_and_records_its_error(models: Models) -> None:
    chosen = registry.get("draft-model").with_params(verifier="reflective")
    assert chosen.promise is Promise.APPROXIMATE
    assert "trees" in chosen.needs
    trace = Engine(models).generate(make_request(models, "draft-model", verifier="reflective", reflection=0.5))
    assert sum(r.signals["distribution error (TV)"] for r in trace.rounds) > 0.1
    assert trace.header.rules["reflective"].formula == "min(1, r / q′)"
