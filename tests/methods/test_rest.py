"""REST and RASD: the datastore's tree compared with counted continuations, example figures, merged trees, and runs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import model_helpers
import numpy as np
import pytest
from engine.test_datastore import END, store_from
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import ParameterError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.engine.datastore import Datastore
from workbench.methods import registry
from workbench.methods.rasd.drafter import BOTH, MODEL, STORE, fuse, prune
from workbench.methods.rest.drafter import RetrievedTree, retrieve
from workbench.trace.events import Trace

Path = tuple[int, ...]
letters = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def paths(found: RetrievedTree) -> dict[Path, int]:
    nodes = range(len(found.tokens))
    counts = {tuple(found.tokens[i] for i in model_helpers.path_to(found.parents, n)): found.counts[n] for n in nodes}
    assert len(counts) == len(found.tokens), "siblings are distinct"
    return counts


def continuation_counts(store: Datastore, context: list[int], matched: int, depth: int) -> Counter[Path]:
    """Count the occurrences of each path of continuations."""
    text, found = store.tokens.tolist(), Counter[Path]()
    for i in range(len(text) - matched):
        if text[i : i + matched] == context[-matched:]:
            behind = text[i + matched : i + matched + depth]
            behind = behind[: behind.index(END)] if END in behind else behind
            found.update(tuple(behind[:n]) for n in range(1, len(behind) + 1))
    return found


@settings(deadline=None, max_examples=150)
@given(letters, letters, letters, st.integers(1, 9), st.integers(1, 5))
def test_tree_has_the_most_frequent_continuations(
    a: list[int], b: list[int], context: list[int], nodes: int, depth: int
) -> None:
    store = store_from(a, b)
    found = retrieve(store, context, 16, 1, nodes, depth)
    wanted = continuation_counts(store, context, found.matched, depth) if found.matched else Counter[Path]()
    sizes = paths(found)
    assert all(wanted[path] == count for path, count in sizes.items())
    assert sorted(sizes.values(), reverse=True) == sorted(wanted.values(), reverse=True)[:nodes]
    assert all(x >= y for x, y in pairwise(found.counts)), "the most frequent first"
    if found.tokens:
        assert found.shares == [count / found.hits for count in found.counts]
        assert store.tokens[found.entry] == context[-found.matched]
        assert store.tokens[found.entry + found.matched] == found.tokens[0]


def test_golden_tree() -> None:
    """After [1, 2]: 3 4, 3 0, 4. By hand: 3 in two of three occurrences, each other path in one."""
    store = store_from([1, 2, 3, 4], [0, 1, 2, 3, 0], [1, 2, 4])
    found = retrieve(store, [3, 3, 1, 2], 16, 2, 8, 8)
    assert found.matched == 2
    assert found.hits == 3
    assert (found.tokens, found.parents, found.counts) == ([3, 4, 0, 4], [-1, -1, 0, 0], [2, 1, 1, 1])
    assert retrieve(store, [3, 3, 1, 2], 16, 2, 2, 8).tokens == [3, 4]
    assert retrieve(store, [3, 3, 1, 2], 16, 2, 8, 1).tokens == [3, 4]
    assert retrieve(store, [3, 3, 1, 2], 16, 3, 8, 8) == RetrievedTree(), (
        "a match of two tokens does not count if three are required"
    )
    assert retrieve(store, [0, 1, 2], 16, 2, 8, 8).tokens == [3, 0], "only the longest match"
    assert retrieve(store, [0, 1, 2], 2, 2, 8, 8).tokens == [3, 4, 0, 4]


def test_token_outside_the_targets_vocabulary_ends_a_continuation() -> None:
    store = store_from([1, 2, 3, 4], [0, 1, 2, 3, 0], [1, 2, 4, 3], [1, 2, 4, 3])
    found = retrieve(store, [3, 3, 1, 2], 16, 2, 8, 8, vocabulary=4)
    assert (found.tokens, found.parents, found.counts) == ([3, 0], [-1, 0], [2, 1])
    assert found.hits == 4


def test_branches_with_an_unlikely_first_token_are_removed() -> None:
    found = RetrievedTree([3, 4, 0, 4, 1], [-1, -1, 0, 1, 2], [5, 4, 3, 2, 1], 9, 2, 9, 7)
    kept = prune(found, [3, 1])
    assert (kept.tokens, kept.parents, kept.counts) == ([3, 0, 1], [-1, 0, 1], [5, 3, 1])
    assert prune(found, [0, 1]).tokens == [], "only first tokens count"


def test_golden_graft() -> None:
    """Model: 3 (0 → 1), 4. Datastore: 3 (0 (2), 5), 6. Merged: 3 0 exists, 2 and 5 are attached to it, 6 is new."""
    place, added = fuse([3, 4, 0, 1], [-1, -1, 0, 2], RetrievedTree([3, 0, 6, 5, 2], [-1, 0, -1, 0, 1]), 8)
    assert place == [0, 2, 4, 5, 6]
    assert added == [2, 3, 4]
    place, added = fuse([3, 4, 0, 1], [-1, -1, 0, 2], RetrievedTree([6, 3, 7, 8], [-1, -1, 0, 2]), 1)
    assert (place, added) == ([4, 0, -1, -1], [0]), "a node without room is dropped with its children"


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def models(device: str) -> Models:
    """Models whose datastore contains the target's own text, so that there are matches."""
    found = model_helpers.make_models("llama", noise=0.3, device=device)
    text = Engine(found).generate(Request(PROMPT, registry.get("autoregressive"), max_new_tokens=60)).token_ids
    end = found.shared["datastore"].card.vocabulary
    found.shared["datastore"] = store_from([*PROMPT, *text[:25]], text[30:], text[10:20], vocabulary=end)
    return found


