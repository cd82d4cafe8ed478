"""Draft models that use their target's embedding and LM head, each through a projection."""

from __future__ import annotations

import json
from pathlib import Path

import model_helpers
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from workbench.core.errors import ModelError
from workbench.kernels.compilation import may_compile
from workbench.kernels.reduced_vocabulary import trim
from workbench.kernels.segment import Segment
from workbench.models.bundle import bundled
from workbench.models.int8_checkpoint import read_folder
from workbench.models.model_index import MODEL_INDEX, SMOLLM2
from workbench.models.pretrained import load_model, resolve_drafter_dtype
from workbench.models.runner import Runner
from workbench.models.shared_embeddings import (
    ENTER,
    LEAVE,
    ROWS,
    expand_rows,
    factor_rows,
    shares_embeddings,
)
from workbench.models.tokenizer_source import VOCABULARY, vocabulary_hash_of
from workbench.service.memory import Need
from workbench.training.family.shared_embedding_drafter import DrafterInTraining

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")
CPU = torch.device("cpu")


@pytest.fixture
def target_embedding(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Use the bundled target's rows as those of a published one."""
    monkeypatch.setitem(MODEL_INDEX, "text-target", SMOLLM2)
    return read_folder(bundled()["text-target"])["model.embed_tokens.weight"].float()


@pytest.fixture
def drafter_in_training(target_embedding: torch.Tensor) -> DrafterInTraining:
    config = LlamaConfig(
        vocab_size=len(target_embedding), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    return DrafterInTraining(config, target_embedding, target_embedding, seed=3)


@pytest.fixture
def folder(tmp_path: Path, drafter_in_training: DrafterInTraining) -> Path:
    """The drafter in training, saved to disk."""
    shared_config = {
        "target": "text-target",
        VOCABULARY: vocabulary_hash_of(bundled()["text-target"]),
        ROWS: drafter_in_training.enter.in_features,
    }
    config = drafter_in_training.config.to_dict() | shared_config | {"architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(
        {name: weight.contiguous() for name, weight in drafter_in_training.weights().items()},
        tmp_path / "model.safetensors",
    )
    return tmp_path


def test_loaded_model_has_the_logits_of_training(folder: Path, drafter_in_training: DrafterInTraining) -> None:
    ids = torch.tensor([[5, 7, 7, 1, 90]])
    model = load_model(str(folder), CPU, torch.float32)
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits
        wanted = drafter_in_training.states(ids) @ drafter_in_training.lm_head_rows(torch.arange(logits.shape[-1])).T
    torch.testing.assert_close(logits, wanted, atol=2e-4, rtol=2e-4)
    assert logits.std() > 0.1, "the logits are not zero"


def test_full_embedding_converts_back_to_a_projection(
    drafter_in_training: DrafterInTraining, target_embedding: torch.Tensor
) -> None:
    weights = drafter_in_training.weights()
    whole = {name: weight.half() for name, weight in expand_rows(weights, target_embedding, target_embedding).items()}
    assert ENTER not in whole
    found = factor_rows(whole, target_embedding, target_embedding)
    assert found.keys() == weights.keys()
    for name in (ENTER, LEAVE):
        torch.testing.assert_close(found[name], weights[name], atol=2e-3, rtol=2e-2)
    own = whole | {"lm_head.weight": torch.randn_like(whole["lm_head.weight"])}
    with pytest.raises(ValueError, match="its embedding cannot be computed from the target's"):
        factor_rows(own, target_embedding, target_embedding)


def test_drafter_that_does_not_fit_its_target_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    file = folder / "model.safetensors"
    save_file(weights | {ENTER: weights[ENTER][:, :-4].contiguous()}, file)
    with pytest.raises(ModelError, match="whose shape is not 32 × 288"):
        load_model(str(folder), CPU, torch.float32)
    config = json.loads((folder / "config.json").read_text())
    narrow = {name: weights[name][:, :-4].contiguous() for name in (ENTER, LEAVE)}
    save_file(weights | narrow, file)
    (folder / "config.json").write_text(json.dumps(config | {ROWS: 284}))
    with pytest.raises(ModelError, match="rows of width 284 from text-target, which has") as caught:
        load_model(str(folder), CPU, torch.float32)
    assert "workbench train chat-drafter" in caught.value.remedy
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: weight for name, weight in weights.items() if "layers.1" not in name}, file)
    with pytest.raises(ModelError, match=r"weights such as model\.layers\.1"):
        load_model(str(folder), CPU, torch.float32)
    save_file({name: weight for name, weight in weights.items() if name != LEAVE}, file)
    with pytest.raises(ModelError, match="nor the matrices that compute one from the target's"):
        load_model(str(folder), CPU, torch.float32)


def test_memory_estimate_includes_the_targets_rows(folder: Path) -> None:
    model = load_model(str(folder), CPU, torch.float64)
    need = Need.of(str(folder), torch.float64, CPU)
    assert need.weights >= sum(p.numel() for p in model.parameters()) * 8


@pytest.mark.skipif(not may_compile(), reason="passes are compiled on Linux on x86-64")
def test_related_drafter_is_bfloat16_where_its_forward_is_compiled(folder: Path) -> None:
    half, single = torch.bfloat16, torch.float32
    config = json.loads((folder / "config.json").read_text())
    fits = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "draft_vocabulary": list(range(24))}
    for change, wanted in (
        ({}, half), ({"hidden_size": 48}, single), ({"head_dim": 48}, single), ({"head_dim": 160}, single),
        ({"draft_vocabulary": list(range(23))}, single), ({"target": "nobody"}, single),
    ):  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config | fits | change))
        assert resolve_drafter_dtype("auto", CPU, half, str(folder)) == wanted, change
        assert resolve_drafter_dtype("auto", CPU, torch.int8, str(folder)) == wanted, change
        assert resolve_drafter_dtype("auto", CPU, single, str(folder)) == single
        assert resolve_drafter_dtype("float32", CPU, half, str(folder)) == single


@pytest.mark.skipif(not may_compile(), reason="passes are compiled on Linux on x86-64")
def test_reduced_vocabulary_drafter_is_compiled_and_masks_other_tokens() -> None:
    kept = list(range(1, 48, 2))
    model = model_helpers.family("llama", hidden_size=128, intermediate_size=96, vocab_size=64).to(torch.bfloat16)
    model.config.draft_vocabulary = kept
    trim(model, "it")
    runner = Runner(model)
    assert runner.lean is not None
    assert runner.lean.fused is not None
    assert runner.lean.fused.n_tokens == 24
    with torch.inference_mode():
        logits = runner.forward([Segment(runner.open(), torch.tensor([3, 5]))]).logits[0]
        wanted = model(input_ids=torch.tensor([[3, 5]]), use_cache=False).logits[0]
    rest = torch.ones(64, dtype=torch.bool).index_fill_(0, torch.tensor(kept), False)
    assert bool((logits[:, rest] == -torch.inf).all())
    torch.testing.assert_close(logits[:, ~rest].float(), wanted[:, ~rest].float(), atol=0.05, rtol=0.05)


def test_model_without_a_published_target_uses_no_other_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a third-party file could name a model to be read on this machine."""
    assert shares_embeddings(LlamaConfig.from_pretrained(folder))
    monkeypatch.delitem(MODEL_INDEX, "text-target")
    with pytest.raises(ModelError, match="does not name the target"):
        load_model(str(folder), CPU, torch.float32)
