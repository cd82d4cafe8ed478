"""A draft model whose embedding has another number of rows than the target's, with the same tokenizer."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import model_helpers
import pytest
import torch

from workbench.bench.goodness import chi_square, count_firsts, joint_distribution
from workbench.core.errors import ModelError
from workbench.core.sampling import SamplingParams, to_probs
from workbench.engine import Engine, Models, Request, Runner
from workbench.interop import speculative
from workbench.methods import registry

METHODS = ("draft-model", "draft-tree", "draft-tree-sampled", "online", "rasd", "omnidraft")
PROMPT = [5, 63, 13, 9, 5, 62, 13, 21, 5, 63, 13]
"""It contains ids without an embedding in the smaller draft model."""


def resized(model: Any, rows: int) -> Any:
    """Return a copy of a model with another number of embedding rows."""
    shared_copy = model_helpers.noisy_copy(model, 0.1)
    shared_copy.resize_token_embeddings(rows, mean_resizing=False)
    return shared_copy.eval().requires_grad_(False)


@cache
def padded(rows: int) -> Models:
    """Return a target of 64 tokens with a draft model of `rows`."""
    models = model_helpers.make_models("llama", noise=None)
    models.drafter, models.drafter_name = Runner(resized(models.target.model, rows)), "padded"
    return models


@pytest.mark.parametrize("rows", [61, 72])
@pytest.mark.parametrize("method", METHODS)
def test_text_is_the_targets_if_the_draft_model_lacks_ids(method: str, rows: int) -> None:
    models = dataclasses.replace(padded(rows), shared=padded(rows).shared | {})
    greedy = Request(PROMPT, registry.get(method), max_new_tokens=20)
    sampled = dataclasses.replace(greedy, sampling=SamplingParams(temperature=1.5), seed=3)
    texts = model_helpers.generate_batched(models, [greedy, sampled])
    assert texts[0] == model_helpers.hf_greedy(models.target.model, PROMPT, 20)
    assert len(texts[1]) == 20


def test_unknown_ids_are_replaced_by_one_token_and_known_ones_kept() -> None:
    models = padded(61)
    models.set_unknown_token()
    assert models.drafter is not None
    ids = torch.tensor([3, 60, 61, 63])
    assert models.drafter.replace_unknown(ids).tolist() == [3, 60, 0, 0]
    assert models.target.replace_unknown(ids) is ids
    models.drafter.set_unknown_token(61, 7)
    assert models.drafter.replace_unknown(ids) is ids


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rows"), [("draft-model", 5), ("draft-tree-sampled", 8)])
def test_sampling_keeps_the_targets_distribution(method: str, rows: int) -> None:
    """Test the first two tokens of 200 runs with fixed seeds; a correct sampler fails with probability 1e-4."""
    models = model_helpers.make_small_models(6, noise=None)
    models.drafter, models.drafter_name = Runner(resized(models.target.model, rows)), "padded"
    prompt, sampling = [3, 1, 5, 1, 5, 3], SamplingParams(temperature=1.0)
    requests = [
        Request(prompt, registry.get(method), sampling=sampling, max_new_tokens=2, seed=i, stop_at_eos=False)
        for i in range(200)
    ]
    engine = Engine(models, max_sequences=50)
    rows_of = [engine.submit(request) for request in requests]
    while not engine.is_idle:
        engine.step()
    texts = [row.trace.token_ids for row in rows_of if row.trace is not None]
    exact = joint_distribution(
        models.target.model, prompt, 2, lambda logits: to_probs(logits.unsqueeze(0), sampling)[0]
    )
    assert chi_square(count_firsts(texts, 2), exact).fits()


def test_generate_accepts_a_padded_assistant_and_refuses_one_with_another_tokenizer() -> None:
    model = model_helpers.family("llama")
    ids = torch.tensor([PROMPT])
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False, "pad_token_id": 0,
    }  # fmt: skip
    wanted = model.generate(ids, **options)
    for rows in (60, 70):
        spec = speculative("draft-model", assistant=resized(model, rows))
        assert model.generate(ids, custom_generate=spec, **options).tolist() == wanted.tolist()
        assert spec.figures[0]["accepted"] > 0
    with pytest.raises(ModelError, match="so their tokenizers differ"):
        model.generate(ids, custom_generate=speculative("draft-model", assistant=resized(model, 40)), **options)
