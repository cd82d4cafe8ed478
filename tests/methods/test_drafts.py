"""Check each draft node against plain forward passes over its whole path, without a cache.

A drafter that reads a wrong position, a wrong state or another sequence's data only drafts worse: the text stays the
target's. So only the drafts themselves show such an error.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.core.random_stream import Purpose, RandomStream
from workbench.core.sampling import SamplingParams, pick, to_probs
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification
from workbench.decoders.draft_verify.round_state import RoundState
from workbench.engine import Engine, Models, Request, Runner
from workbench.kernels.layers import subset
from workbench.methods import registry
from workbench.methods.medusa import drafter as medusa
from workbench.methods.tree_builders import chain
from workbench.methods.verifiers.lossless import Lossless

PROMPT = [3, 1, 4, 1, 5]
WARM = SamplingParams(temperature=1.5)
close = {"atol": 1e-6, "rtol": 1e-5, "check_dtype": False}


@dataclass
class RecordedDraft:
    """A draft as the verifier gets it.

    Attributes:
        state: the drafter's state of this sequence.
        depth: planned depth.
        committed: committed tokens.
        tree: the draft.
        stop: uniforms for sampling the token that ends the walk, [N+1]; None when greedy.
        accept: uniforms of the acceptance tests, N; None when greedy.
    """

    state: Any
    depth: int
    committed: list[int]
    tree: DraftTree
    stop: Tensor | None
    accept: list[float] | None

    def nodes(self) -> Iterator[tuple[int, int, list[int]]]:
        """Yield (index, token, tokens between the committed text and it) of each node."""
        tokens, parents = self.tree.tokens.tolist(), self.tree.parents.tolist()
        for node, token in enumerate(tokens):
            yield node, token, [tokens[i] for i in model_helpers.path_to(parents, parents[node])]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Six tokens, a drafter of medium quality and untrained heads; float64."""
    return model_helpers.make_small_models(6, heads=tmp_path_factory.mktemp("medusa"))


def drafts(
    models: Models, name: str, sampling: SamplingParams, n: int = 30, texts: int = 1, **values: Any
) -> list[RecordedDraft]:
    """Return all nonempty drafts of `texts` runs side by side, in the order in which they were verified."""
    found: list[RecordedDraft] = []
    rule, accept = Lossless.rule, RoundState.accept

    def seen(self: Lossless, v: Verification) -> Any:
        row = next(row for row in rows if row.verifier is self)
        found.append(
            RecordedDraft(row.state.drafter, row.state.plan.depth, list(row.committed), v.tree, v.u_bonus, None)
        )
        return rule(self, v)

    def drawn(self: RoundState, is_trace_detailed: bool) -> None:
        accept(self, is_trace_detailed)
        uniform = self.acceptance_tensors.uniform
        found[-1] = dataclasses.replace(found[-1], accept=None if uniform is None else uniform.tolist())

    engine, method = Engine(models), registry.get(name)
    asked = [
        Request(PROMPT[: len(PROMPT) - i], method.with_params(**values), sampling, n, seed=i, stop_at_eos=False)
        for i in range(texts)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lossless, "rule", seen)
        patch.setattr(RoundState, "accept", drawn)
        rows = [engine.submit(request) for request in asked]
        while not engine.is_idle:
            engine.step()
    assert not any(row.error for row in rows), [row.error for row in rows]
    return [draft for draft in found if len(draft.tree)]


def token_probs(distributions: Tensor, tokens: Any) -> Tensor:
    """Return the probability of each token in its own distribution, [N] of [N, V]."""
    return distributions.gather(1, torch.as_tensor(tokens).unsqueeze(1)).squeeze(1)


