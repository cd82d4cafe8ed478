"""The timed contenders: our engine and Hugging Face's `generate`, on the same model objects."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from workbench.bench import suites
from workbench.bench.contenders import DRAFTING, EngineContender, HuggingFaceContender
from workbench.bench.forced_acceptance import agreement, bare_copy, drafter_with_agreement, noisy_copy, random_drafter
from workbench.bench.tiny_models import tiny_model, tiny_models
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Runner
from workbench.methods import registry
from workbench.models.pretrained import load_tokenizer

GREEDY = SamplingParams()
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4]
N = 24


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models(load_tokenizer("text-target"), vocabulary=32)


def hf(models: Models, **options: object) -> HuggingFaceContender:
    return HuggingFaceContender(models.target.model, [], N, GREEDY, **options)  # type: ignore[arg-type]


def test_all_sides_write_the_same_text(models: Models) -> None:
    engine = Engine(models)
    ours = EngineContender(engine, registry.get("draft-model").with_params(depth=3), GREEDY, N)
    assert models.drafter is not None
    others = [
        hf(models),
        hf(models, assistant=models.drafter.model, draft_tokens=3),
        hf(models, assistant=models.drafter.model),
        hf(models, draft_tokens=5, ngram=2),
    ]
    wanted = ours.run(PROMPT).token_ids
    assert len(wanted) == N
    assert [c.run(PROMPT).token_ids for c in others] == [wanted] * 4
    assert [c.name for c in others] == ["hf-generate", "hf-assisted", "hf-assisted-defaults", "hf-prompt-lookup"]


def test_the_assistant_drafts_a_fixed_number_of_tokens(models: Models) -> None:
    """A copy of the target is always accepted: K + 1 tokens per forward pass, as in our engine."""
    copy = noisy_copy(models.target.model, 0.0)
    before = copy.generation_config.num_assistant_tokens
    sample = hf(models, assistant=copy, draft_tokens=3).run(PROMPT)
    assert sample.rounds == N // 4
    assert copy.generation_config.num_assistant_tokens == before


def test_the_default_assistant_reads_its_own_generation_config(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """During generation transformers reads the assistant's own configuration, and its schedule does not change it."""
    copy = noisy_copy(models.target.model, 0.0)
    config = copy.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = 7, "heuristic"
    seen = []
    generate = type(models.target.model).generate

    def watched(self: object, *args: object, **options: object) -> object:
        if self is models.target.model:  # the assistant calls `generate`, too
            seen.append([getattr(config, name) for name in DRAFTING])
        return generate(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(models.target.model), "generate", watched)
    before = [getattr(config, name) for name in DRAFTING]
    for _ in range(2):
        hf(models, assistant=copy).run(PROMPT)
    assert seen == [before, before]
    assert hf(models, assistant=copy).parameters["num_assistant_tokens"] == 7


def test_the_parts_of_the_time_add_up(models: Models) -> None:
    sample = EngineContender(Engine(models), registry.get("draft-model").with_params(), GREEDY, N).run(PROMPT)
    parts = sum(sample.figures[name] for name in ("draft_s", "verify_s", "overhead_s"))
    assert parts == pytest.approx(sample.figures["decode_s"])
    assert sample.decode_seconds == sample.figures["decode_s"]
    assert sample.seconds >= sample.figures["decode_s"]


def test_noise_makes_a_drafter_of_the_wanted_agreement() -> None:
    model = tiny_model(32, seed=5)
    text = []
    ids = list(PROMPT)
    for _ in range(40):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        text = ids[len(PROMPT) :]
    texts = [(PROMPT, text)]
    assert agreement(model, texts) == 1.0
    assert agreement(random_drafter(model), texts) < 0.5
    _, reached = drafter_with_agreement(model, 0.7, texts)
    assert reached == pytest.approx(0.7, abs=0.15)


@pytest.mark.parametrize("emulated", [True, False])
def test_transformers_is_not_timed_in_a_format_that_this_cpu_emulates(
    emulated: bool, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would use it that way, and any method would look fast in comparison. The dtype used is reported."""
    monkeypatch.setattr(suites, "has_bfloat16", lambda: not emulated)
    target = Runner(bare_copy(models.target.model).bfloat16(), models.target.context)
    half = dataclasses.replace(models, target=target, drafter=None, shared={})
    plan = suites.Plan(max_new_tokens=4, against_hf=True, stock=True)
    theirs = [c for c in suites._contenders(half, [], plan) if isinstance(c, HuggingFaceContender)]
    assert [c.model.dtype for c in theirs] == [torch.float32 if emulated else torch.bfloat16]
    assert theirs[0].parameters.get("dtype") == ("float32" if emulated else None)
    assert half.target.model.dtype == torch.bfloat16
