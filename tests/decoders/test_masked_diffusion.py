"""Decoding of a masked-diffusion model: compared with LLaDA's loop over the model's own forward."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import MethodUnavailableError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.engine.request import ENDED
from workbench.methods import registry
from workbench.methods.choice import choose
from workbench.models.loading import load_models
from workbench.service.choices import static_reasons
from workbench.trace import export
from workbench.trace.events import Trace, list_tentative_tokens

PROMPT = model_helpers.repeating_prompt(11, period=5)
N, MASK = 24, 7


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """A model of random weights that counts as a masked language model."""
    models = model_helpers.make_models("llama", noise=0.15, device=device)
    models.target.model.config.is_bidirectional = True
    models.target.model.config.mask_token_id = MASK
    return models


def make_request(n: int = N, sampling: SamplingParams | None = None, seed: int = 0, **values: Any) -> Request:
    method = registry.get("llada").with_params(**values)
    return Request(PROMPT, method, sampling or SamplingParams(), n, seed, stop_at_eos=False)


@torch.inference_mode()
def llada(model: Any, prompt: list[int], n: int, block: int, per_round: int, shift: int = 0) -> tuple[list[int], int]:
    """Return the text and the number of forwards of LLaDA's greedy loop, without a cache."""
    ids, n_forwards = torch.tensor([[*prompt, *[MASK] * n]], device=model.device), 0
    attention = torch.zeros(1, 1, ids.shape[1], ids.shape[1], dtype=model.dtype, device=model.device)
    for start in range(len(prompt), len(prompt) + n, block):
        stop = min(start + block, len(prompt) + n)
        while (ids[0, start:stop] == MASK).any():
            logits = model(ids, attention_mask=attention, use_cache=False).logits[0].roll(shift, 0)
            n_forwards += 1
            logits[:, MASK] = -torch.inf
            p, token = logits.softmax(1).max(1)
            p[ids[0] != MASK] = -1
            p[:start], p[stop:] = -1, -1
            for at in p.topk(min(per_round, int((p >= 0).sum()))).indices.tolist():
                ids[0, at] = token[at]
    return ids[0, len(prompt) :].tolist(), n_forwards


@pytest.mark.parametrize(("block", "per_round"), [(8, 1), (24, 3), (5, 4), (1, 1), (64, 64)])
def test_its_text_is_that_of_lladas_loop(models: Models, block: int, per_round: int) -> None:
    trace = Engine(models).generate(make_request(block=block, per_round=per_round))
    text, n_forwards = llada(models.target.model, PROMPT, N, block, per_round)
    assert trace.token_ids == text
    assert len(trace.rounds) == n_forwards
    assert all(r.target_forwards == 1 for r in trace.rounds)


