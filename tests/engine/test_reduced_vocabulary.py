"""Draft models with a reduced vocabulary: their logits, unchanged target distributions, and invalid lists."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from methods.test_exact_sampling import ALPHA, FILTERED, PLAIN, fit_of, setting
from transformers import LogitsProcessor

from workbench.core.errors import ModelError, WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request, Runner, load_models
from workbench.kernels.reduced_vocabulary import KEY, draft_vocabulary_size, trim
from workbench.kernels.segment import Segment
from workbench.methods import registry
from workbench.models.bundle import bundled, bundled_folder
from workbench.models.pretrained import load_model
from workbench.trace.metrics import summary

DRAFTING = [method.name for method in model_helpers.text_methods() if "drafter" in method.needs]


def trimmed(model: Any, kept: list[int]) -> Any:
    """Return a copy that keeps only these tokens."""
    shared_copy = copy.deepcopy(model)
    setattr(shared_copy.config, KEY, kept)
    trim(shared_copy, "the drafter")
    return shared_copy


def make_models(kept: list[int], **options: Any) -> Models:
    """Return models whose draft model keeps only these tokens."""
    models = (
        model_helpers.make_small_models(**options) if "vocabulary" in options else model_helpers.make_models(**options)
    )
    assert models.drafter is not None
    models.drafter = Runner(trimmed(models.drafter.model, kept), models.target.context)
    return models


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_kept_tokens_keep_their_logits_and_others_are_masked(dtype: torch.dtype) -> None:
    whole = model_helpers.family("llama").to(dtype)
    kept = [0, 3, 4, 17, whole.config.vocab_size - 1]
    part, ids = trimmed(whole, kept), torch.tensor([model_helpers.random_prompt(9)])
    with torch.inference_mode():
        before, after = whole(ids).logits, part(ids).logits
    assert after.shape == before.shape
    assert (after > -torch.inf)[0, 0].nonzero().flatten().tolist() == kept
    torch.testing.assert_close(after[..., kept], before[..., kept])
    runner = Runner(part)
    assert runner._lean is not None, "it has the fast forward pass, too"
    slot = runner.open()
    runner.prefill(slot, ids[0, :-1].tolist())
    out = runner.forward([Segment(slot, ids[0, -1:])])
    near = 0.1 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(out.logits[0, -1], after[0, -1], atol=near, rtol=near)


def test_changed_weights_are_used() -> None:
    part = trimmed(model_helpers.family("llama"), [1, 2, 3])
    ids = torch.tensor([[1, 2]])
    with torch.inference_mode():
        before = part(ids).logits
    with torch.no_grad():
        part.get_output_embeddings().weight.mul_(2)
        after = part(ids).logits
    assert not torch.equal(before[..., 1:4], after[..., 1:4])


@pytest.mark.parametrize("name", DRAFTING)
def test_greedy_text_is_hugging_faces_own(name: str, device: str) -> None:
    prompt = model_helpers.repeating_prompt(13, period=5)
    models = make_models(list(range(0, model_helpers.VOCABULARY, 3)), name="llama", noise=0.1, device=device)
    wanted = model_helpers.hf_greedy(models.target.model, prompt, 32)
    assert any(token % 3 for token in wanted), "the target emits tokens that the drafter cannot"
    trace = Engine(models).generate(Request(prompt, registry.get(name), max_new_tokens=32))
    assert trace.token_ids == wanted
    assert summary(trace)["acceptance_rate"] > 0, "and some that it can"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sampling"), [("draft-model", PLAIN), ("draft-tree-sampled", FILTERED)])
def test_sampled_text_keeps_tokens_outside_the_drafters_vocabulary(name: str, sampling: Any, device: str) -> None:
    models = make_models([0, 2, 3], vocabulary=6, device=device)
    fit = fit_of(models, setting(name), sampling, 2, 400)
    assert fit.fits(ALPHA), fit


class Only(LogitsProcessor):
    """Allows some tokens, none of which the drafter keeps."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        shut = torch.ones(scores.shape[-1], dtype=torch.bool, device=scores.device)
        shut[40:60] = False
        return scores.masked_fill(shut, -torch.inf)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [*DRAFTING, "kangaroo"])
