"""Suffix decoding compared with suffixes counted one by one, its example figures, its store, and drafts in a run."""

from __future__ import annotations

from collections import Counter

import model_helpers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.parts import Plan
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.suffix import drafter as suffix
from workbench.methods.suffix.drafter import END, Guess, Suffix, Text
from workbench.trace.metrics import summary

Path = tuple[int, ...]
letters = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def text_of(*texts: list[int]) -> Text:
    text = Text()
    for tokens in texts:
        text.extend(tokens)
    return text


def after(text: list[int], string: Path) -> Counter[int]:
    """Return the tokens after each occurrence of a string, found one by one."""
    n = len(string)
    return Counter(text[i + n] for i in range(len(text) - n) if tuple(text[i : i + n]) == string)


def naive(
    text: list[int], string: tuple[int, ...], budget: int, depth: int, least: float
) -> dict[tuple[int, ...], float]:
    """Return the probabilities of the most likely paths after a string, from substring counts."""
    chances: dict[Path, float] = {}
    unread: dict[Path, float] = {(): 1.0}
    while unread:
        path, chance = unread.popitem()
        follows = after(text, (*string, *path))
        for token, count in follows.items():
            below = chance * count / follows.total()
            if below >= least and len(path) < depth:
                chances[(*path, token)] = unread[(*path, token)] = below
    return dict(sorted(chances.items(), key=lambda item: -item[1])[:budget])


def paths(guess: Guess) -> dict[Path, float]:
    nodes = range(len(guess.tokens))
    found = {tuple(guess.tokens[i] for i in model_helpers.path_to(guess.parents, n)): guess.probs[n] for n in nodes}
    assert len(found) == len(guess.tokens), "siblings are distinct"
    return found


@settings(deadline=None, max_examples=150)
@given(letters, letters, st.integers(1, 9), st.integers(1, 4), st.sampled_from([0.0, 0.1, 0.3, 1.0]))
def test_draft_equals_the_one_from_substring_counts(
    a: list[int], b: list[int], most: int, depth: int, least: float
) -> None:
    """Over all match lengths, each with its budget, the draft has the largest sum of probabilities."""
    drafter, text = Suffix(nodes=most, longest=8, least=least), a + b
    guess = drafter.draft(text_of(a, b), text, Plan(depth))
    sums = {0: 0.0}
    for m in range(1, min(8, len(text)) + 1):
        sums[m] = sum(naive(text, tuple(text[-m:]), min(most, m), depth, least).values())
    assert guess.score == pytest.approx(max(sums.values()))
    wanted = naive(text, tuple(text[-guess.matched :]), 99, depth, least) if guess.matched else {}
    for path, chance in paths(guess).items():
        assert wanted[path] == pytest.approx(chance)


def test_matches_end_after_the_longest() -> None:
    text = text_of([7, 1, 2, 3, 9, 1, 2, 4, 1, 2])
    found = text.matches([7, 1, 2, 3, 9, 1, 2, 4, 1, 2], 64)
    assert [places.tolist() for places in found] == [[3, 7], [3, 7]]  # except the newest tokens themselves


def test_one_earlier_occurrence_has_probability_one() -> None:
    """The released code also counts the newest tokens and gives ½ for the first node: see `differences`."""
    tokens = [5, 6, 7, 8, 5, 6]
    guess = Suffix().draft(text_of(tokens), tokens, Plan(16))
    assert (guess.tokens, guess.probs, guess.matched, guess.score) == ([7, 8], [1.0, 1.0], 2, 2.0)


def test_golden_two_branches() -> None:
    """After [1]: 2 twice, 3 once; after [1, 2]: 4 and 5. By hand: ⅔, then ⅓, the first found first."""
    tokens = [1, 2, 4, 1, 2, 5, 1, 3, 9, 1]
    guess = Suffix(offset=3.0).draft(text_of(tokens), tokens, Plan(2))
    assert paths(guess) == pytest.approx({(2,): 2 / 3, (3,): 1 / 3, (2, 5): 1 / 3, (2, 4): 1 / 3})
    assert guess.score == pytest.approx(5 / 3)
    assert paths(Suffix(offset=3.0, least=0.5).draft(text_of(tokens), tokens, Plan(2))) == {(2,): pytest.approx(2 / 3)}
    chain = Suffix(offset=3.0, branches=False).draft(text_of(tokens), tokens, Plan(2))
    assert chain.tokens == [2, 5]  # the most frequent, then the newest of equals
    assert chain.parents == [-1, 0]


def test_draft_length_depends_on_the_match_length() -> None:
    long = list(range(20))
    for m in (1, 3, 7):
        tokens = [*long, 50, *long[:m]]
        assert len(Suffix().draft(text_of(tokens), tokens, Plan(16)).tokens) == m
        assert len(Suffix(factor=2.0).draft(text_of(tokens), tokens, Plan(16)).tokens) == 2 * m
        assert Suffix().draft(text_of(tokens), tokens, Plan(16, nodes=2)).tokens == long[m : m + min(m, 2)]
    assert Suffix().draft(text_of(long), long, Plan(16)).tokens == []


def test_store_does_not_continue_after_the_end_of_a_text() -> None:
    store = text_of([1, 2, END], [3, 1, END], [2, 4, END])
    assert Suffix(factor=8.0).draft(store, [1], Plan(16)).tokens == [2]
    assert Suffix(factor=8.0).draft(store, [3, 1], Plan(16)).tokens == [2]


def test_store_drops_the_oldest_texts_as_a_whole() -> None:
    store = Text()
    for i in range(40):
        store.extend([*range(100 * i, 100 * i + 50), END])
    store.forget(51 * 10 + 20)
    assert store.n == 51 * 10
    assert store.tokens[0] == 3000
    store.forget(3)
    assert store.n == 0


def test_earlier_runs_are_used_only_if_warm(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = model_helpers.make_models("llama", noise=None, device=device)
    engine, method, prompt = Engine(models), registry.get("suffix"), model_helpers.random_prompt(9)
    request = Request(prompt, method, max_new_tokens=40, stop_at_eos=False)
    first, again = engine.generate(request), engine.generate(request)
    assert [r.nodes.tokens for r in first.rounds] == [r.nodes.tokens for r in again.rounds]
    assert "suffix" not in models.shared
    warm = Request(prompt, method.with_params(warm=True), max_new_tokens=40, stop_at_eos=False)
    cold, warmed = engine.generate(warm), engine.generate(warm)
    assert first.token_ids == cold.token_ids == warmed.token_ids
    assert summary(warmed)["tau"] > max(2.0, summary(cold)["tau"])
    assert any(r.signals["draft from earlier runs"] for r in warmed.rounds)
    store = models.shared["suffix"]
    assert store.tokens.tolist() == [*cold.token_ids, END, *warmed.token_ids, END], "outputs, and no prompt"
    monkeypatch.setattr(suffix, "STORED", 100)
    for _ in range(6):
        engine.generate(warm)
        assert store.n <= 100


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_run_records_match_length_and_expected_acceptance(temperature: float, device: str) -> None:
    models = model_helpers.make_models("llama", noise=None, device=device)
    request = Request(model_helpers.repeating_prompt(16), registry.get("suffix"), SamplingParams(temperature), 40)
    drafted = [r for r in Engine(models).generate(request).rounds if r.nodes.tokens]
    assert drafted
    for r in drafted:
        assert 1 <= r.signals["matched tokens"] <= 64
        assert 0 < r.signals["expected tokens"] <= len(r.nodes.tokens) + 1e-9
        assert len(r.nodes.tokens) <= r.signals["matched tokens"]
