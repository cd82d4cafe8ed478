"""Drafters' data structures compared with naive references, and proposals where the best ones are known."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import model_helpers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor
from transformers.generation import PromptLookupCandidateGenerator

from workbench.bench.goodness import chi_square
from workbench.core.random_stream import Purpose, RandomStream
from workbench.core.rejection import VerificationResult
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.parts import Plan, RoundFeedback
from workbench.engine import Engine, Models, Request, Sequence, load_models
from workbench.methods import registry
from workbench.methods.common.warm_start import WARM_NOTICE
from workbench.methods.lookahead_trie.drafter import LookaheadTrie, Trie, TrieNode
from workbench.methods.prompt_lookup.drafter import NGram, NGramIndex
from workbench.methods.token_recycling.drafter import RANKS, TokenRecycling
from workbench.methods.tree_builders import stochastic_beam
from workbench.methods.tree_builders.template import Template
from workbench.trace.metrics import summary

letters = st.lists(st.integers(0, 2), max_size=30)

# -- prompt lookup ----------------------------------------------------------------------------------------------------


def scan(text: list[int], n: int, length: int, latest: bool) -> list[int]:
    """Search all earlier occurrences of the last n tokens one by one."""
    if n >= len(text):
        return []
    ends = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]
    if not ends:
        return []
    start = ends[-1] if latest else ends[0]
    return text[start : start + length]


@settings(deadline=None)
@given(letters, letters, st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_index_equals_a_naive_scan(a: list[int], b: list[int], n: int, length: int, latest: bool) -> None:
    index = NGramIndex(4)
    index.extend(a)
    index.extend(b)
    assert index.continuation(n, length, latest) == scan(a + b, n, length, latest)


@pytest.mark.parametrize(
    ("text", "n", "length", "latest", "found"),
    [
        ("abcab", 2, 3, True, "cab"),  # the match is at the start, the continuation extends to the end
        ("aaaa", 1, 3, True, "a"),  # overlaps the tail
        ("aaaa", 1, 3, False, "aaa"),
        ("abc", 1, 3, True, ""),
        ("a", 1, 3, True, ""),
    ],
)
def test_lookups_by_hand(text: str, n: int, length: int, latest: bool, found: str) -> None:
    index = NGramIndex(3)
    index.extend([ord(c) for c in text])
    assert "".join(map(chr, index.continuation(n, length, latest))) == found


@pytest.fixture(scope="module")
def eos_models() -> Models:
    """Models with EOS token 0."""
    models = model_helpers.make_small_models(5, noise=None)
    models.target.model.generation_config.eos_token_id = 0
    return models


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(1, 4), st.integers(1, 12), st.booleans())
def test_prompt_lookup_equals_transformers(eos_models: Models, text: list[int], n: int, most: int, stops: bool) -> None:
    reference = PromptLookupCandidateGenerator(torch.tensor([0]) if stops else None, most, n, max_length=10_000)
    expected = reference.get_candidates(torch.tensor([text]))[0][0, len(text) :].tolist()
    drafter = NGram(ngram=n, occurrence="transformers")
    row = model_helpers.make_sequence(Request(text, registry.get("prompt-lookup"), stop_at_eos=stops), text, eos_models)
    row.state.drafter = drafter.init_state(row, eos_models)
    assert drafter.propose_one(row, Plan(most)).tokens.tolist() == expected


# -- trie -------------------------------------------------------------------------------------------------------------

Branch = tuple[list[int], Any]
branches = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.sampled_from([None, 1, 2])), max_size=12
)


def build_trie(items: list[Branch]) -> Trie:
    trie = Trie()
    for branch, request in items:
        trie.insert(branch, request)
    return trie


def prefixes(node: TrieNode, path: tuple[int, ...] = ()) -> dict[tuple[int, ...], TrieNode]:
    """Return all nodes of a trie by their token paths."""
    found = {}
    for token, child in node.children.items():
        found[(*path, token)] = child
        found |= prefixes(child, (*path, token))
    return found


def counts(items: list[Branch], who: Any) -> Counter[tuple[int, ...]]:
    """Count how often each prefix was inserted by a request, or as output if `who` is None."""
    return Counter(tuple(b[: i + 1]) for b, request in items if request == who for i in range(len(b)))


@settings(deadline=None)
@given(branches)
def test_trie_counts_prefixes(items: list[Branch]) -> None:
    trie, outputs, one = build_trie(items), counts(items, None), counts(items, 1)
    nodes = prefixes(trie.root)
    assert trie.n_nodes == len(nodes)
    assert set(nodes) == {tuple(b[: i + 1]) for b, _ in items for i in range(len(b))}
    for path, node in nodes.items():
        assert trie.find(list(path)) is node
        assert node.output == outputs[path]
        assert node.prompt.get(1, 0) == one[path]
    assert trie.find([9]) is None


@settings(deadline=None)
@given(branches, st.integers(1, 8), st.integers(1, 4), st.sampled_from([0.0, 1e-4, 0.5, 1.0]))
def test_best_subtree_equals_brute_force(items: list[Branch], n: int, depth: int, weight: float) -> None:
    trie = build_trie(items)
    scores = {path: node.score(1, weight) for path, node in prefixes(trie.root).items() if len(path) <= depth}
    seen = {p: s for p, s in scores.items() if all(scores[p[: i + 1]] > 0 for i in range(len(p)))}
    tokens, parents = trie.best(trie.root, 1, weight, n, depth)
    paths = [tuple(tokens[i] for i in model_helpers.path_to(parents, node)) for node in range(len(tokens))]
    assert len(paths) == len(set(paths)) == min(n, len(seen))
    assert set(paths) <= set(seen)
    wanted = sorted(seen.values(), reverse=True)[: len(paths)]  # a child's score never exceeds its parent's
    assert sorted((seen[p] for p in paths), reverse=True) == pytest.approx(wanted)


@settings(deadline=None)
@given(branches)
def test_removing_a_request_removes_only_its_counts(items: list[Branch]) -> None:
    trie = build_trie(items)
    trie.forget(1)
    kept = [item for item in items if item[1] != 1]
    fresh = build_trie(kept)
    assert {p: (n.output, n.prompt) for p, n in prefixes(trie.root).items()} == {
        p: (n.output, n.prompt) for p, n in prefixes(fresh.root).items()
    }
    assert trie.n_nodes == fresh.n_nodes


@settings(deadline=None)
@given(branches)
def test_squeezing_halves_output_counts_and_keeps_every_prefix(items: list[Branch]) -> None:
    trie, before = build_trie(items), counts(items, None)
    trie.squeeze()
    nodes = prefixes(trie.root)
    assert trie.n_nodes == len(nodes)
    assert all(path[:-1] in nodes for path in nodes if len(path) > 1)
    for path, node in nodes.items():
        assert node.output == (before[path] / 2 if before[path] > 1 else 0)
    assert set(counts(items, 1)) <= set(nodes)
    assert {p for p, c in before.items() if c > 1} <= set(nodes)


def test_requests_do_not_see_each_others_prompts() -> None:
    trie = build_trie([([5, 6, 7], 1), ([5, 8], 2)])
    assert trie.best(trie.root.children[5], 1, 1e-4, 9, 9) == ([6, 7], [-1, 0])
    assert trie.best(trie.root.children[5], 2, 1e-4, 9, 9) == ([8], [-1])
    trie.forget(1)
    assert trie.find([5, 6]) is None
    assert trie.find([5, 8]) is not None


def test_prompt_outweighs_outputs_by_default() -> None:
    trie = build_trie([([5, 6], 1), *[([5, 7], None)] * 3])
    after = trie.root.children[5]
    assert trie.best(after, 1, 1e-4, 1, 1) == ([6], [-1])
    assert trie.best(after, 1, 0.9, 1, 1) == ([7], [-1])


def test_a_warm_trie_keeps_outputs_and_drops_the_prompt(device: str) -> None:
    models = model_helpers.make_models("llama", noise=None, device=device)
    engine, method = Engine(models), registry.get("lookahead-trie").with_params(warm=True)
    prompt = model_helpers.repeating_prompt(16)
    first, second = (engine.generate(Request(prompt, method, max_new_tokens=40)) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert summary(second)["tau"] > summary(first)["tau"]
    trie = models.shared["lookahead-trie"]
    assert all(not node.prompt for node in prefixes(trie.root).values())
    assert isinstance(method.drafter, LookaheadTrie)


@pytest.mark.parametrize("name", [m.name for m in registry.methods() if "warm" in m.params])
def test_warm_run_states_that_it_depends_on_earlier_runs(name: str, device: str, tmp_path: Path) -> None:
    """The note appears when the run begins or is made warm, and beside the parameter on the method's page."""
    models, method = model_helpers.make_models("llama", noise=0.15, device=device), registry.get(name)
    models.heads |= model_helpers.write_random_heads(tmp_path, models)
    engine = Engine(models)
    learns = {"rate": 1e-3} if "rate" in method.params else {}  # some drafters keep nothing unless they learn
    warm, cold = (method.with_params(warm=value, **learns) for value in (True, False))
    assert "seeded run then depends on earlier runs" in method.params["warm"].doc
    request = Request(model_helpers.repeating_prompt(9), cold, max_new_tokens=24, stop_at_eos=False)
    assert engine.generate(request).footer.warnings == []
    assert engine.generate(dataclasses.replace(request, method=warm)).footer.warnings == [WARM_NOTICE]
    row = engine.submit(request)
    engine.step()
    row.change(params={"warm": True})
    while not engine.is_idle:
        engine.step()
    assert row.trace is not None
    assert row.trace.footer.warnings == [WARM_NOTICE]
    assert [r.index for r in row.trace.rounds if WARM_NOTICE in r.notes] == [
        next(r.index for r in row.trace.rounds if r.changes)
    ]


