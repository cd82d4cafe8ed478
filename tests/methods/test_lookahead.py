"""Lookahead decoding: its pool and window compared with naive references, and its drafts in a run."""

from __future__ import annotations

from typing import Any

import model_helpers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.parts import Plan
from workbench.decoders.draft_verify.verification_input import VerificationInput
from workbench.engine import Engine, Models, Request, Sequence
from workbench.kernels.segment import Segment
from workbench.methods import registry
from workbench.methods.lookahead.drafter import Lookahead, LookaheadState, Pool, window_layout

pytestmark = pytest.mark.unchecked
PROMPT = model_helpers.repeating_prompt(13, period=5)
letters = st.lists(st.integers(0, 2), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=None, device=device)


# -- pool -------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40), st.integers(1, 3), st.integers(1, 6))
def test_pool_keeps_only_the_latest_n_grams(items: list[tuple[int, int]], guesses: int, most: int) -> None:
    pool, firsts, tails = Pool(guesses, most), list[int](), dict[int, list[int]]()
    for first, token in items:
        pool.add(first, (token,))
        firsts = [*(f for f in firsts if f != first), first]
        tails[first] = [token, *(t for t in tails.get(first, ()) if t != token)][:guesses]
        while sum(len(tails[f]) for f in firsts) > most:
            del tails[firsts.pop(0)]
        assert pool.n == sum(map(len, tails.values())) <= most
        assert {f: [tail[0] for tail, _ in pool.tails_after(f)] for f in range(4)} == {
            f: tails.get(f, []) for f in range(4)
        }


@settings(deadline=None)
@given(letters, letters, st.integers(2, 4), st.integers(1, 3))
def test_without_a_window_it_looks_up_n_grams_of_the_text(a: list[int], b: list[int], n: int, guesses: int) -> None:
    """Of all earlier occurrences of the newest token with n − 1 tokens after them, the latest distinct ones."""
    pool, text = Pool(guesses), a + b
    pool.read(a, n)
    pool.read(text, n, len(a))
    places = [i for i in range(len(text) - n, -1, -1) if text[i] == text[-1]]
    wanted = list(dict.fromkeys(tuple(text[i + 1 : i + n]) for i in places))[:guesses]
    assert [tail for tail, _ in pool.tails_after(text[-1])] == wanted


# -- window -----------------------------------------------------------------------------------------------------------


def test_golden_window() -> None:
    """W = 3, N = 4: the root and guesses at positions 1, 2; two rows below attend to the column above each guess."""
    places, parents, sees = window_layout(3, 3, torch.device("cpu"))
    assert places.tolist() == [1, 2, 1, 2, 3, 2, 3, 4]
    assert parents.tolist() == [-1, 0, -1, 0, 1, 2, 3, 4]
    assert [[i for i, seen in enumerate(row) if seen] for row in sees.tolist()] == [
        [0], [0, 1], [2], [0, 3], [0, 1, 4], [2, 5], [0, 3, 6], [0, 1, 4, 7],
    ]  # fmt: skip


def window_of(row: Sequence) -> list[list[int]]:
    assert isinstance(row.state.drafter, LookaheadState)
    return [list(guessed) for guessed in row.state.drafter.rows]


@pytest.mark.parametrize("follow", [False, True])
def test_a_new_row_is_a_step_of_jacobi_iteration(models: Models, follow: bool) -> None:
    """Each guess equals a plain forward pass over the text, row 0 up to its column, and the column above it."""
    method = registry.get("lookahead").with_params(window=4, ngram=4, follow=follow)
    engine, ask = Engine(models), model_helpers.next_logits_function(models.target.model)
    row = engine.submit(Request(PROMPT, method, max_new_tokens=60, stop_at_eos=False))
    first: LookaheadState = method.drafter.init_state(
        model_helpers.make_sequence(row.request, list(PROMPT), models), models
    )
    before, text, moved = first.rows, list(PROMPT), 0
    for _ in range(9):
        while len(row.committed) == len(text):
            engine.step()
        new, emitted = window_of(row)[-1], len(row.committed) - len(text)
        predicted = [
            int(ask([*text, *before[0][1 : c + 1], *(above[c] for above in before[1:])]).argmax())
            for c in range(len(before[0]))
        ]
        wanted = predicted if len(before) + 1 == 4 else predicted[1:]
        skip = emitted - 1 if follow else 0
        moved += emitted - 1
        assert new[: max(0, len(wanted) - skip)] == wanted[skip:]
        assert len(new) == len(wanted)
        assert [len(guessed) for guessed in window_of(row)] == [len(new)] * min(3, len(before) + 1)
        before, text = window_of(row), list(row.committed)
    assert moved, "no round accepted a draft"
    row.cancel()
    engine.step()


