"""Self-test of a model before decoding: models that would give other text are refused with name and reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
import transformers

from workbench.bench.tiny_config import tiny_config
from workbench.core.errors import MethodUnavailableError, ModelError, ParameterError, PromptError
from workbench.engine import Engine, Models, Request, Runner, load_models
from workbench.interop import speculative
from workbench.kernels import attention_temperature, disk_cache
from workbench.kernels.attention_span import AttentionSpan, AttentionSpans
from workbench.kernels.disk_cache import cache_folder
from workbench.kernels.kv_cache import TreeCache
from workbench.methods import registry
from workbench.methods.choice import choose
from workbench.models import admission, model_self_test
from workbench.models.model_self_test import SelfTestResult
from workbench.models.runner import SCRATCH
from workbench.trace.store import default_folder

hf: Any = transformers
SOUND = ("llama", "gemma3_text", "mixtral")
ALIBI: dict[str, dict[str, Any]] = {"falcon": {"alibi": True, "new_decoder_architecture": False}}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def tiny(name: str, dtype: torch.dtype = torch.float64, scale: float = 12.0, **values: Any) -> Any:
    return model_helpers.random_model(tiny_config(name, **values), scale=scale).to(dtype)


@pytest.fixture(autouse=True)
def _facts_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SOUND)
def test_supported_model_passes_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    assert model_self_test.run_self_test(Runner(tiny(name, dtype))) == SelfTestResult()


@pytest.mark.parametrize("scale", [1.0, 12.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_alibi_supports_only_chains_in_every_dtype(dtype: torch.dtype, scale: float) -> None:
    """With the usual initial weights, attention is nearly flat, and ALiBi's error below bfloat16's rounding error."""
    found = model_self_test.run_self_test(Runner(tiny("mpt", dtype, scale)))
    assert found.why_not == ""
    assert "second branch" in found.why_no_trees


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["roformer", "trocr", "bart"])
def test_decoder_with_its_own_positions_is_refused(name: str, dtype: torch.dtype) -> None:
    runner = Runner(tiny(name, dtype))
    with pytest.raises(ModelError, match=rf"^Mine \({name}\) is not supported: .*other logits"):
        admission.admit(runner, "Mine")


@pytest.mark.parametrize("name", ["bloom", "falcon", "xglm", "deepseek_v32", "glm_moe_dsa", "cpmant"])
def test_model_that_would_fail_in_a_run_is_refused_before(name: str) -> None:
    runner = Runner(tiny(name, **ALIBI.get(name, {})))
    with pytest.raises(ModelError, match=rf"^Mine \({name}\) is not supported: ") as caught:
        admission.admit(runner, "Mine")
    assert "another family" in caught.value.remedy


def test_bidirectional_model_is_refused_for_that_reason() -> None:
    with pytest.raises(ModelError, match="depend on later tokens"):
        admission.admit(Runner(tiny("bert", is_decoder=False)), "Mine")


def test_self_test_leaves_the_runner_unchanged() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny("llama", dtype)
        before = {name: (w.dtype, w.data_ptr(), w._version) for name, w in model.named_parameters()}
        runner = Runner(model)
        state = runner.cache, runner.slots, runner.geometry, runner._lean, runner.meter
        hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        admission.admit(runner, "Mine")
        assert all(
            a is b
            for a, b in zip(
                state, (runner.cache, runner.slots, runner.geometry, runner._lean, runner.meter), strict=True
            )
        )
        assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == hooks
        assert {name: (w.dtype, w.data_ptr(), w._version) for name, w in model.named_parameters()} == before
        assert runner.why_no_trees == ""


# -- consequences for runs ---------------------------------------------------------------------------------------------


def saved(folder: Path, name: str, **values: Any) -> Path:
    tiny(name, **values).save_pretrained(folder)
    model_helpers.letter_tokenizer(64).save_pretrained(folder)
    return folder


def test_alibi_target_decodes_with_chains_and_refuses_methods_with_trees(tmp_path: Path) -> None:
    folder = str(saved(tmp_path / "mpt", "mpt"))
    models = load_models(folder, folder, device="cpu", dtype="float64")
    prompt = model_helpers.repeating_prompt(9)
    wanted = model_helpers.hf_greedy(models.target.model, prompt, 12)
    engine = Engine(models)
    for name in ("autoregressive", "draft-model", "prompt-lookup", "early-exit"):
        assert engine.generate(Request(prompt, registry.get(name), max_new_tokens=12)).token_ids == wanted, name
    for name in ("draft-tree", "draft-tree-sampled", "token-recycling", "lookahead-trie"):
        with pytest.raises(
            MethodUnavailableError, match=r"can verify draft chains but not draft trees: .* second branch"
        ):
            engine.submit(Request(prompt, registry.get(name)))
    assert choose(lambda name: models.unsupported_reason(registry.get(name).needs)) == ("draft-model", "")


def test_unexpected_tree_ends_its_run_with_the_reason() -> None:
    """It may come from a policy that branches, or from a custom method that does not declare its trees."""
    models = model_helpers.make_models("llama")
    models.target.why_no_trees = "Mine can verify draft chains but not draft trees: so it is."
    row = Engine(models).submit(Request(model_helpers.random_prompt(5), registry.get("draft-model")))
    slot = models.target.open()
    models.target.prefill(slot, model_helpers.random_prompt(4))
    with pytest.raises(ModelError, match="draft chains but not draft trees"):
        models.target.forward([model_helpers.tree_segment(slot, 1, [2, 3], [-1, -1])])
    assert row.status


def test_encoder_decoders_are_refused_as_such(tmp_path: Path) -> None:
    t5 = hf.T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    hf.T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    hf.BartForConditionalGeneration(tiny_config("bart")).save_pretrained(tmp_path / "bart")
    for kind in ("t5", "bart"):
        with pytest.raises(ModelError, match=rf"\({kind}\) is an encoder–decoder"):
            load_models(str(tmp_path / kind), None, device="cpu")


def test_self_test_result_is_cached_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = saved(tmp_path / "gpt2", "gpt2"), []
    monkeypatch.setattr(admission, "run_self_test", lambda runner: asked.append(runner) or SelfTestResult())
    load_models(str(folder), None, device="cpu")
    load_models(str(folder), None, device="cpu")
    assert len(asked) == 1
    load_models(str(folder), None, device="cpu", dtype="bfloat16")
    assert len(asked) == 2
    os.utime(folder / "model.safetensors", ns=(1, 1))
    load_models(str(folder), None, device="cpu")
    assert len(asked) == 3


@pytest.mark.parametrize("lacks", ["home", "folder"])
def test_unwritable_disk_cache_raises_no_error(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users: one in a container without a passwd entry, one whose home is read-only."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "WORKBENCH_RUNS", "WORKBENCH_CACHE"):
        monkeypatch.delenv(name, raising=False)
    if lacks == "home":
        monkeypatch.setattr("pwd.getpwuid", unknown)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    disk_cache.write("facts.json", {"a": 1})
    assert disk_cache.read("facts.json") == {}
    assert default_folder().is_absolute()
    assert cache_folder().is_absolute()
    if lacks == "home":
        assert cache_folder().parent.stat().st_mode & 0o777 == 0o700, (
            "a folder that only this user can have created and can enter"
        )


def test_without_files_the_result_is_cached_with_the_model_until_its_weights_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, asked = tiny("llama"), []
    monkeypatch.setattr(admission, "run_self_test", lambda runner: asked.append(runner) or SelfTestResult())
    for _ in range(2):
        admission.admit(Runner(model), "Mine")
    assert len(asked) == 1
    model.get_input_embeddings().weight.data.mul_(2)
    model.get_input_embeddings().weight.add_(0)
    admission.admit(Runner(model), "Mine")
    assert len(asked) == 2


# -- thresholds beyond the tested length -------------------------------------------------------------------------------

TEMPERED: dict[str, Any] = {"num_hidden_layers": 4, "attn_temperature_tuning": True, "attn_scale": 1.0}
"""Llama 4 whose fourth layer has no rotary embedding, and scales its queries."""
FAR: dict[str, Callable[[], Any]] = {
    "mistral": lambda: tiny("mistral", sliding_window=4096, max_position_embeddings=8192),
    "gemma3_text": lambda: tiny("gemma3_text", max_position_embeddings=8192),
    "llama4_text": lambda: model_helpers.family("llama4_text", floor_scale=8192, attention_chunk_size=8192, **TEMPERED),
    "ministral3": lambda: tiny("ministral3"),
}
"""Families whose windows, chunks and temperatures begin after more tokens than the self-test reads."""


@pytest.mark.parametrize("name", FAR)
def test_supported_model_passes_with_its_thresholds_scaled_down(name: str) -> None:
    model = FAR[name]()
    before = model.config.to_dict()
    runner = Runner(model)
    spans = runner.geometry.masks.spans
    assert model_self_test.run_self_test(runner) == SelfTestResult()
    assert model.config.to_dict() == before
    assert runner.geometry.masks.spans == spans
    with model_self_test.scaled_down(runner):
        assert model.config.to_dict() != before, "nothing was scaled down, so that the test would detect no error"


@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_missing_window_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = AttentionSpans({"full_attention": AttentionSpan()})
    monkeypatch.setattr(model_self_test, "attention_spans", lambda model, reach: whole)
    with pytest.raises(ModelError, match="other logits than in its whole text"):
        admission.admit(Runner(FAR[name]()), "Mine")


@pytest.mark.parametrize("package", ["core", "kernels", "models"])
def test_change_of_the_tested_code_invalidates_cached_results(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in admission.CHECKED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text(f"NAME = {name!r}")
    monkeypatch.setattr(admission, "SOURCES", tmp_path)
    before = admission._code.__wrapped__()
    (tmp_path / package / "code.py").write_text("NAME = None")
    assert admission._code.__wrapped__() != before


def test_fingerprint_covers_the_code_that_self_tests_import() -> None:
    assert all((admission.SOURCES / name / "__init__.py").is_file() for name in admission.CHECKED)
    imported = {
        line.split()[1].split(".")[1]
        for path in Path(admission.__file__).parent.glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("from workbench.")
    }
    assert imported - {"trace"} == set(admission.CHECKED), "traces record passes; no forward pass reads them"


def test_temperature_by_cache_length_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_temperature, "ATTENTION", "none")
    with pytest.raises(ModelError, match="other logits than in its whole text"):
        admission.admit(Runner(FAR["llama4_text"]()), "Mine")


def test_llama_4_is_unchanged_for_direct_calls() -> None:
    model = model_helpers.family("llama4_text", floor_scale=3, **TEMPERED)
    ids = torch.tensor([model_helpers.random_prompt(12)])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(ids, **options)
    runners = [Runner(model), Runner(model)]  # as in `generate` of the model itself: queries are scaled once
    assert model.generate(ids, **options).tolist() == wanted.tolist()
    models = Models(runners[0], model_helpers.letter_tokenizer(64), "mine")
    requests = [Request(ids[0, -n:].tolist(), registry.get("prompt-lookup"), max_new_tokens=12) for n in (12, 2)]
    assert model_helpers.generate_batched(models, requests)[0] == wanted[0, 12:].tolist()
    assert all(layer.self_attn.attn_temperature_tuning for layer in model.model.layers)


def test_a_model_that_takes_its_own_cache_class_alone_is_refused_without_names_of_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MiniMax raises an error that names the class of the cache it was given."""

    def refuse(runner: Runner, text: int) -> SelfTestResult:
        raise ValueError(f"MiniMax uses cache of its own and is not compatible with {TreeCache}")

    monkeypatch.setattr(model_self_test, "_compare", refuse)
    with pytest.raises(ModelError) as refused:
        admission.admit(Runner(tiny("llama")), "Mine")
    assert "only its own class of KV cache" in refused.value.message
    assert "TreeCache" not in str(refused.value)


