"""The GPU suite with tiny shapes on a CPU: same code, same tables, drafters with a requested acceptance rate."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from workbench.bench import damped_targets, gpu_suite
from workbench.bench.damped_targets import Shape, damp, damp_to, random_pair, random_target
from workbench.bench.forced_acceptance import agreement
from workbench.bench.gpu_suite import bench_gpu
from workbench.bench.suites import Plan
from workbench.core.errors import ModelError
from workbench.engine import Models
from workbench.kernels import bandwidth
from workbench.kernels.devices import check_gpu
from workbench.methods import registry

TINY = Shape("tiny", hidden=32, inner=48, layers=4, heads=4, kv_heads=2, vocabulary=96, draft_layers=1)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (damped_targets, "SEARCH_STEPS", 6),
        (gpu_suite, "PROMPTS", 1), (gpu_suite, "PROMPT_TOKENS", 12), (damped_targets, "PROMPT_TOKENS", 12),
        (damped_targets, "SEARCH_TOKENS", 40),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def pair(device: str) -> Models:
    return random_pair(TINY, torch.device(device), torch.float64, 20)


def test_the_drafter_is_the_truncated_target_with_the_requested_acceptance_rate(pair: Models) -> None:
    assert pair.drafter is not None
    target, drafter = pair.target.model, pair.drafter.model
    theirs = {p.data_ptr() for p in target.parameters()}
    assert {p.data_ptr() for p in drafter.parameters()} <= theirs, "the drafter shares the target's weights"
    ids = torch.tensor([[5, 7, 11]], device=target.device)
    with torch.inference_mode():
        whole, part = target(ids).logits, drafter(ids).logits
        assert not torch.allclose(whole, part)
        damp(target, TINY.draft_layers, 0.0)
        assert torch.allclose(target(ids).logits, part, atol=1e-12), (
            "if the other layers add nothing, the target equals the drafter"
        )
        damp(target, TINY.draft_layers, 1.0)
        assert torch.equal(target(ids).logits, whole)
    assert damp_to(pair, TINY.draft_layers, 1.0) == 1.0
    texts = [([3], [4, 9, 2])]
    assert agreement(drafter, texts) == agreement(target, texts)
    assert damp_to(pair, TINY.draft_layers, 0.6) == pytest.approx(0.6, abs=0.15)


def test_one_table_has_our_engine_and_hugging_face_for_every_target_and_names_those_left_out(device: str) -> None:
    huge = dataclasses.replace(TINY, name="huge", hidden=2**24, vocabulary=8)  # a matrix of 2⁵¹ bytes
    plan = Plan(max_new_tokens=8, repeats=1)
    made = bench_gpu(torch.device(device), plan, [TINY, huge], [1.0], depth=3, dtype=torch.float64)
    group = "tiny, acceptance 1"
    assert list(made.groups) == [group]
    rows = {row.method: row for row in made.groups[group]}
    assert set(rows) == {
        "autoregressive", *(m.name for m in registry.methods() if gpu_suite.SUITE in m.suites),
        "hf-generate", "hf-assisted", "hf-assisted-defaults", "hf-prompt-lookup",
    }  # fmt: skip
    assert all(row.identical_to_autoregressive == 1.0 for row in rows.values())
    for name in ("draft-model", "early-exit"):
        assert (rows[name].tau, rows[name].acceptance_rate) == (4.0, 1.0), name
        assert rows[name].speedup_vs_hf is not None
    assert rows["draft-model"].hf_counterpart == "hf-assisted"
    assert [row.method for row in made.rows] == [f"{name} @ {group}" for name in gpu_suite.HEADLINE]
    assert made.settings["left out"].startswith("huge: ")
    n_bytes = bandwidth.bytes_read(random_pair(TINY, torch.device(device), torch.float64, 20).target.model)
    assert f"reads {n_bytes / 1e9:.3g} GB, which takes" in made.settings[f"forward pass of {group}"]
    assert "of the copy rate" in made.settings[f"forward pass of {group}"]
    assert {run["group"] for run in made.runs} == {group}
    assert "left out huge" in made.to_markdown(by_group=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ModelError("No room in the cache.", "Make some.")])
def test_measurements_are_kept_if_the_suite_ends_early(error: BaseException, device: str) -> None:
    def real() -> Models:
        raise error

    plan = Plan(max_new_tokens=4, repeats=1)
    one = [registry.get("draft-model").with_params(depth=2)]
    made = bench_gpu(torch.device(device), plan, [TINY], [1.0], one, real, dtype=torch.float64)
    assert list(made.groups) == ["tiny, acceptance 1"]
    assert made.complete is not isinstance(error, KeyboardInterrupt)
    said = made.settings["left out"]
    assert said == ("the real target: No room in the cache. Make some." if made.complete else None)
    assert made.settings["draft length on the targets with random weights"] is None, (
        "each method reports its own draft length"
    )


def test_a_forward_reads_all_weights_except_an_untied_embedding() -> None:
    model = random_target(TINY, "cpu", torch.bfloat16)
    table = TINY.vocabulary * TINY.hidden
    weights = sum(p.numel() for p in model.parameters())
    assert bandwidth.bytes_read(model) == 2 * (weights - table)
    model.lm_head.weight = model.model.embed_tokens.weight
    assert bandwidth.bytes_read(model) == 2 * (weights - table), "a tied embedding is read as the LM head"


def test_copy_bandwidth_counts_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "seconds_of", lambda work, device: work() is None or 0.5)
    assert bandwidth.copy_bandwidth("cpu", 1000) == 4000.0


@pytest.mark.parametrize(("device", "says"), [("cpu", "cpu is not one"), ("mps", "mps is not one")])
def test_a_device_without_gpu_is_refused_with_a_remedy(device: str, says: str) -> None:
    with pytest.raises(ModelError, match=rf"{says}\. (Use cuda|Run the command on a machine .* CUDA)\."):
        check_gpu(device, "The suite gpu")
    check_gpu("cuda:1", "The suite gpu")
