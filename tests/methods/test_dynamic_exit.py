"""DEL: its table compared with sums by hand, and its acceptance counts compared with the target's hidden states."""

from __future__ import annotations

from typing import Any

import model_helpers
import numpy as np
import pytest
import torch

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request, Sequence
from workbench.methods import registry
from workbench.methods.dynamic_exit.drafter import PRIOR, DynamicExit, ExitStatistics, tokens_per_layer
from workbench.methods.dynamic_exit.policy import TokensPerLayer

PROMPT = model_helpers.random_prompt(9)


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """A target of six layers."""
    return model_helpers.make_models("llama", noise=None, device=device, num_hidden_layers=6)


def run_to_end(
    models: Models, temperature: float = 0.0, tokens: int = 40, **params: Any
) -> tuple[Sequence, ExitStatistics]:
    """Run a request to its end; return its sequence and the drafter's last state."""
    engine = Engine(models)
    method = registry.get("del").with_params(**params)
    row = engine.submit(Request(PROMPT, method, SamplingParams(temperature), tokens, seed=2, stop_at_eos=False))
    ledger = None
    while not engine.is_idle:
        engine.step()
        ledger = row.state.drafter or ledger
    assert row.error is None
    assert isinstance(ledger, ExitStatistics)
    return row, ledger


def test_golden_tokens_per_layer() -> None:
    """α = ½ and ¾ at exits 2 and 4 of 8; 1 + α + α² over d · E + 8. By hand."""
    found = tokens_per_layer(np.array([0.5, 0.75]), np.array([2, 4]), 2, 8)
    assert found.tolist() == [
        pytest.approx([1 / 8, 1.5 / 10, 1.75 / 12]),
        pytest.approx([1 / 8, 1.75 / 12, 2.3125 / 16]),
    ]
    with_head = tokens_per_layer(np.array([0.5]), np.array([2]), 1, 8, head_cost=4.0)
    assert with_head.tolist() == [pytest.approx([1 / 12, 1.5 / 18])]


def planned(hits: list[float], trials: float = 10.0, head: float = 0.0) -> tuple[int, int]:
    """(exit, length) for acceptances of exits 1, 2, 4 of 8 layers."""
    m = len(hits)
    ledger = ExitStatistics([1, 2, 4], 8, head, np.array(hits), np.full(m, trials), np.zeros((4, m)))
    rates = ledger.rates(6)
    depth = int(rates.max(0).argmax())
    return ledger.layers[ledger.best(depth)], depth


def test_plan_is_the_best_cell_of_the_table() -> None:
    assert planned([0.0, 0.0, 0.0])[1] == 0
    assert planned([9.0, 9.0, 9.0])[0] == 1
    assert planned([1.0, 9.0, 9.5]) == (2, 6)
    assert planned([0.0, 0.0, 9.9])[0] == 4
    assert planned([0.0, 5.0, 0.0])[1] == 1
    assert planned([0.0, 3.0, 0.0], head=6.0)[1] == 0, "an LM head that costs as much as six layers"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_exit_is_counted_once_per_position_of_the_text(temperature: float, models: Models) -> None:
    """Counting positions after a rejection would give more trials than tokens."""
    row, ledger = run_to_end(models, temperature, policy="fixed", depth=3, remembering=1.0)
    assert row.trace is not None
    assert any("rejected" in r.nodes.status for r in row.trace.rounds)
    n = row.n_new - len(row.trace.rounds[-1].emitted)  # the last round ends the text and is not counted
    assert ledger.trials.tolist() == [n + 1] * len(ledger.layers)
    model, text = models.target.model, torch.tensor([row.committed], device=models.target.device)
    with torch.inference_mode():
        read = model(text, use_cache=False, output_hidden_states=True).hidden_states
        at = slice(len(PROMPT) - 1, len(PROMPT) - 1 + n)
        distributions = [
            model.lm_head(model.model.norm(read[layer][0, at])).float().softmax(1) for layer in ledger.layers
        ]
    wanted = text[0, len(PROMPT) : len(PROMPT) + n]
    right = [(p.argmax(1) == wanted).double() for p in distributions]
    assert ledger.hits.tolist() == [PRIOR + float(r.sum()) for r in right]
    assert ledger.hits.max() > PRIOR
    sure = [p.amax(1).double() for p in distributions]
    sums = [[float((s * (1 - r)).sum()), float((s * r).sum())] for s, r in zip(sure, right, strict=True)]
    np.testing.assert_allclose(ledger.confidence_sums[:2].T, sums, rtol=1e-5)
    assert (ledger.confidence_sums[2] + ledger.confidence_sums[3]).tolist() == [n] * len(ledger.layers)


def test_table_in_the_trace_determined_the_plan(models: Models) -> None:
    row, _ = run_to_end(models, depth=3, exits_seen=2)
    assert row.trace is not None
    for r in row.trace.rounds:
        cells = {k: v for k, v in r.signals.items() if k.startswith("expected tokens per layer [")}
        assert len(cells) == 2 * 4
        best = max(cells, key=lambda name: cells[name])
        assert r.signals["planned depth"] == int(best.rstrip("]").split(", ")[1])
        assert len(r.nodes) <= r.signals["planned depth"]
        if r.nodes.tokens:
            assert best.startswith(f"expected tokens per layer [exit {r.signals['exit layer']},")


def test_exit_adapts_to_another_kind_of_text() -> None:
    """Earlier rounds decay: after 1 / (1 − ω) new ones they weigh less than half."""
    one, m = np.ones(2), 2
    ledger = ExitStatistics([1, 4], 8, 0.0, PRIOR * one, one, np.zeros((4, m)))
    for _ in range(40):
        ledger.count(np.array([[True], [True]]), np.full((2, 1), 0.9), 0.9)
    assert ledger.layers[ledger.best(3)] == 1
    n = 0
    while ledger.layers[ledger.best(3)] == 1 and n < 30:
        n += 1
        ledger.count(np.array([[False], [True]]), np.full((2, 1), 0.4), 0.9)
    assert n <= 10
    assert ledger.threshold(1) == 0.0, "never wrong: no stopping point"
    assert 0.4 < ledger.threshold(0) < 0.9


def test_exits_are_spread_below_the_last_layer() -> None:
    assert DynamicExit(exits_seen=5).layers(12) == [1, 3, 5, 7, 9]
    assert DynamicExit(exits_seen=32).layers(4) == [1, 2]
    assert DynamicExit(exits_seen=1).layers(30) == [1]
    assert DynamicExit().layers(1) == [1]


def test_with_another_drafter_the_policy_plans_its_maximum(models: Models) -> None:
    row = model_helpers.make_sequence(
        Request(PROMPT, registry.get("prompt-lookup"), max_new_tokens=4), list(PROMPT), models
    )
    assert TokensPerLayer(depth=3).plan(row, [0.5]).depth == 3