def test_a_model_that_was_autoregressive_predicts_from_the_state_before(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dream's shift: position i is predicted from the state at position i − 1."""
    monkeypatch.setattr(models.target.model.config, "predicts_next", True, raising=False)
    trace = Engine(models).generate(make_request(block=8, per_round=2))
    assert trace.token_ids == llada(models.target.model, PROMPT, N, 8, 2, shift=1)[0]
    assert trace.token_ids != llada(models.target.model, PROMPT, N, 8, 2)[0]


def check(trace: Trace) -> None:
    """Check that positions follow from the rounds alone, and that a saved trace is read back as it was."""
    begin = len(trace.header.prompt_tokens)
    for n in range(1, len(trace.rounds) + 1):
        end = begin + sum(len(before.emitted) for before in trace.rounds[:n])
        assert all(token.position > end for token in list_tentative_tokens(trace.rounds[:n])), "a masked one is before"
    assert list_tentative_tokens(trace.rounds) == []
    assert export.read_json_lines(export.to_json_lines(trace)) == trace
    assert export.read_parquet(export.to_parquet(trace)) == trace


@pytest.mark.parametrize(
    "values", [{"block": 24}, {"block": 24, "rule": "random"}, {"block": 8, "per_round": 3}], ids=str
)
def test_tokens_are_filled_out_of_order_and_recorded(models: Models, values: dict[str, Any]) -> None:
    trace = Engine(models).generate(make_request(**values))
    check(trace)
    assert any(r.placed and not r.emitted for r in trace.rounds), "a later position is filled first"
    assert not any(r.revoked for r in trace.rounds)


def test_block_of_one_writes_from_left_to_right(models: Models) -> None:
    trace = Engine(models).generate(make_request(block=1))
    assert [len(r.emitted) for r in trace.rounds] == [1] * N
    assert not any(r.placed for r in trace.rounds)


def test_sampled_text_depends_on_the_seed_alone(models: Models) -> None:
    def text(seed: int, beside: int = 0) -> list[int]:
        requests = [make_request(sampling=SamplingParams(0.9), seed=s, block=8) for s in (seed, *range(beside))]
        return Engine(models).generate_all(requests)[0].token_ids

    assert text(3) == text(3, beside=2) != text(4)


def test_sequences_of_different_lengths_share_forwards_and_change_parameters(models: Models) -> None:
    engine = Engine(models)
    short, long, changed = (engine.submit(make_request(n, block=8)) for n in (9, 24, 24))
    while not engine.is_idle and changed.n_new < 3:
        engine.step()
    changed.change(params={"per_round": 4})
    while any(sequence.status not in ENDED for sequence in (short, long, changed)):
        engine.step()
    assert short.trace is not None
    assert long.trace is not None
    assert changed.trace is not None
    assert short.trace.token_ids == llada(models.target.model, PROMPT, 9, 8, 1)[0]
    assert long.trace.token_ids == llada(models.target.model, PROMPT, 24, 8, 1)[0]
    assert len(changed.trace.rounds) < 24
    check(changed.trace)
    assert not models.target.slots


def test_a_text_ends_at_its_end_token(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = llada(models.target.model, PROMPT, N, 8, 1)[0]
    monkeypatch.setattr(models.target.model.generation_config, "eos_token_id", whole[5])
    request = make_request(block=8)
    request.stop_at_eos = True
    trace = Engine(models).generate(request)
    assert trace.token_ids == whole[: whole.index(whole[5]) + 1]
    assert trace.footer.reason == "eos"
    assert list_tentative_tokens(trace.rounds) == []


def test_kinds_of_targets_and_methods_are_kept_apart(models: Models) -> None:
    causal = model_helpers.make_models("llama", noise=None, device=str(models.target.device))
    with pytest.raises(MethodUnavailableError, match="from left to right"):
        Engine(causal).submit(make_request())
    with pytest.raises(MethodUnavailableError, match="masked-diffusion model"):
        Engine(models).submit(Request(PROMPT, registry.get("autoregressive"), max_new_tokens=4))
    reasons = lambda of: lambda name: of.unsupported_reason(registry.get(name).needs)  # noqa: E731
    assert choose(reasons(models))[0] == "llada"
    assert choose(reasons(causal))[0] == "prompt-lookup"


def test_a_masked_model_is_no_draft_model(tmp_path: Path) -> None:
    folder = model_helpers.save_random_llama(tmp_path / "target")
    masked = Path(shutil.copytree(folder, tmp_path / "masked"))
    config = json.loads((masked / "config.json").read_text())
    (masked / "config.json").write_text(json.dumps(config | {"is_bidirectional": True, "mask_token_id": MASK}))
    loaded = load_models(str(folder), str(masked), "cpu")
    assert loaded.drafter is None
    assert "cannot draft tokens from left to right" in loaded.drafter_problem
    assert load_models(str(masked), None, "cpu").mask_token == MASK
    reason = static_reasons(str(masked), None)
    assert "masked-diffusion model" in reason(())
    assert reason(registry.get("llada").needs) == ""
    assert "from left to right" in static_reasons(str(folder), None)(registry.get("llada").needs)
