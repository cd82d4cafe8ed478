"""Judge Decoding: drafts that a linear judge accepts, the resulting distribution error, and its exact setting."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.core.errors import MethodUnavailableError, WorkbenchError
from workbench.core.rejection import AcceptanceDecision, greedy_match, recursive_rejection, walk
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders import Promise
from workbench.decoders.draft_verify.parts import Verification
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.verifiers.judge import Judge, JudgeHead
from workbench.models.loading import HeadInfo
from workbench.trace.acceptance import definitions
from workbench.trace.events import Trace
from workbench.trace.metrics import ACCEPTANCE_GAIN, DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND

from .test_rules import check_formulas

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
"""p and q of the verifier card's example."""
WARM, GREEDY = SamplingParams(temperature=1.0), SamplingParams()
LIKES = {1: 0.9, 3: 0.6}
"""Probability that these tests' judge gives each token; 0.2 for the others."""


def judge_of(size: int, likes: dict[int, float]) -> JudgeHead:
    """Return a judge of one-hot hidden states."""
    net = JudgeHead(size).double()
    with torch.no_grad():
        net.weight.fill_(0.2)
        for token, chance in likes.items():
            net.weight[token] = chance
        net.weight.copy_(net.weight.logit())
    return net.prepare_for_drafting()


def run_judge(
    tree: DraftTree, p: Tensor, sampling: SamplingParams = WARM, threshold: float = 0.5, **more: Any
) -> AcceptanceDecision:
    """Return the judge's decision on a tree whose hidden states are its one-hot tokens. `p`: [N+1, V]."""
    size = p.shape[1]
    hidden = torch.nn.functional.one_hot(torch.cat([torch.tensor([0]), tree.tokens]), size).double()
    u = None if sampling.greedy else torch.full((len(tree) + 1,), 0.5, dtype=torch.float64)
    v = Verification(tree, p.log(), p, sampling, u, hidden, state=judge_of(size, LIKES))
    return Judge(threshold).rule(replace(v, **more))


def sampled_draft(token: int) -> DraftTree:
    tree = DraftTree.chain([token])
    return replace(
        tree, sampling=Sampling.CHAIN, q=Q[None], child_q_rows=torch.tensor([0, -1]), logq=Q[token].log()[None]
    )


