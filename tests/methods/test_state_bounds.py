"""Size of drafter state on long texts: it stays within its bound in entries and bytes.

No model runs: a text of 200,000 tokens is replayed (`workbench.bench.simulated_rounds`). The cost of a round is
counted, not timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sizes import size_of

from workbench.bench.simulated_rounds import SimulatedSequence, stub_models
from workbench.decoders.draft_verify.inspectable_state import InspectableState, inspectable_state_of
from workbench.methods import registry
from workbench.methods.lookahead_trie.drafter import Trie
from workbench.methods.prompt_lookup.drafter import FORGOTTEN, NGramIndex
from workbench.methods.suffix.drafter import STORED, Text

pytestmark = pytest.mark.unchecked
KEPT = ("prompt-lookup", "suffix", "stand", "adaptive-trigram", "token-recycling", "lookahead-trie", "lookahead")
VOCABULARY, PROMPT, AT_ONCE, OF_A_LONG_TEXT = 5_000, 2_000, 24, 48
"""Vocabulary size, prompt length and minimum tokens per round, so that a test is short. The longest texts have more
tokens per round: all of them are learnt, and the tables are full before half of the text.
"""


def stream(n: int, seed: int = 0) -> list[int]:
    """Return a text with the frequencies of words, in which earlier passages recur now and then."""
    random = np.random.default_rng(seed)
    text = np.minimum(random.zipf(1.25, n) - 1, VOCABULARY - 1)
    for start in range(4_000, n - 200, 2_000):
        begin = random.integers(0, start - 200)
        text[start : start + 100] = text[begin : begin + 100]
    return text.tolist()


def soak(
    method: str, n: int, each: Callable[[InspectableState, SimulatedSequence], None], at_once: int = AT_ONCE
) -> tuple[InspectableState, SimulatedSequence]:
    """Replay a text of `n` tokens; call `each` a few times on the way."""
    configured = registry.get(method).with_params(**({"from_text": True} if method == "lookahead" else {}))
    reader = SimulatedSequence.of(configured, stub_models(VOCABULARY), stream(n), PROMPT)
    often, rounds = max(1, (n - PROMPT) // at_once // 20), 0
    while reader.position + 2 * at_once < len(reader.text):
        reader.plan()
        reader.observe(reader.verify(reader.propose(), at_once))
        rounds += 1
        if rounds % often == 0:
            state = inspectable_state_of(reader.sequence.state.drafter)
            assert state is not None
            each(state, reader)
    state = inspectable_state_of(reader.sequence.state.drafter)
    assert state is not None
    return state, reader


def assert_within_bound(state: InspectableState, reader: SimulatedSequence) -> None:
    shown = state.summarise(0)
    assert shown.entries <= shown.bound
    assert shown.n_bytes <= shown.most_bytes


def check_bounds(method: str, n: int, at_once: int = AT_ONCE) -> None:
    """Check that the state stays within its bound and uses no more memory than it reports."""
    state, reader = soak(method, n, assert_within_bound, at_once)
    tokens = {
        id(token) for text in (reader.text, reader.sequence.committed) for token in text
    }  # part of the sequence, not of the state
    shown, real = state.summarise(3), size_of(state, set(tokens))
    assert real <= 1.15 * shown.n_bytes + 4096, f"{real} bytes, reported as {shown.n_bytes}"
    assert shown.n_bytes <= 4 * real, f"{real} bytes, reported as {shown.n_bytes}"
    assert real <= 1.15 * shown.most_bytes + 4096
    assert shown.top


@pytest.mark.parametrize("method", KEPT)
def test_thirty_thousand_tokens_stay_within_the_bound(method: str) -> None:
    check_bounds(method, 30_000)


@pytest.mark.slow
@pytest.mark.on_demand
@pytest.mark.parametrize("method", KEPT)
def test_two_hundred_thousand_tokens_stay_within_the_bound(method: str) -> None:
    check_bounds(method, 200_000, OF_A_LONG_TEXT)


def test_index_drops_its_oldest_tokens_and_finds_the_rest() -> None:
    index, text = NGramIndex(3, most=100), [7, 8, 9, *range(1000, 1400), 7, 8]
    for token in text:
        index.extend([token])
        assert len(index.text) < 100 + FORGOTTEN
    assert index.continuation(2, 4, latest=True) == [], "7 8 9 was at the beginning"
    index.extend([1395, 1396])
    assert index.continuation(2, 2, latest=False) == [1397, 1398]
    fresh = NGramIndex(3)
    fresh.extend(index.text)
    assert {g: len(e) for g, e in fresh._ends.items()} == {g: len(e) for g, e in index._ends.items()}


def test_text_drops_its_oldest_tokens() -> None:
    text = Text()
    text.extend(range(100))
    text.cut(30)
    assert text.tokens.tolist() == list(range(70, 100))
    assert text.matches([98, 99], 2) == []
    assert [places.tolist() for places in text.matches([80], 1)] == [[11]]


def test_text_of_the_suffix_drafter_is_cut() -> None:
    reader = SimulatedSequence.of(
        registry.get("suffix").with_params(), stub_models(VOCABULARY), stream(STORED + 900), STORED - 100
    )
    while reader.position < STORED + 400:
        reader.plan()
        reader.observe(reader.verify(reader.propose(), 20))
    assert reader.sequence.state.drafter.text.n <= STORED
    assert reader.sequence.state.drafter.text.tokens[-5:].tolist() == reader.sequence.committed[-5:]


def test_trie_drops_outputs_and_never_a_running_prompt() -> None:
    trie = Trie(most=200)
    for i in range(60):
        trie.insert([i, i + 1], request=1)
    for i in range(5_000):
        trie.insert([1000 + i, 5, 6], None)
        trie.insert([1000 + i, 5, 6], None)  # one squeeze keeps branches that came twice
        trie.keep_bound()
        assert trie.n_nodes <= 200 + 3
    assert all(trie.find([i, i + 1]) is not None for i in range(60))
    assert trie.find([5999, 5]) is not None, "the newest branch remains"
    assert trie.find([1000]) is None


# -- cost of a round, counted ------------------------------------------------------------------------------------------


def lines_per_round(method: str, context: int, rounds: int = 12) -> float:
    """Return the mean number of Python lines that a round of a drafter runs after this many tokens."""
    models: Any = stub_models(VOCABULARY)
    reader = SimulatedSequence.of(registry.get(method).with_params(), models, stream(context + 60 * rounds), context)
    count = 0

    def line(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if "methods" not in Path(frame.f_code.co_filename).parts:
            return None
        count += event == "line"
        return line

    for _ in range(rounds):
        reader.plan()
        sys.settrace(line)
        try:
            tree = reader.propose()
        finally:
            sys.settrace(None)
        outcome = reader.verify(tree)
        sys.settrace(line)
        try:
            reader.observe(outcome)
        finally:
            sys.settrace(None)
    return count / rounds


@pytest.mark.parametrize("method", [*KEPT, "aggressive", "jacobi"])
def test_a_round_runs_hardly_more_code_after_a_longer_text(method: str) -> None:
    """With sixteen times the context, a scan in numpy is still one line; a Python loop runs sixteen times as many."""
    short, long = lines_per_round(method, 500), lines_per_round(method, 8_000)
    assert long <= 4 * short + 400, f"{short:.0f} lines after 500 tokens, {long:.0f} after 8,000"