def test_processor_that_allows_no_drafter_token_is_respected(
    name: str, temperature: float, device: str, tmp_path: Path
) -> None:
    models = model_helpers.make_models(noise=0.1, device=device, heads=tmp_path / "heads")
    assert models.drafter is not None
    models.drafter = Runner(trimmed(models.drafter.model, list(range(20))), models.target.context)
    models.heads["kangaroo"].config[KEY] = list(range(20))
    sampling = SamplingParams(temperature, processors=(Only(),))
    trace = Engine(models).generate(Request([1, 2, 3], registry.get(name), sampling, 10, stop_at_eos=False))
    assert all(40 <= token < 60 for token in trace.token_ids), trace.token_ids
    assert not any(value != value for r in trace.rounds for value in (*r.nodes.q, *r.nodes.p)), "no value is NaN"


@pytest.mark.parametrize("name", ["medusa", "eagle-vlm", "flash", "eagle-2", "kangaroo"])
def test_heads_draft_from_their_reduced_vocabulary(name: str, device: str, tmp_path: Path) -> None:
    prompt, kept = model_helpers.repeating_prompt(13, period=5), list(range(0, model_helpers.VOCABULARY, 3))
    models = model_helpers.make_models(device=device, heads=tmp_path / "heads")
    head = next(models.heads[need] for need in registry.get(name).needs if need in models.heads)
    wanted = model_helpers.hf_greedy(models.target.model, prompt, 24)

    def drafted(**config: Any) -> Any:
        models.shared.clear()
        head.config.pop(KEY, None)
        head.config.update(config)
        return Engine(models).generate(Request(prompt, registry.get(name), max_new_tokens=24))

    whole, every, part = drafted(), drafted(**{KEY: list(range(model_helpers.VOCABULARY))}), drafted(**{KEY: kept})
    assert whole.token_ids == every.token_ids == part.token_ids == wanted
    assert [r.nodes.tokens for r in every.rounds] == [r.nodes.tokens for r in whole.rounds]
    drafted_tokens = {token for r in part.rounds for token in r.nodes.tokens}
    assert drafted_tokens
    assert drafted_tokens <= set(kept)
    for broken in ([5, 5], [model_helpers.VOCABULARY]):
        with pytest.raises(WorkbenchError, match="not an increasing list"):
            drafted(**{KEY: broken})


@pytest.mark.skipif("text-drafter" not in bundled(), reason="needs the bundled models")
class TestOnDisk:
    """Folders as `workbench train` writes them."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(bundled_folder() / "text-drafter", tmp_path / "trimmed"))

    def give(self, folder: Path, kept: Any) -> str:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, KEY: kept}))
        return str(folder)

    def test_it_drafts_for_its_target_and_is_refused_as_a_target(self, folder: Path) -> None:
        name = self.give(folder, list(range(600)))
        models = load_models("text-target", name, "cpu", "float64", strict=True)
        assert models.drafter is not None
        assert draft_vocabulary_size(models.drafter.model) == 600
        assert draft_vocabulary_size(models.target.model) is None
        prompt = models.tokenizer.encode("Once upon a time")
        plain, drafted = (
            Engine(models).generate(Request(prompt, registry.get(m), max_new_tokens=40))
            for m in ("autoregressive", "draft-model")
        )
        assert plain.token_ids == drafted.token_ids
        drafted_tokens = [token for r in drafted.rounds for token in r.nodes.tokens]
        assert drafted_tokens
        assert max(drafted_tokens) < 600
        with pytest.raises(ModelError, match=r"600 of the 4,096 tokens in its vocabulary.*as the draft model"):
            load_models(name, None, "cpu", "float64")

    @pytest.mark.parametrize("kept", [[], [3, 1], [1, 1], [-1, 2], [1, 4096], ["a"], "all", [0.5], 7], ids=str)
    def test_invalid_list_is_refused_with_a_remedy(self, folder: Path, kept: Any) -> None:
        with pytest.raises(ModelError, match="draft_vocabulary"):
            load_model(self.give(folder, kept), torch.device("cpu"), torch.float32)