# -- token recycling --------------------------------------------------------------------------------------------------


def recycling_row(nodes: int = 24) -> Sequence:
    """Return a sequence that never runs, with one committed token and an empty table."""
    models = model_helpers.make_models("llama", noise=None)
    drafter = TokenRecycling()
    row = model_helpers.make_sequence(
        Request([1], registry.get("token-recycling").with_params(nodes=nodes)), [1], models
    )
    row.state.drafter = drafter.init_state(row, models)
    return row


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 6))
def test_static_tree_follows_the_table(seed: int, n: int, depth: int) -> None:
    row, drafter, shape = RECYCLING_ROW, TokenRecycling(), Template(nodes=n)
    generator = torch.Generator().manual_seed(seed)
    row.state.drafter.table[:] = torch.randint(-1, 9, row.state.drafter.table.shape, generator=generator).numpy()
    tree = drafter.propose_one(row, Plan(depth, tree_builder=shape))
    wanted: list[tuple[tuple[int, ...], int]] = []
    known: dict[tuple[int, ...], int] = {(): 1}
    for ranks in shape.paths(Plan(depth)):
        if ranks[:-1] in known:
            token = int(row.state.drafter.table[known[ranks[:-1]], ranks[-1]])
            if token >= 0:
                known[ranks] = token
                wanted.append((ranks, token))
    assert tree.tokens.tolist() == [token for _, token in wanted]
    order = [ranks for ranks, _ in wanted]
    assert tree.parents.tolist() == [order.index(r[:-1]) if len(r) > 1 else -1 for r in order]