@pytest.mark.parametrize(
    ("threshold", "out", "kept"),
    [
        (1.0, [0.5, 0.3, 0.15, 0.05], 0.6),
        (0.7, [0.4, 0.4, 0.15, 0.05], 0.7),
        (0.5, [0.25, 0.4, 0.15, 0.2], 0.85),
        (0.1, [0.1, 0.4, 0.3, 0.2], 1.0),
    ],
)
def test_golden_distribution_and_error(
    threshold: float, out: list[float], kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output q(x) where the judge accepts x, min(p, q) elsewhere, the rest from (p − q)₊; the mean error is the TV."""
    seen: list[Tensor] = []
    monkeypatch.setattr("workbench.core.sibling_groups.pick", lambda w, u: (seen.append(w), w.argmax(1))[1])
    found, accepted, paid = torch.zeros(4, dtype=torch.float64), 0.0, 0.0
    for x in range(4):
        ruling = run_judge(sampled_draft(x), P.expand(2, 4), threshold=threshold)
        assert ruling.distribution_error is not None
        accept, rest = float(ruling.accept[0]), seen.pop()[0]
        found[x] += Q[x] * accept
        found += Q[x] * (1 - accept) * rest / rest.sum()
        accepted += float(Q[x]) * accept
        paid += float(Q[x] * ruling.distribution_error[0])
    assert found.tolist() == pytest.approx(out, abs=1e-9)
    assert accepted == pytest.approx(kept, abs=1e-9)
    assert paid == pytest.approx(float((found - P).abs().sum() / 2), abs=1e-9)
    assert paid == pytest.approx(kept - 0.6, abs=1e-9), "the extra acceptance equals the error"


@pytest.mark.parametrize(
    "tree", [DraftTree.chain([1, 3]), DraftTree.from_parents([1, 3, 0], [-1, -1, 0])], ids=["chain", "tree"]
)
@pytest.mark.parametrize("sampling", [WARM, GREEDY], ids=["sampled", "greedy"])
def test_threshold_one_equals_the_exact_rule(tree: DraftTree, sampling: SamplingParams) -> None:
    p = torch.rand(len(tree) + 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).softmax(1)
    u = torch.full((len(tree) + 1,), 0.5, dtype=torch.float64)
    wanted = greedy_match(tree, p.argmax(1)) if sampling.greedy else recursive_rejection(tree, p, u)
    found = run_judge(tree, p, sampling, 1.0)
    assert found.accept.tolist() == wanted.accept.tolist()
    assert found.bonus.tolist() == wanted.bonus.tolist()
    assert found.distribution_error is not None
    assert float(found.distribution_error.sum()) == 0


def test_lower_thresholds_accept_more_and_never_less_than_the_exact_rule() -> None:
    """On the same drafts and uniforms: chains sampled and greedy, trees greedy."""
    generator = torch.Generator().manual_seed(5)
    trees = [DraftTree.chain([1, 0, 3, 2]), DraftTree.from_parents([1, 3, 2, 0, 1, 3], [-1, -1, -1, 1, 1, 2])]
    for number in range(60):
        tree = trees[number % 2]
        p = torch.rand(len(tree) + 1, 4, dtype=torch.float64, generator=generator) ** 3
        p /= p.sum(1, keepdim=True)
        uniform = torch.rand(len(tree), dtype=torch.float64, generator=generator).tolist()
        for sampling in (GREEDY, WARM) if tree.fanout == 1 else (GREEDY,):
            parents, u = tree.parents.tolist(), None if sampling.greedy else uniform
            rulings = [run_judge(tree, p, sampling, threshold) for threshold in (1.0, 0.7, 0.5, 0.1)]
            paths = [walk(parents, r.accept.tolist(), r.bonus.tolist(), u).path for r in rulings]
            for less, more in itertools.pairwise(paths):
                assert len(less) <= len(more)
            assert paths[0] == paths[1][: len(paths[0])], "drafts that the exact rule accepts are accepted"


def test_greedy_sibling_equal_to_the_targets_token_comes_first() -> None:
    p = torch.tensor([[0.7, 0.1, 0.1, 0.1]], dtype=torch.float64).expand(4, 4)
    ruling = run_judge(DraftTree.from_parents([1, 0, 3], [-1, -1, -1]), p, GREEDY)
    assert ruling.accept.tolist() == [0, 1, 0]
    alone = run_judge(DraftTree.from_parents([1, 2, 3], [-1, -1, -1]), p, GREEDY)
    assert alone.accept.tolist() == [1, 0, 1]
    assert alone.distribution_error is not None
    assert alone.distribution_error.tolist() == [1, 0, 1]


def test_forbidden_token_is_not_accepted() -> None:
    logits = P.log().expand(2, 4).clone()
    logits[0, 1] = -torch.inf
    p = logits.softmax(1)
    assert run_judge(sampled_draft(1), p, processed_logits=P.log().expand(2, 4)).accept.tolist() == [1]
    assert run_judge(sampled_draft(1), p, processed_logits=logits).accept.tolist() == [0]


# -- through the engine ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Six tokens, and a judge with random weights."""
    from workbench.training.heads.artefact import save_net

    found = model_helpers.make_small_models(6)
    folder: Path = tmp_path_factory.mktemp("judge")
    net = JudgeHead(found.target.hidden_size)
    with torch.no_grad():
        net.weight.copy_(torch.randn(net.width, generator=torch.Generator().manual_seed(1)))
    config = save_net(net, folder, found.target_name, torch.float32)
    found.heads["judge"] = HeadInfo("judge", folder, config)
    return found


def run(models: Models, name: str = "draft-model", heat: float = 0.0, seed: int = 0, **params: Any) -> Trace:
    method = registry.get(name).with_params(**({"verifier": "judge"} | params))
    return Engine(models).generate(
        Request([3, 1, 4, 1, 5, 3, 1, 4, 1], method, SamplingParams(heat), 40, seed=seed, stop_at_eos=False)
    )


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled", "prompt-lookup"])
@pytest.mark.parametrize("heat", [0.0, 0.9])
def test_judge_reads_the_targets_hidden_state_at_each_draft_token(name: str, heat: float, models: Models) -> None:
    """j is σ(w·e + b) for the text up to and including the draft token, computed without a cache."""
    trace = run(models, name, heat)
    net, text, kept = models.shared["judge", "judge"], [3, 1, 4, 1, 5, 3, 1, 4, 1], 0
    for r in trace.rounds:
        paths: list[list[int]] = []
        for node, (token, parent) in enumerate(zip(r.nodes.tokens, r.nodes.parents, strict=True)):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
            if (judged := r.nodes.inputs["judged"][node]) is not None:
                slot = models.target.open()
                models.target.prefill(slot, [*text, *paths[node]])
                assert slot.last_hidden is not None
                assert judged == pytest.approx(float(net(slot.last_hidden).sigmoid()), abs=1e-6)
                models.target.close(slot)
                kept += r.nodes.rule[node] == "judged-good"
        text += [token.token for token in r.emitted]
    assert kept > 0
    assert check_formulas(trace) > 0
    assert (
        sum(r.signals.get(DISTRIBUTION_ERROR, 0.0) + r.signals.get(DISTRIBUTION_ERROR_BOUND, 0.0) for r in trace.rounds)
        > 0
    )


@pytest.mark.parametrize("heat", [0.0, 0.9])
def test_recorded_extra_acceptance_equals_the_difference_to_the_exact_rule(heat: float, models: Models) -> None:
    """By hand for chains accepted completely: their length less Σ ∏ min(1, p / q), or less the matching drafts."""
    total = 0.0
    for r in (r for r in run(models, heat=heat, judge_threshold=0.0).rounds if r.nodes.tokens):
        alive, exact = 1.0, 0.0
        for place, (token, p, q) in enumerate(zip(r.nodes.tokens, r.nodes.p, r.nodes.q, strict=True)):
            alive *= min(1.0, p / q) if heat and q else float(r.top_p[place].tokens[0] == token)
            exact += alive
        assert r.signals[ACCEPTANCE_GAIN] == pytest.approx(len(r.nodes.tokens) - exact, abs=1e-9)
        total += float(r.signals[ACCEPTANCE_GAIN])
    assert total > 1
    for name in ("draft-model", "draft-tree-sampled"):
        bought = [[float(r.signals[ACCEPTANCE_GAIN]) for r in run(models, name, heat, judge_threshold=delta).rounds
                   if r.nodes.tokens] for delta in (0.5, 1.0)]  # fmt: skip
        assert all(value > -1e-9 for value in bought[0]) or name != "draft-model", (
            "for a chain, independent of the random numbers"
        )
        assert sum(bought[0]) > 0.01
        assert bought[1] == pytest.approx([0.0] * len(bought[1]), abs=1e-9), "it is the exact rule"
    assert not any(ACCEPTANCE_GAIN in r.signals for r in run(models, heat=heat, verifier="lossless").rounds)


def test_unsound_use_of_an_exact_rule_records_its_extra_acceptance(models: Models) -> None:
    """K-SEQ on siblings drawn without replacement is approximate; on independent ones, and at temperature 0, exact."""
    unsound = run(models, heat=0.9, verifier="k-seq", grower="rsd-c")
    assert unsound.header.promise == "approximate"
    assert all(ACCEPTANCE_GAIN in r.signals for r in unsound.rounds if len(r.nodes.tokens) > 1)
    assert any(abs(float(r.signals[ACCEPTANCE_GAIN])) > 1e-3 for r in unsound.rounds if r.nodes.tokens)
    for other in ({"grower": "specinfer", "heat": 0.9}, {"grower": "rsd-c", "heat": 0.0}):
        assert not any(ACCEPTANCE_GAIN in r.signals for r in run(models, verifier="k-seq", **other).rounds)


def test_only_tested_drafts_add_distribution_error(models: Models) -> None:
    """If the judge accepts all, the eldest sibling at each position is tested and its younger siblings never are."""
    paid, untested = 0.0, 0
    trace = run(models, "draft-tree-sampled", 0.9, judge_threshold=0.0)
    for r in (r for r in trace.rounds if r.nodes.tokens):
        kept = [node for node, rule in enumerate(r.nodes.rule) if rule == "judged-good"]
        ratios = [r.nodes.p[node] / (r.nodes.q[node] or 1.0) for node in kept]
        bound = float(r.signals[DISTRIBUTION_ERROR_BOUND])
        assert DISTRIBUTION_ERROR not in r.signals, "for siblings the error may be smaller"
        assert bound == pytest.approx(sum(1 - min(1.0, ratio) for ratio in ratios), abs=1e-9)
        paid += bound
        untested += len(r.nodes.tokens) - len(kept)
    assert paid > 0
    assert untested > 10


def test_it_is_declared_approximate_and_threshold_one_keeps_the_exact_text(models: Models) -> None:
    method = registry.get("draft-model").with_params(verifier="judge")
    assert method.promise is Promise.APPROXIMATE
    assert not method.verifier.keeps_greedy
    for heat in (0.0, 0.9):
        exact = run(models, heat=heat, verifier="lossless")
        assert run(models, heat=heat, judge_threshold=1.0).token_ids == exact.token_ids
        lax = run(models, heat=heat, judge_threshold=0.0)
        assert lax.token_ids != exact.token_ids
        assert all(r.path == list(range(len(r.nodes))) for r in lax.rounds), "σ is above 0: all drafts are accepted"


def test_alpha_estimates_exclude_drafts_that_the_judge_decides(models: Models) -> None:
    trace = run(models, heat=0.9)
    alpha = next(d for d in definitions(trace.rounds, trace.header.rules) if d.name == "α")
    assert alpha.value is None
    assert "accepted by the judge" in alpha.note


def test_error_for_a_target_without_a_judge_names_the_training_command(models: Models) -> None:
    bare = replace(models, heads={}, target_name="nobody")
    with pytest.raises(MethodUnavailableError, match="no judge heads trained for nobody") as caught:
        run(bare)
    assert "workbench train judge --set target=nobody" in str(caught.value)


def test_error_for_an_unreadable_judge_names_the_training_command(models: Models, tmp_path: Path) -> None:
    info = models.heads["judge"]
    shared_copy = replace(models, heads={"judge": HeadInfo("judge-of-nothing", tmp_path, info.config)}, shared={})
    with pytest.raises(WorkbenchError, match="workbench train judge"):
        run(shared_copy)


def test_judge_trained_on_both_states_reads_the_draft_models_state_too(models: Models, tmp_path: Path) -> None:
    """j depends on both models' states at each draft token of a chain; with other drafters on the target's only."""
    from workbench.training.heads.artefact import save_net

    assert models.drafter is not None
    net = JudgeHead(models.target.hidden_size, models.drafter.hidden_size)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in (net.weight, net.both):
            weight.copy_(torch.randn(weight.shape, generator=generator))
    config = save_net(net, tmp_path, models.target_name, torch.float32, draft_model=models.drafter_name)
    both = replace(models, heads={"judge": HeadInfo("judge", tmp_path, config)}, shared={})
    for name, runners in (("draft-model", (both.target, both.drafter)), ("prompt-lookup", (both.target,))):
        text, looked = [3, 1, 4, 1, 5, 3, 1, 4, 1], 0
        for r in run(both, name, judge_threshold=0.6).rounds:
            for node, judged in enumerate(r.nodes.inputs.get("judged", [])):
                if judged is not None:
                    read = [*text, *r.nodes.tokens[: node + 1]]
                    states = [_last_hidden(runner, read) for runner in runners if runner is not None]
                    with torch.no_grad():
                        wanted = net(states[0], states[1] if len(states) > 1 else None).sigmoid()
                    assert judged == pytest.approx(wanted.item(), abs=1e-6)
                    looked += 1
            text += [token.token for token in r.emitted]
        assert looked > 5
    exact = run(both, verifier="lossless")
    assert run(both, judge_threshold=1.0).token_ids == exact.token_ids, (
        "the drafter's additional pass does not change the text"
    )
    assert not Judge().reads_draft_states(replace(both, drafter_name="another"))


def _last_hidden(runner: Any, ids: list[int]) -> Tensor:
    slot = runner.open()
    runner.prefill(slot, ids)
    runner.close(slot)
    return slot.last_hidden
