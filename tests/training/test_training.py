"""Tiny runs of the recipes: they resume exactly and write the files that the loaders expect."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from workbench.training import recipes
from workbench.training.clock import RunClock, trapezoid
from workbench.training.corpus import load_tokens
from workbench.training.distill import greedy_acceptance
from workbench.training.muon import FloatMuon, orthogonal
from workbench.training.pretrain import PretrainOptions, pretrain
from workbench.training.repeats import repeat_windows
from workbench.training.windows import Windows, user_positions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a corpus of generated text, a tokenizer, and a target trained for four steps."""
    root = tmp_path_factory.mktemp("training")
    nowhere = root / "no-such-data"
    shared = {"data": nowhere, "tokens": "40000"}
    recipes.run("tokenizer", {**shared, "out": root / "tokenizer", "vocab_size": "500"}, lambda line: None)
    corpus = {**shared, "tokenizer": root / "tokenizer", "out": root / "corpus"}
    assert recipes.run("corpus", corpus, lambda line: None)["train"] > 20_000
    pretrain(_options(root, steps=4), lambda line: None)
    return root


def _options(root: Path, steps: int, name: str = "target") -> PretrainOptions:
    return PretrainOptions(
        corpus=root / "corpus",
        tokenizer=root / "tokenizer",
        out=root / name,
        checkpoint=root / f"{name}.pt",
        steps=steps,
        hidden=48,
        layers=4,
        window=64,
        rows=4,
        exact_rows=1,
        repeat_rows=1,
        repeat_steps=3,
        exit_layers=(1, 2),
        threads=1,
        checkpoint_seconds=1e9,
    )


def test_a_resumed_run_equals_an_uninterrupted_one(folder: Path) -> None:
    options = _options(folder, steps=4, name="resumed")
    seen: list[str] = []

    class Killed(Exception):
        pass

    def kill_at_two(line: str) -> None:
        seen.append(line)
        if "held-out" in line:
            raise Killed

    # A checkpoint after every step; the first run is killed right after one of them.
    first = dataclasses.replace(options, checkpoint_seconds=-1.0)
    with pytest.raises(Killed):
        pretrain(first, kill_at_two)
    result = pretrain(dataclasses.replace(options, resume=True), seen.append)
    assert any("resumed at step 1" in line for line in seen)
    assert result.steps == 4
    whole = torch.load(folder / "target.pt", weights_only=True)
    resumed = torch.load(folder / "resumed.pt", weights_only=True)
    assert whole["tokens"] == resumed["tokens"]
    for name, tensor in whole["model"].items():
        assert torch.equal(tensor, resumed["model"][name]), name


def test_target_folder_loads_with_transformers(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    assert isinstance(model, LlamaForCausalLM)
    assert model.config.early_exit_layers == [1, 2]
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    stored = load_file(folder / "target" / "model.safetensors")
    assert all(tensor.dtype == torch.float16 for tensor in stored.values())


def test_a_drafter_is_trained_and_measured(folder: Path) -> None:
    shared = {"target": folder / "target", "corpus": folder / "corpus", "own_text": folder / "own.bin"}
    shared |= {"window": "64", "threads": "1"}
    out = {"out": folder / "drafter", "checkpoint": folder / "drafter.pt"}
    figures = recipes.run(
        "drafter",
        {**shared, **out, "steps": "2", "hidden": "32", "rows": "2", "own_minutes": "0"},
        lambda line: None,
    )
    assert 0.0 <= figures["held"]["acceptance"] <= 1.0


def test_a_copy_of_the_target_is_always_accepted(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
    row = torch.tensor([[5, 6, 7]])
    ids = model.generate(row, max_new_tokens=12, do_sample=False, eos_token_id=None)[0].tolist()
    assert greedy_acceptance(model, model, [ids], [3]) == 1.0


def test_windows_depend_on_the_step_alone(folder: Path) -> None:
    path = folder / "corpus" / "train.bin"
    one, two = Windows(path, 32, 3), Windows(path, 32, 3)
    later = one.batch(700)
    assert torch.equal(later, two.batch(700))
    assert torch.equal(one.batch(0), two.batch(0))
    assert not torch.equal(one.batch(0), one.batch(1))
    assert int(later.max()) <= int(load_tokens(path).max())


def test_repeated_spans_are_predictable_at_the_marked_positions() -> None:
    ids, known = repeat_windows(3, rows=4, length=256, pool=torch.arange(500))
    again, mask = repeat_windows(3, rows=4, length=256, pool=torch.arange(500))
    assert torch.equal(ids, again)
    assert torch.equal(known, mask)
    assert 0.3 < known.float().mean() < 0.95
    for row, flags in zip(ids.reshape(-1, 128).tolist(), known.reshape(-1, 128).tolist(), strict=True):
        for i in range(1, 128):
            if flags[i]:
                assert any(row[j - 1 : j + 1] == row[i - 1 : i + 1] for j in range(1, i))


def test_user_positions() -> None:
    ids = torch.tensor([[9, 1, 9, 9, 2, 9, 0, 9, 1, 9]])
    expected = [False, True, True, True, False, False, False, False, True, True]
    assert user_positions(ids, user=1, user_end_ids=(2, 0)).tolist() == [expected]


def test_schedule_rises_holds_and_falls() -> None:
    values = [trapezoid(i / 100) for i in range(101)]
    assert values[0] < values[2] == 1.0
    assert values[55] == 1.0
    assert values[-1] == pytest.approx(0.02)
    assert values[60:] == sorted(values[60:], reverse=True)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("poetry", {}, "there is no recipe 'poetry'"),
        ("target", {"colour": "red"}, "has no option 'colour'"),
        ("target", {"rows": "many"}, "option rows takes int"),
    ],
)
def test_invalid_requests_are_refused_by_name(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipes.run(name, options, lambda line: None)


def test_muon_in_float32_equals_pytorchs_up_to_rounding() -> None:
    def trained(kind: type[torch.optim.Optimizer]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        matrices = [
            torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((24, 8), (8, 24), (16, 16))
        ]
        optimizer = kind(matrices, lr=0.1, weight_decay=0.05, momentum=0.95)  # pyright: ignore[reportCallIssue]
        for _ in range(3):
            for matrix in matrices:
                matrix.grad = torch.randn(matrix.shape, generator=generator)
            optimizer.step()
        return [matrix.detach() for matrix in matrices]

    for ours, theirs in zip(trained(FloatMuon), trained(torch.optim.Muon), strict=True):
        assert torch.allclose(ours, theirs, atol=0.02)
        assert not torch.allclose(ours, theirs, atol=1e-7), "bfloat16 rounds"


def test_an_update_of_muon_is_nearly_orthogonal() -> None:
    matrix = torch.randn(12, 30, generator=torch.Generator().manual_seed(1))
    sizes = torch.linalg.svdvals(orthogonal(matrix, (3.4445, -4.775, 2.0315), 5))
    assert bool(((sizes > 0.6) & (sizes < 1.3)).all())


def test_the_remaining_time_is_in_seconds_below_a_minute() -> None:
    clock = RunClock(steps=10, earlier_seconds=30.0)
    assert clock.format_time_left(5) == "30 s"
    clock.earlier_seconds = 600.0
    assert clock.format_time_left(5) == "10 min"
