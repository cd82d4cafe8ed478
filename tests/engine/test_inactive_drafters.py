"""Drafters with memory continue to learn while another one drafts, and use it after a switch back."""

from __future__ import annotations

from typing import Any

import model_helpers
import numpy as np
import pytest

from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.request import FINISHED
from workbench.methods import registry
from workbench.methods.prompt_lookup.drafter import NGram
from workbench.methods.token_recycling.drafter import RANKS, TokenRecycling

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 40


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device)


def steps(engine: Engine, row: Sequence, method: str, n: int, **params: Any) -> None:
    """Run rounds with a method."""
    row.change(method=registry.get(method), params=params)
    for _ in range(n):
        engine.step()


def run(models: Models, first: str) -> tuple[Engine, Sequence]:
    """Return a sequence after two rounds with this method."""
    engine = Engine(models)
    row = engine.submit(Request(PROMPT, registry.get(first), max_new_tokens=N, stop_at_eos=False))
    while row.trace is None or len(row.trace.rounds) < 2:
        engine.step()
    return engine, row


def table_of(row: Sequence, size: int) -> np.ndarray:
    """Return the table of successors that the trace's rounds give, for any drafter."""
    assert row.trace is not None
    table = np.full((size, RANKS), -1, dtype=np.int32)
    at = len(PROMPT)
    for r in row.trace.rounds:
        root = row.committed[at - 1]
        for token, top in reversed(list(zip([root, *r.nodes.tokens], r.top_p, strict=True))):
            table[token, : len(top.tokens)] = top.tokens[:RANKS]
        at += len(r.emitted)
    return table


def test_inactive_recycling_table_is_updated_and_reused(models: Models) -> None:
    engine, row = run(models, "token-recycling")
    table = row.state.drafter
    steps(engine, row, "draft-model", 2)
    assert row.state.drafter is not table
    steps(engine, row, "autoregressive", 2)
    steps(engine, row, "token-recycling", 1, nodes=5)
    assert row.state.drafter is table, "a tree of another size uses the same table"
    assert (table.table == table_of(row, models.target.vocab_size)).all()
    steps(engine, row, "token-recycling", 1, nodes=9)
    assert row.state.drafter is table
    while not engine.is_idle:
        engine.step()
    assert row.trace is not None
    assert row.trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, N)
    assert not row.state.inactive
    assert models.drafter is not None
    assert not models.drafter.slots


def test_inactive_index_and_trie_follow_the_text(models: Models) -> None:
    engine, row = run(models, "prompt-lookup")
    index = row.state.drafter
    steps(engine, row, "lookahead-trie", 2)
    trie = row.state.drafter
    steps(engine, row, "draft-model", 2)
    steps(engine, row, "prompt-lookup", 1)
    assert row.state.drafter is index
    assert index.text == row.committed
    steps(engine, row, "lookahead-trie", 1)
    assert row.state.drafter is trie
    fresh = row.drafter.init_state(row, models)
    assert (trie.inserted, trie.trie.n_nodes) == (fresh.inserted, fresh.trie.n_nodes)
    steps(engine, row, "prompt-lookup", 1, ngram=2)
    assert row.state.drafter is not index, "another index is needed for other lengths"


def test_inactive_shared_trie_drops_the_prompt_at_the_end(device: str) -> None:
    models = model_helpers.make_models("llama", noise=0.15, device=device)
    engine = Engine(models)
    warm = registry.get("lookahead-trie").with_params(warm=True)
    row = engine.submit(Request(PROMPT, warm, max_new_tokens=N, stop_at_eos=False))
    while row.n_new < 3:
        engine.step()
    steps(engine, row, "draft-model", 1)
    trie = models.shared["lookahead-trie"]
    assert any(child.prompt for child in trie.root.children.values())
    while not engine.is_idle:
        engine.step()
    assert trie.root.children
    assert not any(child.prompt for child in trie.root.children.values())


def test_error_in_an_inactive_drafter_does_not_end_the_run(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, row = run(models, "token-recycling")
    steps(engine, row, "prompt-lookup", 1)

    def fails(self: TokenRecycling, row: Sequence, outcome: RoundFeedback) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(TokenRecycling, "observe", fails)
    while not engine.is_idle:
        engine.step()
    assert row.status == FINISHED
    assert isinstance(row.drafter, NGram)