def test_wider_window_is_not_affected_by_a_narrower_one(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    """A narrower window drafts in between; the wider window is unchanged in its next round."""
    engine, method = Engine(models), registry.get("lookahead")
    row = engine.submit(Request(PROMPT, method.with_params(window=6, ngram=4), max_new_tokens=60, stop_at_eos=False))

    def rounds(n: int) -> None:
        end = (0 if row.trace is None else len(row.trace.rounds)) + n
        while row.trace is None or len(row.trace.rounds) < end:
            engine.step()

    rounds(4)
    wide, guesses = row.state.drafter, window_of(row)
    row.change(method=method, params={"window": 2, "ngram": 3})
    rounds(1)
    assert row.state.drafter is not wide
    rounds(3)
    assert [guess[1:] for guess in wide.rows] == [guess[1:] for guess in guesses], "but for the newest token"
    row.change(method=method, params={"window": 6, "ngram": 4})
    while not engine.is_idle:
        engine.step()
    assert not caplog.records
    assert row.committed[len(PROMPT) :] == model_helpers.hf_greedy(models.target.model, PROMPT, 60)


# -- drafts -----------------------------------------------------------------------------------------------------------


def run(models: Models, temperature: float = 0.0, **params: Any) -> Any:
    method = registry.get("lookahead").with_params(**params)
    return Engine(models).generate(Request(PROMPT, method, SamplingParams(temperature), 60, stop_at_eos=False))


def test_completely_accepted_draft_adds_the_bonus_token(models: Models) -> None:
    """A draft of N − 1 tokens emits N; the released code discards the last one."""
    whole = [r for r in run(models, ngram=3, depth=2).rounds if len(r.path) == 2]
    assert whole
    assert {len(r.emitted) for r in whole[:-1]} == {3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_run_records_the_pool_entry_of_each_draft(temperature: float, models: Models) -> None:
    trace = run(models, temperature, guesses=2)
    drafted = [r for r in trace.rounds if r.nodes.tokens]
    assert drafted
    for r in drafted:
        assert 1 <= r.signals["n-grams found"] <= 2
        assert r.signals["n-grams found"] <= r.signals["n-grams in the pool"]
        assert r.grown is not None
        assert r.grown.rules[0]["name"] == "n-gram pool"
        assert all(age is not None and 0 <= age <= r.index for age in r.grown.before)
    last = drafted[-1]
    assert last.signals["pool hits"] == sum(len(r.path) for r in trace.rounds[: last.index])
    assert {p.source for r in trace.rounds for p in r.probes} == {"lookahead"}


def test_requests_do_not_share_the_pool(models: Models) -> None:
    first, again = run(models), run(models)
    assert [r.nodes.tokens for r in first.rounds] == [r.nodes.tokens for r in again.rounds]
    assert "lookahead" not in models.shared


def test_draft_that_reads_the_window_changes_the_text(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    right, segment = run(models).token_ids, VerificationInput.segment

    def sees_probes(block: VerificationInput, row: Sequence, them: Models) -> Segment:
        made = segment(block, row, them)
        if block.probes is not None and made.attention_mask is not None:
            made.attention_mask[: 1 + len(block.tree), 1 + len(block.tree) :] = True
        return made

    monkeypatch.setattr(VerificationInput, "segment", sees_probes)
    assert run(models).token_ids != right


def test_drafts_and_window_share_the_positions_of_a_pass(models: Models) -> None:
    """With the largest window there are fewer drafts; the window is never left out."""
    trace = run(models, window=24, ngram=6, guesses=32, from_text=True, depth=16)
    assert trace.footer.warnings == []
    assert all(r.probes for r in trace.rounds)
    assert max(len(r.nodes.tokens) + len(r.probes) for r in trace.rounds) <= 127


def test_token_outside_the_pool_has_no_draft(models: Models) -> None:
    drafter = Lookahead(window=0)
    row = model_helpers.make_sequence(Request([1], registry.get("lookahead")), [1], models)
    row.state.drafter = drafter.init_state(row, models)
    row.state.drafter.pool.add(2, (3, 4))
    assert len(drafter.propose_one(row, Plan(4))) == 0
    row.state.drafter.pool.add(1, (3, 4))
    row.state.drafter.pool.add(1, (3, 5))
    tree = drafter.propose_one(row, Plan(4))
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([3, 5, 4], [-1, 0, 0])
    assert drafter.propose_one(row, Plan(1)).tokens.tolist() == [3]
