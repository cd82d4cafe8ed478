"""The model pool: models are loaded once, unloaded when unused, and refused if they cannot fit."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import CapacityError, ModelError, PromptError, UnknownNameError, WorkbenchError
from workbench.engine import load_models
from workbench.models.local_models import short_name
from workbench.service import Backend, memory
from workbench.service.memory import Need
from workbench.service.progress import Progress

from .conftest import PROMPT, raise_cpu_out_of_memory, raise_cuda_out_of_memory, wait_until

CPU = torch.device("cpu")


@pytest.fixture
def equal_size_targets(folders: tuple[str, str], tmp_path: Path) -> list[str]:
    """Three more targets of one size."""
    for name in ("one", "two", "three"):
        shutil.copytree(folders[0], tmp_path / name)
    return [str(tmp_path / name) for name in ("one", "two", "three")]


def size(folder: str) -> int:
    """Return the memory of a target with one sequence in its KV cache."""
    need = Need.of(folder, torch.float64, CPU)
    return need.weights + need.sequence_bytes(need.context)


def names(bench: Backend) -> set[str]:
    return {entry["name"] for entry in bench.loaded_models()}


def run_on(bench: Backend, target: str, **options: Any) -> Any:
    return bench.start(PROMPT, "autoregressive", target=target, drafter="none", max_new_tokens=2, **options)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gpt_neox", "gemma3_text", "phi3"])
def test_the_memory_planned_from_files_equals_the_memory_used(family: str, tmp_path: Path) -> None:
    model_helpers.family(family).save_pretrained(tmp_path)
    model_helpers.byte_tokenizer(64).save_pretrained(tmp_path)
    need = Need.of(str(tmp_path), torch.float64, CPU)
    runner = load_models(str(tmp_path), None, device="cpu", dtype="float64").target
    slot = runner.open()
    runner.prefill(slot, [1, 2, 3])
    assert need.weights == sum(p.numel() * p.element_size() for p in runner.model.parameters())
    assert need.context == runner.context
    assert need.sequence_bytes(need.context) == runner.cache.n_bytes == memory.sequence_bytes(runner)


def test_planned_growth_equals_the_growth_of_the_kv_cache(folders: tuple[str, str]) -> None:
    runner = load_models(folders[0], None, device="cpu", dtype="float64").target
    slots = []
    for n in range(1, 6):
        before = runner.cache.n_rows
        planned = memory.growth_bytes(runner, n)
        slots.append(runner.open())
        runner.prefill(slots[-1], [1])
        grown = runner.cache.n_rows > before
        assert planned == (memory.sequence_bytes(runner) * runner.cache.n_rows if grown else 0)


# -- loading ----------------------------------------------------------------------------------------------------------


def test_models_are_loaded_once_for_concurrent_requests(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.service import modelpool

    loads: list[str] = []

    def counted(target: str, *args: Any, **options: Any) -> Any:
        loads.append(target)
        return load_models(target, *args, **options)

    monkeypatch.setattr(modelpool, "load_models", counted)
    bench = backend()
    runs = [bench.start(PROMPT, "draft-model", max_new_tokens=3, user=f"user {i}") for i in range(6)]
    assert len({tuple(run.wait(60).token_ids) for run in runs}) == 1
    assert len(loads) == 1
    roles = {entry["role"]: entry for entry in bench.loaded_models()}
    assert set(roles) == {"target", "drafter"}
    assert all(entry["bytes"] > 0 and entry["runs"] == 0 and entry["idle_s"] >= 0 for entry in roles.values())


def test_a_waiting_user_sees_stages_and_bytes(
    backend: Callable[..., Backend], folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int | None]] = []
    add = Progress.add

    def stage(self: Progress, stage: str, total: int | None = None) -> None:
        seen.append((stage, total))
        self._now = (stage, 0, total)

    def add_and_look(self: Progress, n: int) -> None:
        add(self, n)
        gate.wait(60)  # until the run has an id
        looked.append(run.since(0))

    looked: list[dict[str, Any]] = []
    monkeypatch.setattr(Progress, "stage", stage)
    monkeypatch.setattr(Progress, "add", add_and_look)
    gate = threading.Event()
    bench = backend()
    run = bench.start(PROMPT, "draft-model", max_new_tokens=2)
    gate.set()
    run.wait(120)
    weights = [sum(f.stat().st_size for f in Path(folder).glob("*.safetensors")) for folder in folders]
    stages = [("reading", n) for n in weights]
    assert seen == [s for reading in stages for s in (reading, ("building", None), ("calibrating", None))]
    assert looked[0]["loading"] == {"stage": "reading", "done": weights[0], "total": weights[0]}
    assert looked[0]["state"] == "loading"
    assert "reading" in looked[0]["message"]
    assert "MB" in looked[0]["message"]
    assert run.since(0)["loading"] is None


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")


def no_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize("spoil", [no_weights, no_tokenizer])
def test_a_failed_load_does_not_reveal_paths(
    backend: Callable[..., Backend],
    folders: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
) -> None:
    shutil.copytree(folders[0], tmp_path / "broken")
    spoil(tmp_path / "broken")
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path))
    with pytest.raises(ModelError, match=r"broken cannot be loaded") as refused:
        backend().load("broken")
    assert str(tmp_path) not in str(refused.value)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_model_is_unloaded_first(
    backend: Callable[..., Backend], folders: tuple[str, str], equal_size_targets: list[str]
) -> None:
    one, two, three = equal_size_targets
    bench = backend(memory_bytes=int(2.5 * size(one)))
    for target in (one, two, one, three):  # `two` is the least recently used when `three` is loaded
        run_on(bench, target).wait(120)
    assert names(bench) == {short_name(one), short_name(three)}
    assert bench.health()["memory"]["models"] <= bench.health()["memory"]["limit"]
    run_on(bench, two).wait(120)
    assert names(bench) == {short_name(two), short_name(three)}


def test_a_model_in_use_is_never_unloaded(backend: Callable[..., Backend], equal_size_targets: list[str]) -> None:
    one, two, three = equal_size_targets
    bench = backend(memory_bytes=int(1.9 * size(one)))
    held = run_on(bench, one, paused=True)
    wait_until(lambda: held.state == "paused")
    with pytest.raises(WorkbenchError, match=r"wait (for|until) .* runs? (to end|have ended)"):
        run_on(bench, two).wait(120)
    assert names(bench) == {short_name(one)}
    held.resume()
    held.wait(120)
    assert run_on(bench, three).wait(120).footer.reason == "length"
    assert names(bench) == {short_name(three)}


def test_a_saved_ended_run_does_not_keep_its_model_loaded(
    backend: Callable[..., Backend], equal_size_targets: list[str]
) -> None:
    import weakref

    bench = backend()
    run = run_on(bench, equal_size_targets[0])
    run.wait(120)
    (loaded,) = bench._pool.targets()
    model = weakref.ref(loaded.engine.models.target.model)
    del loaded
    bench.unload(equal_size_targets[0])

    def gone() -> bool:
        gc.collect()
        return model() is None

    wait_until(gone)  # the engine's thread may be in its last round's locals still
    assert bench.run(run.id).trace is not None


def test_unloading_is_refused_while_runs_use_the_model(
    backend: Callable[..., Backend], equal_size_targets: list[str]
) -> None:
    bench = backend()
    run = run_on(bench, equal_size_targets[0], paused=True)
    wait_until(lambda: run.state == "paused")
    assert [entry["runs"] for entry in bench.loaded_models()] == [1]
    with pytest.raises(CapacityError, match="in use by 1 run"):
        bench.unload(equal_size_targets[0])
    run.cancel()
    wait_until(lambda: run.ended)
    bench.unload(equal_size_targets[0])
    assert bench.loaded_models() == []
    with pytest.raises(UnknownNameError, match="not loaded"):
        bench.unload(equal_size_targets[0])


def test_a_model_that_cannot_fit_is_refused_with_a_remedy(
    backend: Callable[..., Backend], folders: tuple[str, str]
) -> None:
    bench = backend(memory_bytes=Need.of(folders[0], torch.float64, CPU).weights)
    with pytest.raises(CapacityError, match="smaller model, or start the server with --dtype bfloat16"):
        bench.load()


@pytest.mark.parametrize("fail", [raise_cpu_out_of_memory, raise_cuda_out_of_memory])
def test_out_of_memory_while_loading_is_reported_and_loading_works_again(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]
) -> None:
    from workbench.models import pretrained

    bench = backend()
    with monkeypatch.context() as patch:
        patch.setattr(pretrained, "pack", lambda model: fail())
        with pytest.raises(CapacityError, match=r"no memory left for .*smaller model"):
            bench.load()
    assert bench.loaded_models() == []
    assert len(bench.start(PROMPT, "draft-model", max_new_tokens=3).wait(120).token_ids) == 3


def test_a_run_that_cannot_fit_is_refused_with_the_length_that_does(
    backend: Callable[..., Backend], tmp_path: Path
) -> None:
    model_helpers.family("llama", vocab_size=257, max_position_embeddings=1024).save_pretrained(tmp_path)
    model_helpers.byte_tokenizer().save_pretrained(tmp_path)
    need = Need.of(str(tmp_path), torch.float64, CPU)
    bench = backend(memory_bytes=need.weights + need.sequence_bytes(300))
    with pytest.raises(WorkbenchError, match="max_new_tokens=291 or less"):
        bench.start(PROMPT, "autoregressive", target=str(tmp_path), max_new_tokens=500).wait(120)
    with pytest.raises(CapacityError, match="max_new_tokens=291 or less"):
        bench.start(PROMPT, "autoregressive", target=str(tmp_path), max_new_tokens=292)
    with pytest.raises(PromptError, match="context holds 300"):
        bench.start(PROMPT * 40, "autoregressive", target=str(tmp_path))
    fits = bench.start(PROMPT, "autoregressive", target=str(tmp_path), max_new_tokens=291, paused=True)
    wait_until(lambda: fits.state == "paused")
    assert fits.trace is not None
    assert fits.trace.header.max_new_tokens == 291


def test_runs_wait_for_memory_and_idle_models_are_unloaded(
    backend: Callable[..., Backend], equal_size_targets: list[str]
) -> None:
    one, two, _ = equal_size_targets
    need = Need.of(one, torch.float64, CPU)
    bench = backend(
        memory_bytes=2 * need.weights + int(3.5 * need.sequence_bytes(need.context))
    )  # growing to two sequences needs memory for three
    run_on(bench, two).wait(120)
    first, second, third = (run_on(bench, one, paused=True, user=name) for name in "abc")
    wait_until(lambda: second.state == "paused")  # the unused model was unloaded for it
    assert names(bench) == {short_name(one)}
    assert third.state == "queued"
    assert third.since(0)["queue"] == {"position": 1, "of": 1}
    first.cancel()
    wait_until(lambda: third.state == "paused")


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["start", "load", "methods", "drafters", "chat_prompt"])
def test_only_allowed_models_are_read(
    backend: Callable[..., Backend], equal_size_targets: list[str], call: str
) -> None:
    bench = backend(allow_models=(equal_size_targets[0],))
    first = {"start": [PROMPT, "autoregressive"], "chat_prompt": [[{"role": "user", "content": "a"}]]}.get(call, [])
    for name in (equal_size_targets[1], "owner/name", "../../etc", "/etc"):
        with pytest.raises(ModelError, match="does not allow the requested model") as refused:
            getattr(bench, call)(*first, target=name)
        assert name not in str(refused.value)
    if call == "start":
        with pytest.raises(ModelError, match="does not allow the requested model"):
            bench.start(PROMPT, drafter=equal_size_targets[1])
        assert run_on(bench, equal_size_targets[0]).wait(120).footer.reason == "length"


@pytest.mark.parametrize(
    "name",
    ["own er/name", "owner/../name", "a" * 200, "owner/na--me", "a\0b", "owner/name.git", "~no-such-user/x", "ä/b"],
)
def test_invalid_model_names_are_refused_at_once(backend: Callable[..., Backend], name: str) -> None:
    with pytest.raises(ModelError, match="not the name of a model"):
        backend().start(PROMPT, "autoregressive", target=name)


def test_a_closed_backend_releases_its_models_though_it_is_referenced(backend: Callable[..., Backend]) -> None:
    """Gradio keeps closed apps and thereby their backends: each one kept 300 MB of models."""
    bench = backend()
    bench.load()
    bench.start(PROMPT, "draft-model", max_new_tokens=2).wait(60)
    weights = weakref.ref(bench._pool.targets()[0].models[None].target.model)
    bench.close()
    assert weights() is None, "the weights are freed at once, despite reference cycles of the runners"