RECYCLING_ROW = recycling_row()


def test_table_holds_the_most_likely_successors_and_the_roots_take_precedence() -> None:
    row = recycling_row()
    top = [[i, *range(1, 8)] for i in range(3)]
    outcome = RoundFeedback([5, 4], [-1, 0], VerificationResult((), 0, True, (), {}), [0], 4, top, Plan(2))
    row.drafter.observe(row, outcome)  # token 4 is the root and a node: the root's successors stay
    assert row.state.drafter.table[4].tolist() == top[0]
    assert row.state.drafter.table[5].tolist() == top[1]
    assert (row.state.drafter.table[6] == -1).all()


def test_table_rows_equal_a_direct_forward_pass(device: str) -> None:
    models = model_helpers.make_models("llama", noise=None, device=device)
    engine = Engine(models)
    prompt = model_helpers.random_prompt(9)
    row = engine.submit(Request(prompt, registry.get("token-recycling"), max_new_tokens=12))
    while row.n_new < 1:
        engine.step()
    wanted = model_helpers.next_logits_function(models.target.model)(prompt).topk(RANKS).indices.tolist()
    assert row.state.drafter.table[prompt[-1]].tolist() == wanted
    row.cancel()


class NoUpdates(TokenRecycling):
    """Keep the table as it was before the first round."""

    def observe(self, row: Sequence, outcome: RoundFeedback) -> None:
        pass


def test_prompt_logits_fill_the_table_before_the_first_round() -> None:
    """A token gets successors where the target read it in the prompt; the last prompt token is not read yet."""
    models = model_helpers.make_models("llama", noise=None)
    prompt = [1, 2, 3, 4]
    for reads, known in ((True, [1, 2, 3]), (False, [])):
        engine = Engine(models)
        method = registry.get("token-recycling").with_params()
        row = engine.submit(Request(prompt, dataclasses.replace(method, drafter=NoUpdates(prompt=reads))))
        while not row.is_open:
            engine.step()
        assert row.state.drafter.n_verified.nonzero()[0].tolist() == known
        logits = models.target.model(torch.tensor([prompt])).logits[0]
        for at, token in enumerate(known):
            assert row.state.drafter.table[token].tolist() == logits[at].topk(RANKS).indices.tolist()
        row.cancel()


