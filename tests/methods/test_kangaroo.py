"""Kangaroo's adapter: its KV cache equals a fresh prefill of the committed text after every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.kangaroo.drafter import ExitAdapter, KangarooState

PROMPT = model_helpers.random_prompt(9)


@pytest.fixture
def models(tmp_path: Path, device: str) -> Models:
    """A target with an untrained adapter after its first layer."""
    return model_helpers.make_models("llama", noise=None, device=device, heads=tmp_path / "heads")


def committed_entries(state: KangarooState) -> Tensor:
    """Return the keys and values of committed tokens, [2, H, n, d]."""
    assert state.kv_cache.n_used == state.kv_cache.n_stable == state.position - state.first
    return state.kv_cache._buffer[:, 0, :, : state.kv_cache.n_stable]


@pytest.mark.parametrize("temperature", [0.0, 2.0], ids=["greedy", "sampled"])
def test_kv_cache_equals_a_fresh_prefill_after_every_round(models: Models, temperature: float) -> None:
    models.target.lm_head.get_parameter("weight").data.mul_(
        0.2
    )  # flat distributions: untrained drafts are accepted now and then
    method = registry.get("kangaroo").with_params(policy="fixed", depth=3)
    engine = Engine(models)
    row = engine.submit(Request(PROMPT, method, SamplingParams(temperature), 40, seed=2, stop_at_eos=False))
    lengths = set()
    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        mine, place = committed_entries(row.state.drafter).clone(), row.state.drafter.position
        assert len(row.committed) - 1 - place in (0, 1), (
            "only the last token of a completely accepted draft is read later"
        )
        fresh = row.drafter.init_state(row, models)
        torch.testing.assert_close(mine, committed_entries(fresh)[:, :, : mine.shape[2]], rtol=0, atol=1e-12)
    assert row.error is None
    assert {1, 2} <= lengths, "drafts were rejected and accepted"


def test_completely_accepted_draft_is_read_to_its_end_in_the_next_round(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafter predicts the target's own tokens: each round ends with a token without a computed exit state."""
    target = models.target

    def all_of_it(self: ExitAdapter, x: Tensor, positions: Tensor, kv_cache: object = None) -> Tensor:
        kv_cache.append(x.new_zeros(2, 1, self.heads, x.shape[1], self.head_size))  # type: ignore[attr-defined]
        text = [*PROMPT, *model_helpers.hf_greedy(target.model, PROMPT, 40)]
        with torch.inference_mode():
            read = target.model.model(
                torch.tensor([text], device=target.device), use_cache=False, output_hidden_states=True
            )
        seen.extend(positions.tolist())
        assert torch.allclose(x[0], read.hidden_states[1][0, positions], atol=1e-9)
        return read.last_hidden_state[:, positions]

    seen: list[int] = []
    monkeypatch.setattr(ExitAdapter, "forward", all_of_it)
    method = registry.get("kangaroo").with_params(policy="fixed", depth=3)
    trace = Engine(models).generate(Request(PROMPT, method, max_new_tokens=16, stop_at_eos=False))
    assert [len(r.emitted) for r in trace.rounds] == [4, 4, 4, 4]
    assert seen == list(range(seen[0], seen[-1] + 1)), "every position once"


@pytest.mark.parametrize(
    "wrong", [{"heads": 0}, {"heads": 5}, {"heads": 32}, {"exit_layer": "1"}, {"exit_layer": None}, {"exit_layer": 1.5}]
)
def test_error_for_a_folder_with_wrong_shapes_has_a_remedy(wrong: dict[str, Any], models: Models) -> None:
    models.heads["kangaroo"].config["net"] |= wrong
    with pytest.raises(WorkbenchError, match=r"(?s)cannot be read.*Train or fetch the adapter again"):
        Engine(models).generate(Request(PROMPT, registry.get("kangaroo").with_params(), max_new_tokens=4))


def test_error_for_an_adapter_of_a_deeper_target_has_a_remedy(models: Models) -> None:
    models.heads["kangaroo"].config["net"]["exit_layer"] = 99
    with pytest.raises(WorkbenchError, match=r"after layer 99.*[Tt]rain kangaroo --target"):
        Engine(models).generate(Request(PROMPT, registry.get("kangaroo").with_params(), max_new_tokens=4))