# -- draft models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [1, 3], ids=["alone", "together"])
@pytest.mark.parametrize("sampling", [SamplingParams(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["draft-model", "draft-tree", "draft-tree-sampled", "early-exit"])
def test_draft_model_nodes_follow_its_distribution_after_the_path(
    name: str, sampling: SamplingParams, texts: int, models: Models
) -> None:
    exits = {"exit_layer": 1} if name == "early-exit" else {}
    found = drafts(models, name, sampling, n=16, texts=texts, depth=4, **exits)
    model = subset(models.target.model, range(1)) if exits else models.drafter.model  # type: ignore[union-attr]
    ask = model_helpers.next_logits_function(model)
    for draft in found:
        tree, sampled = draft.tree, draft.tree.sampling is not Sampling.DETERMINISTIC
        distributions = torch.stack([ask([*draft.committed, *path]) for _, _, path in draft.nodes()])
        distributions = distributions.softmax(1) if sampling.greedy else to_probs(distributions, sampling)
        if sampled and sampling.greedy:  # RSD-S: only the most likely token
            assert tree.tokens.tolist() == distributions.argmax(1).tolist()
        elif sampled:
            assert tree.q is not None
            assert tree.child_q_rows is not None
            torch.testing.assert_close(tree.q[tree.child_q_rows[tree.parents + 1]], distributions, **close)
            torch.testing.assert_close(tree.logq.exp(), token_probs(distributions, tree.tokens), **close)
        else:
            assert tree.score is not None
            torch.testing.assert_close(tree.score, token_probs(distributions, tree.tokens), **close)
    assert max(len(draft.tree) for draft in found) >= 4


@pytest.mark.parametrize("name", ["draft-model", "draft-tree"])
def test_after_full_acceptance_the_draft_model_reads_the_last_token(name: str, models: Models) -> None:
    """The last token of the draft has not been through the draft model, which must read it before the next draft."""
    shared_copy = Runner(models.target.model, models.target.context)
    found = drafts(dataclasses.replace(models, drafter=shared_copy), name, SamplingParams(), n=24, depth=2)
    assert {len(later.committed) - len(draft.committed) for draft, later in itertools.pairwise(found)} == {3}
    ask = model_helpers.next_logits_function(models.target.model)
    for draft in found:
        distributions = torch.stack([ask([*draft.committed, *path]) for _, _, path in draft.nodes()]).softmax(1)
        assert draft.tree.score is not None
        torch.testing.assert_close(draft.tree.score, token_probs(distributions, draft.tree.tokens), **close)


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled", "early-exit"])
def test_drafts_are_sampled_from_the_declared_distribution(name: str, models: Models) -> None:
    """Top-k 2 leaves two of the six tokens: no other token may be drafted. A chain's tokens are those that its random
    numbers select from the distributions that the tree declares.
    """
    found = drafts(models, name, SamplingParams(temperature=3.0, top_k=2), n=60)
    logq = torch.cat([draft.tree.logq for draft in found])
    assert len(logq) > 40
    assert bool(torch.isfinite(logq).all())
    for draft in found:
        tree = draft.tree
        if tree.sampling is Sampling.CHAIN and len(tree):
            assert tree.q is not None
            u = torch.from_numpy(RandomStream(0).uniform(len(draft.committed), Purpose.DRAFT, len(tree)))
            assert tree.tokens.tolist() == pick(tree.q, u).tolist()


def test_stochastic_beam_orders_its_nodes_by_an_exponential_race(models: Models) -> None:
    """A text's arrival time is exponential with rate q(text), shifted so that the fastest child has its parent's time.

    So each level is an ordered sample without replacement, and is declared as one: test_round_enumeration.py verifies
    all such samples.
    """
    width = 3
    found = drafts(models, "draft-tree-sampled", WARM, n=60, width=width, depth=3)
    for draft in found:
        tree, draw = draft.tree, RandomStream(0)  # seed of the only request
        assert tree.sampling is Sampling.WITHOUT_REPLACEMENT
        assert tree.q is not None
        assert tree.child_q_rows is not None
        level, rate, time = [-1], torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        for number in range(tree.depth):
            q = tree.q[tree.child_q_rows[torch.tensor(level) + 1]].double()
            u = torch.from_numpy(draw.uniform(len(draft.committed), Purpose.GUMBEL, q.numel(), number)).view(q.shape)
            duration = -u.log() / (rate[:, None] * q)
            arrival = time[:, None] + duration - duration.amin(1, keepdim=True)
            first = arrival.flatten().argsort()[:width]
            nodes = list(range(width * number, width * (number + 1)))
            assert tree.tokens[nodes].tolist() == (first % q.shape[1]).tolist()
            assert tree.parents[nodes].tolist() == [level[i] for i in (first // q.shape[1]).tolist()]
            level, rate, time = nodes, (rate[:, None] * q).flatten()[first], arrival.flatten()[first]
    assert len(found) > 10


def test_draft_stops_by_the_distribution_and_not_by_the_sampled_token(models: Models) -> None:
    """The draft ends before the first unconfident distribution; elsewhere any sampled token continues it."""
    sure, sampling = 0.45, SamplingParams(temperature=1.0)
    found = drafts(models, "draft-model", sampling, n=60, policy="confidence", depth=6, threshold=sure)
    assert models.drafter is not None
    ask, unlikely = model_helpers.next_logits_function(models.drafter.model), 0
    for draft in found:
        tokens = draft.tree.tokens.tolist()
        peaks = [
            float(to_probs(ask([*draft.committed, *tokens[:i]])[None], sampling).amax()) for i in range(len(tokens) + 1)
        ]
        assert all(peak >= sure for peak in peaks[1:-1]), "it continued after an unconfident distribution"
        assert len(tokens) == draft.depth or peaks[-1] < sure, "it stopped at a confident distribution"
        unlikely += int((draft.tree.logq[1:].exp() < sure).sum())
    assert unlikely > 3


# -- random numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled"])
def test_no_random_number_is_used_twice(name: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers for drafting, acceptance tests and stops differ from each other and between rounds."""
    draft_uniforms: list[list[float]] = []
    pick = chain.pick

    def seen(p: Tensor, u: Tensor) -> Tensor:
        draft_uniforms[-1:] = [[*draft_uniforms[-1], float(u)]] if draft_uniforms else [[float(u)]]
        return pick(p, u)

    monkeypatch.setattr(chain, "pick", seen)
    found = drafts(models, name, WARM, n=40)
    tests = [draft.accept for draft in found if draft.accept]
    ends = [draft.stop.tolist() for draft in found if draft.stop is not None]
    for accept, stop in zip(tests, ends, strict=False):
        assert not set(accept) & set(stop)
        assert len({*accept, *stop}) == len(accept) + len(stop)
    firsts = [numbers[0] for numbers in (*tests, *ends)]
    assert len(set(firsts)) == len(firsts) > 10
    drafting = list(itertools.chain(*draft_uniforms))
    assert (name == "draft-model") == bool(drafting)
    assert not set(drafting) & {u for numbers in (*tests, *ends) for u in numbers}


def test_drafter_uses_new_random_numbers_in_every_round(models: Models) -> None:
    """Infer the uniform of each round's first draft token: with repeated random numbers it would not vary."""
    located = []
    for draft in drafts(models, "draft-model", SamplingParams(temperature=5.0), n=80):
        assert draft.tree.q is not None
        token, first = int(draft.tree.tokens[0]), draft.tree.q[0]
        located.append(float(first[:token].sum() + first[token] / 2))
    assert min(located) < 0.3 < 0.7 < max(located)


# -- heads ------------------------------------------------------------------------------------------------------------


def features(models: Models, committed: list[int]) -> Tensor:
    """Return the LM head's inputs at all committed positions except the last, [n − 1, D]."""
    model: Any = models.target.model
    with torch.inference_mode():
        return model.model(torch.tensor([committed[:-1]]), use_cache=False).last_hidden_state[0]


def test_medusa_heads_read_the_newest_hidden_state(models: Models) -> None:
    found = drafts(models, "medusa", SamplingParams(), depth=3, nodes=12)
    for draft in found:
        heads = draft.state
        assert isinstance(heads, medusa.MedusaState)
        with torch.inference_mode():
            distributions = heads.head_logits(features(models, draft.committed)[-1:])[0].softmax(-1)  # [K, V]
        ranked = distributions.argsort(dim=1, descending=True)
        tree = draft.tree
        assert tree.score is not None
        levels = [len(path) for _, _, path in draft.nodes()]
        torch.testing.assert_close(
            tree.score.double(), token_probs(distributions[levels], tree.tokens), atol=1e-6, rtol=1e-5
        )
        assert int(tree.tokens[0]) == int(ranked[0, 0])
    assert len(found) > 5


@pytest.mark.parametrize("name", ["hydra", "hydra-plus-plus"])
def test_hydra_heads_read_the_newest_token_and_the_path(name: str, models: Models) -> None:
    """Head k reads the newest hidden state, and the embeddings of the k tokens that the target has not read yet."""
    levels = set()
    for draft in drafts(models, name, SamplingParams(), depth=3, nodes=12):
        net, embed = draft.state.net, models.target.embed
        with torch.inference_mode():
            newest = net.head_inputs(features(models, draft.committed)[None])[0, -1:]
            for node, token, path in draft.nodes():
                since = torch.tensor([draft.committed[-1], *path])
                state = net(newest, net.project(embed(since)).flatten()[None], len(path))
                wanted = models.target.lm_head(state).softmax(-1)[0, token]
                assert draft.tree.score is not None
                assert float(draft.tree.score[node]) == pytest.approx(float(wanted), rel=1e-5), (node, path)
                levels.add(len(path))
    assert levels == {0, 1, 2}


@pytest.mark.parametrize("name", ["eagle", "fspad", "eagle-3", "mtp", "eagle-vlm", "flash"])
def test_feature_drafter_nodes_equal_a_plain_pass_over_their_path(name: str, models: Models) -> None:
    """One causal pass of the layer over the text's features and the drafter's own predictions after it."""
    found = drafts(models, name, SamplingParams(), depth=5, nodes=24)
    deepest = 0
    for draft in found[:8]:
        net, tree = draft.state.net, draft.tree
        assert tree.score is not None
        for node, token, path in draft.nodes():
            wanted = naive_distribution(models, net, draft.committed, path)[token]
            assert float(tree.score[node]) == pytest.approx(float(wanted), rel=1e-5), (node, path)
            deepest = max(deepest, len(path) + 1)
    assert deepest == 5


def test_parallel_draft_levels_equal_one_pass_over_text_and_masks(models: Models) -> None:
    """A level's distribution is the same at all parents: that of a mask token with the last feature of the text."""
    deepest, shared = 0, False
    for draft in drafts(models, "pard", SamplingParams(), grower="eagle-2", depth=4, nodes=24)[:8]:
        net, tree, committed = draft.state.net, draft.tree, draft.committed
        with torch.inference_mode():
            known = features(models, committed)[None]
            pairs = net.make_pairs(models.target.embed(torch.tensor(committed[1:]))[None], known)
            masks = net.make_pairs(net.mask.expand(1, 3, -1), known[:, -1:].expand(-1, 3, -1))
            states = net(torch.cat([pairs, masks], 1), torch.arange(len(committed) + 2))[0, -4:]
            distributions = models.target.lm_head(net.after(states)).softmax(-1)
        assert tree.score is not None
        at = dict[tuple[int, int], int]()
        for node, token, path in draft.nodes():
            assert float(tree.score[node]) == pytest.approx(float(distributions[len(path), token]), rel=1e-5), (
                node,
                path,
            )
            shared |= (len(path), token) in at
            at[len(path), token] = node
            deepest = max(deepest, len(path) + 1)
    assert deepest == 4
    assert shared, "one token below two parents"


def drafter_features(net: Any, models: Models, committed: list[int]) -> Tensor:
    """Return the hidden states that a feature drafter reads, at all committed positions except the last."""
    if not hasattr(net, "taps"):
        return features(models, committed)
    model: Any = models.target.model
    made = model.model(torch.tensor([committed[:-1]]), use_cache=False, output_hidden_states=True)
    last = (
        model.config.num_hidden_layers
    )  # this entry is normed; no output contains the residual stream before the norm
    streams = dict(enumerate(made.hidden_states))
    if last in net.taps:
        hook = model.model.norm.register_forward_pre_hook(lambda _, args: streams.update({last: args[0]}))
        model.model(torch.tensor([committed[:-1]]), use_cache=False)
        hook.remove()
    return torch.cat([streams[tap][0] for tap in net.taps], -1)


def naive_distribution(models: Models, net: Any, committed: list[int], path: list[int]) -> Tensor:
    """Return a feature drafter's distribution [V] after a path, by whole passes: one per block of `net.ahead` levels.

    A block's levels do not depend on the tokens drafted in it; the next block follows the most likely ones.
    """
    embed, head = models.target.embed, models.target.lm_head
    with torch.inference_mode():
        known, tokens = net.combine_hidden_states(drafter_features(net, models, committed)), list(committed[1:])
        for _ in range(len(path) // net.ahead + 1):
            pairs = net.make_pairs(embed(torch.tensor(tokens)), known)[None]
            state = net(pairs, torch.arange(len(tokens)))[0, -1]
            block = net.futures(state)  # [ahead, D]
            distributions = (net.logits(block) if hasattr(net, "logits") else head(net.lm_head_input(block))).softmax(
                -1
            )
            done = len(tokens) - len(committed) + 1
            tokens += path[done : done + 1] if net.ahead == 1 else distributions.argmax(1).tolist()
            known = torch.cat([known, block])
        return distributions[len(path) % net.ahead]