class PartialUpdates(TokenRecycling):
    """Updates the table from accepted tokens only or, if shifted, with every node's successors at the wrong token."""

    shifted: ClassVar[bool] = False

    def observe(self, row: Sequence, outcome: RoundFeedback) -> None:
        if self.shifted:
            tokens, top = [*outcome.tokens, outcome.root], outcome.top_tokens
        else:
            path = [-1, *outcome.result.path]
            tokens = [outcome.root if i < 0 else outcome.tokens[i] for i in path]
            top = [outcome.top_tokens[i + 1] for i in path]
        for token, best in zip(reversed(tokens), reversed(top), strict=True):
            row.state.drafter.table[token, : len(best)] = best[:RANKS]


class Shifted(PartialUpdates):
    shifted = True


def test_recycling_needs_rejected_nodes_at_the_correct_tokens(device: str) -> None:
    """Measured on a prompt whose alternatives recur; the greedy text is the same for all tables."""
    engine = Engine(load_models("text-target", drafter=None, device=device))
    prompt = "<|user|>Write a story about Mia and Tom. Put a red kite in it.<|assistant|>"
    method = registry.get("token-recycling").with_params()
    taus, texts = [], set()
    for drafter in (TokenRecycling(), PartialUpdates(), Shifted()):
        trace = engine.generate(Request(prompt, dataclasses.replace(method, drafter=drafter), max_new_tokens=120))
        taus.append(summary(trace)["tau"])
        texts.add(trace.text)
    assert len(texts) == 1
    assert taus[0] > taus[1] > taus[2]
    assert taus[2] < 1.2


# -- stochastic beam --------------------------------------------------------------------------------------------------


def perturbed(q: torch.Tensor, runs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Gumbel values [runs, V] of the children of `runs` parents, and the parents' own values."""
    value = torch.linspace(-1, 3, runs, dtype=torch.float64)
    u = torch.from_numpy(RandomStream(seed).uniform(0, Purpose.GUMBEL, runs * len(q))).view(runs, -1)
    _, g = stochastic_beam._perturb(q.expand(runs, -1), torch.zeros_like(value), value, u)
    return g, value


Q = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)