def test_doge_ends_before_its_layers_drop_keys() -> None:
    models = Models(Runner(tiny("doge", keep_window_size=SCRATCH + 20)), model_helpers.letter_tokenizer(64), "doge")
    assert models.target.context == 20
    trace = Engine(models).generate(Request(model_helpers.random_prompt(9), registry.get("jacobi"), max_new_tokens=40))
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, model_helpers.random_prompt(9), 11)
    assert f"with more than {SCRATCH + 20:,} cached keys" in trace.footer.warnings[0]
    with pytest.raises(ModelError, match="cached keys, including those of drafted tokens"):
        Runner(tiny("doge", keep_window_size=32))


# -- contexts that end early ------------------------------------------------------------------------------------------

LONGROPE = {
    "max_position_embeddings": 128,
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
        "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 6.0],
    },
}  # fmt: skip


def test_longrope_context_ends_where_its_factors_change_with_a_note() -> None:
    model = tiny("phi3", **LONGROPE)
    models = Models(Runner(model), model_helpers.letter_tokenizer(64), "phi")
    assert models.target.context == 32
    engine, prompt = Engine(models), model_helpers.repeating_prompt(20)
    trace = engine.generate(Request(prompt, registry.get("prompt-lookup"), max_new_tokens=40))
    assert trace.token_ids == model_helpers.hf_greedy(model, prompt, 12)
    assert "cut from 40 to 12: after 32 tokens this model rotates its keys by other factors" in trace.footer.warnings[0]
    with pytest.raises(PromptError, match="longrope"):
        engine.submit(Request(model_helpers.random_prompt(33), registry.get("prompt-lookup")))
    ids = torch.tensor([prompt])
    out = model.generate(ids, custom_generate=speculative("prompt-lookup"), max_length=32, do_sample=False)
    assert out[0].tolist() == prompt + trace.token_ids
    with pytest.raises(ModelError, match="cannot generate texts of up to 33 tokens: after 32 tokens"):
        model.generate(ids, custom_generate=speculative("prompt-lookup"), max_length=33, do_sample=False)


# -- generate's positions ---------------------------------------------------------------------------------------------


def test_custom_positions_are_refused_by_generate() -> None:
    model = tiny("gpt2")
    ids = torch.tensor([model_helpers.random_prompt(6), [0, 0, *model_helpers.random_prompt(4)]])
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    usual = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(ids, position_ids=usual, **options)
    found = model.generate(ids, position_ids=usual, custom_generate=speculative("prompt-lookup"), **options)
    assert found.tolist() == wanted.tolist()
    with pytest.raises(ParameterError, match="position_ids that do not count the prompt's tokens"):
        model.generate(ids, position_ids=usual + 3, custom_generate=speculative("prompt-lookup"), **options)
