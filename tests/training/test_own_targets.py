"""Training for user targets: same results on GPU and CPU, large vocabularies, base models without chat template.

These tests simulate the GPU on the CPU (`simulated_gpu`); with `-m gpu` the last one runs on a real GPU.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from answer_readings import quiet
from simulated_gpu import CPU, GPU, SimulatedGPU, device_of
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from workbench.core.errors import ParameterError
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.models.bundle import bundled
from workbench.models.int8_checkpoint import read_weights
from workbench.models.loading import HeadInfo, load_models
from workbench.models.pretrained import load_tokenizer
from workbench.training import recipes
from workbench.training.answers import ANSWERS, AnswersOptions, first_turns, read_answers, write_answers
from workbench.training.family import drafter
from workbench.training.family import training_texts as texts
from workbench.training.family.options import options_class
from workbench.training.family.readings import Readings, ReadingsOptions, compute_hidden_states, make_readings

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled tokenizer")
VOCABULARY = 70_000
"""A vocabulary size that 16 bits cannot number."""
KINDS = sorted(kind for kind, head in registry.heads().items() if head.recipe == "chat-heads")
SMALL: dict[str, Any] = {"vocabulary": 600, "ffn": 16, "heads": 4, "blocks": 2, "exit_layer": 1, "places": 32,
                         "block": 4, "transfer_layer": 2, "transfers": 2, "prompts": 2}  # fmt: skip
OWN_SIZE = {"head_size": 8}
"""Sizes of a head's attention; a head that starts from a finished layer has that layer's."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny chat model with random weights."""
    folder = tmp_path_factory.mktemp("models") / "tiny-chat"
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=6,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                         tie_word_embeddings=True, initializer_range=0.4)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    load_tokenizer("text-target").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def readings(target: str) -> Path:
    """Return readings of a few of the target's answers, with the captured layers that heads fuse."""
    work = Path(target).parent
    write_answers(AnswersOptions(target, work / "none", work / "answers", 500, max_new_tokens=12, per_task=8, rows=16,
                                 dtype="float32", threads=1), quiet)  # fmt: skip
    make_readings(
        ReadingsOptions(target, work / "answers", work / "readings", taps=(1, 3, 5), dtype="float32", threads=1), quiet
    )
    return work / "readings"


def short_run_options(target: str, readings: Path, out: Path, device: str, **more: Any) -> dict[str, Any]:
    """Return options of a short run."""
    return {"target": target, "readings": readings, "out": out, "checkpoint": out / "run.pt", "steps": 2, "rows": 4,
            "held": 2, "threads": 1, "device": device, **more}  # fmt: skip


def test_the_simulated_gpu_refuses_operations_that_a_gpu_refuses() -> None:
    with SimulatedGPU():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert (device_of(there), device_of(here)) == (there.device, here.device) == (GPU, CPU)
        wrong: list[Callable[[], Any]] = [
            lambda: there + here,
            lambda: torch.nn.functional.linear(there, here[None]),
            lambda: torch.cat([there, here]),
            lambda: torch.zeros(()).__iadd__(there.sum()),
            lambda: there.__setitem__(slice(1), here[:1]),
            lambda: here[there.long()],
            lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
        ]
        for each in wrong:
            with pytest.raises(RuntimeError, match=r"same device|generator"):
                each()
        with pytest.raises(TypeError, match="no array"):
            there.numpy()
        assert device_of(there[here.long()] + 1 + torch.tensor(2.0)) == GPU, "indices and scalars may be on the CPU"
        assert device_of(there.cpu()) == device_of(there.to(here)) == CPU
        assert (
            device_of(there)
            == device_of(there[None].T)
            == device_of(here.to("cuda"))
            == device_of(torch.zeros_like(there))
            == GPU
        )
        net = torch.nn.Linear(3, 2).to("cuda")
        net(there).sum().backward()
        assert net.weight.grad is not None
        assert device_of(net.weight) == device_of(net.weight.grad) == GPU


def test_token_ids_beyond_16_bits_are_read_unchanged(target: str, readings: Path) -> None:
    found = Readings(readings)
    lines = {line["n"]: line for line in read_answers(readings.parent / "answers" / ANSWERS)}
    said = [token for line in lines.values() for token in line["answer"]]
    assert max(said) >= 1 << 16
    for row, n in enumerate(found.rows[:, 0].tolist()):
        assert found.text(row)[0].tolist() == lines[n]["prompt"] + lines[n]["answer"]
    packed = np.fromfile(readings.parent / "answers" / "train.bin", np.uint32)
    assert set(said) >= set(packed[packed >= 1 << 16].tolist()) > set()


@pytest.mark.parametrize("kind", KINDS)
def test_training_on_a_gpu_equals_training_on_the_cpu(kind: str, target: str, readings: Path, tmp_path: Path) -> None:
    same_on_both(kind, target, readings, tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if options_class(kind).starts_from_eagle])
def test_training_from_a_finished_layer_on_a_gpu_equals_that_on_the_cpu(
    kind: str, target: str, readings: Path, tmp_path: Path
) -> None:
    recipes.run(
        "chat-heads", short_run_options(target, readings, tmp_path / "first", "cpu", method="eagle", **SMALL), quiet
    )
    same_on_both(kind, target, readings, tmp_path, begin=tmp_path / "first" / "tiny-chat-eagle")


