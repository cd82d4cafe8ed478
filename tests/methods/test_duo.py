"""Duo-LLM: columns of the small MLPs, the prompt that selects them, and the KV cache after a draft."""

from __future__ import annotations

import gc
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.engine.request import Sequence
from workbench.methods import registry
from workbench.methods.duo.drafter import STEP, most_active

PROMPT, WIDTH = model_helpers.random_prompt(9), 32
DUO = registry.get("duo")


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=None, device=device, intermediate_size=WIDTH)


def rounds(models: Models, prompt: list[int], **params: Any) -> Any:
    """Yield a run's sequence after each of its rounds."""
    engine = Engine(models)
    method = DUO.with_params(policy="fixed", depth=3, **params)
    row = engine.submit(Request(prompt, method, max_new_tokens=20, stop_at_eos=False))
    while not engine.is_idle:
        before = len(row.committed)
        engine.step()
        if row.slot is not None and len(row.committed) > before:
            yield row
    assert row.error is None


def kept_columns(row: Sequence) -> list[list[int]]:
    """Return, per layer, the rows of the target's gate projection that the small MLP kept."""
    own, small = (m.model.layers for m in (row.models.target.model, row.state.drafter.shared_copy.model))
    return [
        [int((g.mlp.gate_proj.weight == line).all(1).nonzero()) for line in s.mlp.gate_proj.weight]
        for g, s in zip(own, small, strict=True)
    ]


def column_contributions(models: Models, text: list[int]) -> list[torch.Tensor]:
    """Return, per layer, how much each column adds to the residual stream in a plain pass over the text."""
    layers, taken = models.target.model.model.layers, dict[int, torch.Tensor]()
    hooks = [
        layer.mlp.down_proj.register_forward_pre_hook(lambda m, a, i=i: taken.__setitem__(i, a[0][0]))
        for i, layer in enumerate(layers)
    ]
    with torch.inference_mode():
        models.target.model(torch.tensor([text], device=models.target.device), use_cache=False)
    for hook in hooks:
        hook.remove()
    return [taken[i].abs().mean(0) * layer.mlp.down_proj.weight.norm(dim=0) for i, layer in enumerate(layers)]


def test_golden_columns() -> None:
    asked = torch.tensor([0.5, 0.1, 0.9, 0.3])
    assert most_active(asked, 0.5).tolist() == [0, 2]
    assert most_active(asked, 0.05).tolist() == [2], "one at least"
    wide = torch.arange(300.0)
    assert most_active(wide, 0.3).tolist() == list(range(300 - 2 * STEP, 300)), "90 columns are two steps"
    assert len(most_active(wide, 1.0)) == 300


def test_small_mlps_keep_the_columns_most_active_on_the_prompt(models: Models) -> None:
    found = {}
    for seed in (0, 5):
        prompt = model_helpers.random_prompt(9, seed=seed)
        row = next(rounds(models, prompt, share=0.25))
        adds = column_contributions(models, prompt)
        found[seed] = kept_columns(row)
        assert found[seed] == [sorted(a.topk(WIDTH // 4).indices.tolist()) for a in adds]
        shares = [float(a[chosen].sum() / a.sum()) for a, chosen in zip(adds, found[seed], strict=True)]
        drawn = row.trace.rounds[-1].signals
        assert [drawn[f"retained activation share [feed-forward, {i + 1}]"] for i in range(3)] == pytest.approx(shares)
    assert found[0] != found[5]


def test_sequences_with_one_prompt_share_a_weight_sharing_copy(models: Models) -> None:
    engine = Engine(models, max_sequences=3)
    prompts = (PROMPT, PROMPT, model_helpers.random_prompt(9, seed=5))
    rows = [engine.submit(Request(p, DUO.with_params(share=0.25), max_new_tokens=12)) for p in prompts]
    while not all(row.is_open for row in rows):
        engine._admit()
    twins = [row.state.drafter.shared_copy for row in rows]
    assert twins[0] is twins[1]
    assert twins[0] is not twins[2]
    assert len(models.shared["duo"]) == 2
    while not engine.is_idle:
        engine.step()
    del twins, rows
    gc.collect()
    assert len(models.shared["duo"]) == 0


def test_layers_that_would_lose_most_keep_larger_mlps(models: Models) -> None:
    small = next(rounds(models, PROMPT, share=0.25)).state.drafter.retained_shares
    row = next(rounds(models, PROMPT, share=0.25, big=2))
    left = max(small)
    assert row.state.drafter.retained_shares == [left if share == left else 1.0 for share in small]
    assert [len(columns) for columns in kept_columns(row)] == [
        WIDTH // 4 if share == left else WIDTH for share in small
    ]


def test_smaller_mlps_are_accepted_less_often(models: Models) -> None:
    """With all columns the drafter is the target itself, and all drafts are accepted."""
    request = [
        Request(PROMPT, DUO.with_params(policy="fixed", depth=3, share=s), SamplingParams(1.0), 60) for s in (1, 0.5)
    ]
    passes = [len(Engine(models).generate(r).rounds) for r in request]
    assert passes[0] < passes[1]


def test_drafts_leave_no_entries_in_the_cache(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed entries equal a clean prefill's; entries left by the small MLPs would change the text."""
    for row in rounds(models, PROMPT, share=0.25):
        model_helpers.assert_cache_equals_prefill(row)
    method = DUO.with_params(policy="fixed", depth=3, share=0.25)
    model_helpers.assert_stale_cache_changes_text(models, PROMPT, method, monkeypatch)