def without_replacement(n: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of the first n tokens of an ordered sample without replacement."""
    probs = {}
    for order in itertools.permutations(range(len(Q)), n):
        chance, left = 1.0, 1.0
        for token in order:
            chance *= float(Q[token]) / left
            left -= float(Q[token])
        probs[order] = chance
    return probs


def test_largest_child_value_equals_its_parents() -> None:
    g, value = perturbed(Q, 1000)
    assert torch.allclose(g.amax(1), value)


def test_siblings_in_descending_order_are_a_sample_without_replacement() -> None:
    g, _ = perturbed(Q, 40_000)
    order = g.argsort(dim=1, descending=True)
    for n in (1, 2, 3):
        fit = chi_square(Counter(map(tuple, order[:, :n].tolist())), without_replacement(n))
        assert fit.fits(1e-5), fit


def test_second_sibling_is_independent_of_passing_the_threshold() -> None:
    """The beam is exact because values, never token identities, decide the cut.

    Given the first child, and that a second one passes, the second one follows the distribution without the first.
    (That *no third* child passes does depend on identities, since likely siblings leave less probability. But the test
    of the second child never depends on the third.)
    """
    g, value = perturbed(Q, 40_000)
    two = ((g > value.unsqueeze(1) - 1.0).sum(1)) >= 2
    assert 5000 < int(two.sum()) < 35_000
    pairs = Counter(map(tuple, g[two].argsort(dim=1, descending=True)[:, :2].tolist()))
    for first in range(len(Q)):
        seen = {k[1]: n for k, n in pairs.items() if k[0] == first}
        probs = {t: float(Q[t] / (1 - Q[first])) for t in range(len(Q)) if t != first}
        fit = chi_square(seen, probs)
        assert fit.fits(1e-5), f"after {first}: {fit}"


def test_impossible_tokens_are_never_sampled() -> None:
    g, _ = perturbed(torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64), 500)
    assert torch.isneginf(g[:, 1]).all()
    assert torch.isfinite(g[:, [0, 2]]).all()


def test_siblings_in_the_sampled_tree_are_distinct(device: str) -> None:
    engine = Engine(model_helpers.make_models("llama", noise=0.5, device=device))
    trace = engine.generate(
        Request([3, 4], registry.get("draft-tree-sampled"), SamplingParams(temperature=1.5), max_new_tokens=30)
    )
    for r in trace.rounds:
        below: dict[int, list[int]] = {}
        for token, parent in zip(r.nodes.tokens, r.nodes.parents, strict=True):
            below.setdefault(parent, []).append(token)
        assert all(len(tokens) == len(set(tokens)) for tokens in below.values())
    assert any(len(r.nodes) > 4 for r in trace.rounds)


# -- early exit -------------------------------------------------------------------------------------------------------


def test_drafting_does_not_change_the_cache_of_upper_layers(device: str) -> None:
    models = model_helpers.make_models("llama", noise=None, device=device)
    engine = Engine(models)
    row = engine.submit(Request(model_helpers.random_prompt(9), registry.get("early-exit").with_params(exit_layer=2)))
    engine.step()
    layers: Any = models.target.cache.layers
    upper = layers[2]
    before = [upper.keys.clone(), upper.values.clone()]
    lower = layers[1].keys.clone()
    row.drafter.propose([row])
    assert torch.equal(upper.keys, before[0])
    assert torch.equal(upper.values, before[1])
    assert not torch.equal(layers[1].keys, lower)


def test_an_exit_beyond_the_last_layer_names_the_range(device: str) -> None:
    engine = Engine(model_helpers.make_models("llama", noise=None, device=device))
    row = engine.submit(Request([1, 2], registry.get("early-exit").with_params(exit_layer=9)))
    engine.step()
    assert row.trace is not None
    assert row.status == "error"
    assert "has 3 layers" in row.trace.footer.error
    assert "Use 1 to 3" in row.trace.footer.error


# -- targets with a known best draft ----------------------------------------------------------------------------------


class Repeat(LogitsProcessor):
    """Force the token of four positions ago."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -20.0).scatter(1, input_ids[:, -4:-3], 20.0)


@pytest.mark.parametrize(("name", "tau"), [("prompt-lookup", 4.5), ("lookahead-trie", 5.0), ("token-recycling", 3.5)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_copying_drafters_reach_high_tau_on_repetitive_text(
    name: str, tau: float, temperature: float, device: str
) -> None:
    models = model_helpers.make_models("llama", noise=None, device=device)
    sampling, prompt = SamplingParams(temperature, processors=(Repeat(),)), [5, 9, 3, 7, 5, 9, 3, 7]
    trace = Engine(models).generate(Request(prompt, registry.get(name), sampling, max_new_tokens=80))
    assert trace.token_ids == (prompt * 20)[:80]
    assert summary(trace)["tau"] > tau


@pytest.mark.parametrize("policy", ["heuristic", "confidence"])
def test_draft_lengths_follow_the_policy(policy: str, device: str) -> None:
    models = model_helpers.make_models("llama", noise=0.15, device=device)
    method = registry.get("draft-model").with_params(policy=policy, depth=4)
    rounds = Engine(models).generate(Request(model_helpers.random_prompt(8), method, max_new_tokens=60)).rounds
    lengths = [len(r.nodes) for r in rounds]
    if policy == "heuristic":
        wanted = 4
        for r, length in zip(rounds[:-8], lengths, strict=False):
            assert length == wanted
            wanted = min(wanted + 2, 24) if len(r.path) == length else max(1, wanted - 1)
    else:
        assert max(lengths) <= 4
        assert len(set(lengths)) > 1
        for r in rounds:  # every drafted token except the first came from a sufficiently confident distribution
            assert all(q is not None and q >= 0.4 for q in r.nodes.q[1:])


def test_oracle_tau_equals_its_closed_form(device: str) -> None:
    """τ = (1 − aᴷ⁺¹)/(1 − a) within five standard errors."""
    models = model_helpers.make_models("llama", noise=None, device=device)
    for a in (0.5, 0.8):
        method, engine = registry.get("oracle").with_params(acceptance=a, depth=3), Engine(models, record=False)
        rows = [engine.submit(Request([1, 2], method, SamplingParams(temperature=1.0), 50, seed=s)) for s in range(6)]
        while not engine.is_idle:
            engine.step()
        lengths = [len(r.emitted) for row in rows if row.trace for r in row.trace.rounds if len(r.nodes) == 3]
        mean = sum(lengths) / len(lengths)
        spread = (sum((x - mean) ** 2 for x in lengths) / len(lengths) ** 2) ** 0.5
        assert abs(mean - (1 - a**4) / (1 - a)) < 5 * spread