PROMPT = model_helpers.random_prompt(9)


def run(models: Models, name: str, temperature: float = 0.0, **params: object) -> Trace:
    method = registry.get(name).with_params(**params)
    return Engine(models).generate(Request(PROMPT, method, SamplingParams(temperature), 50, stop_at_eos=False))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rest_records_its_matches(temperature: float, models: Models) -> None:
    before = models.shared["datastore"].tokens.tobytes()
    trace, store = run(models, "rest", temperature), models.shared["datastore"]
    drafted = [r for r in trace.rounds if r.nodes.tokens]
    assert drafted
    for r in drafted:
        assert r.signals["datastore tokens"] == len(store)
        assert 2 <= r.signals["matched tokens"] <= 16
        assert r.signals["occurrences in the datastore"] >= 1
        assert store.tokens[int(r.signals["entry"] + r.signals["matched tokens"])] == r.nodes.tokens[0]
        assert set(r.nodes.source) == {"rest"}
    assert store.tokens.tobytes() == before, "requests do not change the datastore"
    assert trace.token_ids[:20] == run(models, "autoregressive", temperature).token_ids[:20] or temperature


def test_rest_needs_fewer_rounds_if_the_datastore_contains_the_text(models: Models) -> None:
    known = run(models, "rest")
    models.shared["datastore"] = store_from([1, 2] * 9, vocabulary=models.shared["datastore"].card.vocabulary)
    unknown = run(models, "rest")
    assert known.token_ids == unknown.token_ids
    assert len(known.rounds) < len(unknown.rounds) - 10


def test_rasd_records_the_source_of_each_node_and_merges_equal_ones(models: Models) -> None:
    trace = run(models, "rasd", top=64)
    seen = Counter[str]()
    for r in trace.rounds:
        nodes = r.nodes
        siblings = Counter(zip(nodes.parents, nodes.tokens, strict=True))
        assert not siblings or max(siblings.values()) == 1, "no token twice below the same parent"
        assert nodes.source.count(STORE) == r.signals.get("nodes from the datastore", 0) <= 8
        seen.update(nodes.source)
    assert set(seen) == {MODEL, STORE, BOTH}
    alone = run(models, "rasd", retrieved=0)
    assert alone.token_ids == trace.token_ids
    assert len(trace.rounds) <= len(alone.rounds)
    assert STORE not in {source for r in alone.rounds for source in r.nodes.source}


def test_rasd_trees_are_deeper_than_the_models_own(models: Models) -> None:
    depths = [max(r.nodes.depth, default=0) for r in run(models, "rasd", levels=2, top=64).rounds]
    assert max(depths) > 2
    assert max(max(r.nodes.depth, default=0) for r in run(models, "rasd", levels=2, retrieved=0).rounds) <= 2


def test_datastore_is_selected_only_by_name() -> None:
    """A request cannot name a folder on the server's machine."""
    with pytest.raises(ParameterError, match="own, bundled"):
        registry.get("rest").with_params(store="/etc")


def test_lookup_cost_hardly_grows_with_the_datastore() -> None:
    """Count token comparisons, not time: thirty times the text needs only a few more bisection steps."""

    class Watched(list[int]):
        reads = 0

        def __getitem__(self, i):
            self.reads += 1
            return super().__getitem__(i)

    reads = []
    for n in (1_000, 30_000):
        rng = np.random.default_rng(0)
        text = rng.integers(0, 4, n).tolist()
        store = store_from(text)
        store.suffixes = Watched(store.suffixes.tolist())
        store.find(text[n // 2 : n // 2 + 16], 16)
        reads.append(store.suffixes.reads)
    assert reads[1] <= reads[0] * 1.8


@pytest.mark.parametrize("name", ["rest", "rasd"])
def test_run_without_possible_matches_has_a_note_at_its_beginning(name: str, models: Models) -> None:
    warnings = [run(models, name, longest=n, shortest=3).footer.warnings for n in (2, 3)]
    assert any("matches of 3 tokens are required, but only 2 are looked up" in note for note in warnings[0])
    assert not any("are looked up" in note for note in warnings[1])
