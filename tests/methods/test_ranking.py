"""A greedy run records the drafter's most likely tokens at each position, also those that it did not draft.

The models have twelve tokens, so that eight recorded ranks are more than any node has children.
"""

from __future__ import annotations

import model_helpers
import pytest

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.trace import whatif
from workbench.trace.events import Trace
from workbench.trace.whatif.width import rank_of

PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]
METHODS = {"draft-model": {"depth": 4}, "draft-tree": {"width": 3, "nodes": 8}, "eagle": {}, "medusa": {}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return model_helpers.make_small_models(12, heads=tmp_path_factory.mktemp("medusa"))


def generate(models: Models, method: str, temperature: float = 0.0) -> Trace:
    configured = registry.get(method).with_params(**METHODS[method])
    sampling = SamplingParams(temperature=temperature)
    return Engine(models).generate(Request(PROMPT, configured, sampling=sampling, max_new_tokens=40, stop_at_eos=False))


@pytest.mark.parametrize("method", METHODS)
def test_children_have_the_first_ranks_of_their_position(models: Models, method: str) -> None:
    n_positions = 0
    for r in generate(models, method).rounds:
        assert len(r.ranking) in (0, len(r.nodes.tokens) + 1)
        for place, top in enumerate(r.ranking):
            if top is None:
                continue
            children = [i for i, parent in enumerate(r.nodes.parents) if parent == place - 1]
            assert {r.nodes.tokens[i] for i in children} == set(top.tokens[: len(children)])
            assert top.prob == sorted(top.prob, reverse=True)
            assert len(top.tokens) == 8
            for i in children:
                assert r.nodes.q[i] == pytest.approx(top.prob[top.tokens.index(r.nodes.tokens[i])], rel=1e-5)
            n_positions += bool(children)
    assert n_positions > 20


def test_the_rank_of_the_targets_token_is_known_after_a_rejection(models: Models) -> None:
    trace = generate(models, "draft-model")
    rejected = [r for r in trace.rounds if r.bonus_kind == "corrected"]
    ranks = [rank_of(r, r.path[-1] if r.path else -1, r.bonus) for r in rejected if r.bonus is not None]
    assert rejected
    assert all(rank is not None and rank != 1 for rank in ranks), "rank 1 was drafted and rejected"
    assert all(entry.unknown == 0 for entry in whatif.rank_emitted_tokens(trace.rounds))


def test_distributions_that_drafts_were_drawn_from_are_not_recorded_twice(models: Models) -> None:
    for r in generate(models, "draft-model", temperature=0.9).rounds:
        assert r.ranking == []
        assert any(r.top_q) == bool(r.nodes.tokens)
