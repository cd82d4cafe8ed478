"""SWIFT: scores and surrogate compared with figures by hand, the search in a run, and a clean cache after drafts."""

from __future__ import annotations

import math
from typing import Any

import model_helpers
import numpy as np
import pytest
import torch

from workbench.engine import Engine, Models, Request, Sequence
from workbench.methods import registry
from workbench.methods.common.layer_skipping import evenly_skipped
from workbench.methods.swift.drafter import (
    KAPPA,
    NOISE,
    PATIENCE,
    bounds,
    initial_set,
    sets_one_swap_away,
    to_bits,
    to_halves,
)

PROMPT = model_helpers.random_prompt(9)
LAYERS = 6


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """A target of six layers: eight sublayers may be skipped."""
    return model_helpers.make_models("llama", noise=None, device=device, num_hidden_layers=LAYERS)


def rounds(models: Models, name: str, tokens: int = 60, **params: Any) -> Any:
    """Yield a run's sequence after each of its rounds."""
    engine = Engine(models)
    method = registry.get(name).with_params(policy="fixed", depth=3, **params)
    row = engine.submit(Request(PROMPT, method, max_new_tokens=tokens, seed=1, stop_at_eos=False))
    while not engine.is_idle:
        before = len(row.committed)
        engine.step()
        if row.slot is not None and len(row.committed) > before:
            yield row
    assert row.error is None


def matchness(models: Models, row: Sequence, window: int) -> float:
    """Return the matchness of the sequence's layer set on its window, with a cache that the whole model filled."""
    state, model = row.state.drafter, models.target.model
    start, texts = state.end - window, torch.tensor([row.committed], device=models.target.device)
    with torch.inference_mode():
        past = model(texts[:, :start], use_cache=True).past_key_values if start else None
        layers = model.model.layers
        hooks = [
            (layers[h // 2].mlp if h % 2 else layers[h // 2].self_attn).register_forward_hook(
                lambda m, a, out: (torch.zeros_like(out[0]), *out[1:]) if isinstance(out, tuple) else out * 0
            )
            for h in state.best
        ]
        predicted = model(texts[:, start : state.end], past_key_values=past, use_cache=True).logits[0].argmax(1)
        for hook in hooks:
            hook.remove()
    return float((predicted == texts[0, start + 1 : state.end + 1]).double().mean())


def test_skipped_layers_are_spread_evenly_and_the_ends_always_run() -> None:
    assert evenly_skipped(12, 12) == frozenset()
    kept = [[i for i in range(12) if 2 * i not in evenly_skipped(12, k)] for k in (8, 6, 4, 3, 2)]
    assert kept == [[0, 2, 3, 5, 6, 8, 9, 11], [0, 2, 4, 7, 9, 11], [0, 4, 7, 11], [0, 6, 11], [0, 11]]  # by hand
    for n in range(2, 14):
        sizes = [len(evenly_skipped(n, k)) for k in range(2, n + 1)]
        assert sizes == [2 * (n - k) for k in range(2, n + 1)]
    assert [len(initial_set(6, size)) for size in range(9)] == list(range(9))


def test_layer_sets_are_bits_and_a_swap_changes_two() -> None:
    bits = to_bits(frozenset({2, 5}), 4)
    assert bits.tolist() == [True, False, False, True]
    assert to_halves(bits) == {2, 5}
    assert {to_halves(b) for b in sets_one_swap_away(bits)} == {frozenset(s) for s in ({3, 5}, {4, 5}, {2, 3}, {2, 4})}


def test_golden_bounds_of_two_scores() -> None:
    """Sets that differ in two of four sublayers are one kernel length apart: k = (1 + √5 + 5/3) e^−√5. By hand."""
    a, b = to_bits(frozenset({2}), 4), to_bits(frozenset({3}), 4)
    k = (1 + math.sqrt(5) + 5 / 3) * math.exp(-math.sqrt(5))
    assert k == pytest.approx(0.5240, abs=1e-4)
    mean = (1 - k) / (1 + NOISE - k)  # of scores +1 and −1
    left = 1 - ((1 + NOISE) * (1 + k * k) - 2 * k * k) / ((1 + NOISE) ** 2 - k * k)
    found = bounds([(a, 0.9), (b, 0.5)], np.stack([a, b]))
    assert found == pytest.approx([mean + KAPPA * math.sqrt(left), -mean + KAPPA * math.sqrt(left)])
    far = to_bits(frozenset({4, 5}), 4)
    assert bounds([(a, 0.9), (b, 0.5)], far[None])[0] > found.max(), "unknown sets have a higher bound"


def test_score_of_the_drafting_set_is_its_matchness_and_never_falls_on_a_window(models: Models) -> None:
    scores: dict[int, list[float]] = {}
    for row in rounds(models, "swift", 50, ratio=0.5, window=8, enough=1.0):
        state = row.state.drafter
        if state.end is not None and len(row.committed) > state.end + 1:
            assert len(state.best) == state.size
            assert state.score == pytest.approx(matchness(models, row, 8))
            scores.setdefault(state.end, []).append(state.score)
    assert len(scores) > 3, "the window moved on"
    assert all(a == sorted(a) for a in scores.values())
    assert any(a[-1] > a[0] for a in scores.values()), "a better set was found"


def test_fewer_layers_are_skipped_where_matchness_is_low(models: Models) -> None:
    sizes = [row.state.drafter.size for row in rounds(models, "swift", 40, ratio=0.9, window=8)]
    assert sizes[0] == 7
    assert sizes[-1] < 7
    assert sizes.index(3) >= PATIENCE


def test_layer_signals_in_the_trace_equal_the_set(models: Models) -> None:
    for row in rounds(models, "swift", tokens=12, ratio=0.5, window=4):
        signals = row.trace.rounds[-1].signals
        run = {
            2 * layer + half
            for half, name in enumerate(("attention", "feed-forward"))
            for layer in range(LAYERS)
            if signals[f"layers that draft [{name}, {layer + 1}]"]
        }
        assert run == set(range(2 * LAYERS)) - row.state.drafter.best


@pytest.mark.parametrize(
    ("name", "params"), [("swift", {"ratio": 0.5, "window": 4}), ("unified-skip", {"speedup": 3.0})]
)
def test_drafts_leave_no_entries_in_the_cache(name: str, params: dict[str, Any], models: Models) -> None:
    """The committed entries equal a clean prefill's in every layer, including those that were skipped in drafting."""
    seen = 0
    for row in rounds(models, name, tokens=20, **params):
        model_helpers.assert_cache_equals_prefill(row)
        seen += any(s == "rejected" for s in row.trace.rounds[-1].nodes.status)
    assert seen, "a draft was rejected"


def test_remaining_draft_entries_would_change_the_text(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative case: if verification attends to the draft's entries instead of overwriting them, the text changes."""
    method = registry.get("unified-skip").with_params(policy="fixed", depth=3, speedup=2.0)
    model_helpers.assert_stale_cache_changes_text(models, PROMPT, method, monkeypatch)