def same_on_both(kind: str, target: str, readings: Path, folder: Path, **more: Any) -> None:
    """Check that weights, losses and figures are the same, so that no tensor stayed on the wrong device."""
    figures = []
    for device in ("cpu", "cuda"):
        options = short_run_options(
            target, readings, folder / device, device, method=kind, **SMALL, **(more or OWN_SIZE)
        )
        with SimulatedGPU() as gpu:
            figures.append(recipes.run("chat-heads", options, quiet))
        assert (gpu.n_operations > 200) == (device == "cuda")
    here, there = (
        read_weights(folder / device / f"tiny-chat-{kind}" / "model.safetensors") for device in ("cpu", "cuda")
    )
    assert figures[0]["losses"] == figures[1]["losses"]
    assert figures[0]["held"] == figures[1]["held"]
    assert here.keys() == there.keys()
    for name in here:
        assert torch.equal(here[name], there[name]), name


@pytest.mark.parametrize("made", ["all", "mix"])
def test_a_draft_model_trained_on_a_gpu_equals_one_trained_on_the_cpu(
    made: str, target: str, readings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine, by which the target scores sampled text, stays on the CPU; tests with `-m gpu` cover it."""
    figures = []
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(drafter, "load_models", lambda name, *_: load_models(name, None, "cpu", "float32"))
        monkeypatch.setattr(texts, "compute_hidden_states", partial(_read_here, device))
        more = {"vocabulary": 600, "hidden": 16, "layers": 1, "inner": 24, "head_size": 8, "positions": 64,
                "made": made}  # fmt: skip
        options = short_run_options(target, readings, tmp_path / device, device, **more)
        with SimulatedGPU() as gpu:
            figures.append(recipes.run("chat-drafter", options, quiet))
        assert (gpu.n_operations > 200) == (device == "cuda")
    assert figures[0]["losses"] == figures[1]["losses"]
    assert figures[0]["held"] == figures[1]["held"]


def _read_here(device: str, models: Models, ids: list[int]) -> dict[str, torch.Tensor]:
    return {name: stream.to(device) for name, stream in compute_hidden_states(models, ids).items()}


def test_a_base_model_continues_prompts_without_chat_template(target: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(target, tmp_path / "base"))
    for file in folder.glob("chat_template*"):
        file.unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
    options = AnswersOptions(str(folder), tmp_path / "none", tmp_path / "answers", 30, max_new_tokens=4, per_task=4,
                             rows=4, dtype="float32", threads=1)  # fmt: skip
    write_answers(options, quiet)
    said = dict(enumerate(text for _, text in first_turns(options.data, options.per_task, options.seed)))
    tokenizer = load_tokenizer(str(folder))
    lines = list(read_answers(options.out / ANSWERS))
    assert lines
    assert all(line["prompt"] == tokenizer(said[line["n"]])["input_ids"] for line in lines)


def test_an_unsupported_target_is_refused_before_it_generates_answers(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-gpt2"
    GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_embd=32, n_layer=4, n_head=2, n_positions=128)).save_pretrained(
        folder
    )
    load_tokenizer("text-target").save_pretrained(folder)
    lines: list[str] = []
    with pytest.raises(ParameterError, match="Heads cannot be trained for a GPT2LMHeadModel"):
        recipes.run(
            "eagle", {"target": str(folder), "work": tmp_path / "work", "out": tmp_path, "steps": 1}, lines.append
        )
    assert not (tmp_path / "work").exists()
    write_answers(AnswersOptions(str(folder), tmp_path / "none", tmp_path / "answers", 12, max_new_tokens=4, per_task=4,
                                 rows=4, dtype="float32", threads=1), quiet)  # fmt: skip
    with pytest.raises(ParameterError, match="its final norm is not Llama's RMSNorm"):
        make_readings(ReadingsOptions(str(folder), tmp_path / "answers", tmp_path / "readings", threads=1), quiet)


@pytest.mark.skipif("vision-target" not in bundled(), reason="needs the bundled models")
def test_a_target_that_reads_images_answers_text_prompts(tmp_path: Path) -> None:
    options = {"target": "vision-target", "data": tmp_path / "none", "work": tmp_path, "out": tmp_path, "steps": 1,
               "answer_tokens": 400, "max_new_tokens": 8, "per_task": 12, "rows": 4, "each": 1, "measured_tokens": 4,
               "threads": 1}  # fmt: skip
    recipes.run("eagle", options, quiet)
    assert (tmp_path / "vision-target-eagle" / "README.md").is_file()


def test_heads_for_a_large_vocabulary_draft(target: str, readings: Path, tmp_path: Path, device: str) -> None:
    """With `-m gpu`, answers, readings, training and drafting all run on a GPU."""
    work = tmp_path / "work"
    write_answers(AnswersOptions(target, work / "none", work / "answers", 500, max_new_tokens=12, per_task=8, rows=16,
                                 dtype="float32", threads=1, device=device), quiet)  # fmt: skip
    make_readings(
        ReadingsOptions(target, work / "answers", work / "readings", dtype="float32", threads=1, device=device), quiet
    )
    options = short_run_options(
        target, work / "readings", tmp_path, device, method="eagle", vocabulary=2000, ffn=32, heads=4
    )
    recipes.run("chat-heads", options | {"steps": 6}, quiet)
    models = load_models(target, None, device, "float64")
    folder = tmp_path / "tiny-chat-eagle"
    config = json.loads((folder / "config.json").read_text())
    assert max(config["draft_vocabulary"]) >= 1 << 16
    models.heads["eagle"] = HeadInfo("heads", folder, config)
    plain, drafted = (
        Engine(models).generate(Request([3, 4, 5], registry.get(name), max_new_tokens=16))
        for name in ("autoregressive", "eagle")
    )
    assert drafted.token_ids == plain.token_ids
    assert any(token >= 1 << 16 for r in drafted.rounds for token in r.nodes.tokens)
