"""GGUF export: every weight is exported unchanged, and llama.cpp, if installed, generates the same text."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from workbench.bench import llamacpp
from workbench.bench.contenders import EngineContender
from workbench.bench.interleaved_measurement import measure
from workbench.bench.prompts import load_prompts
from workbench.bench.sample import ContenderFailedError
from workbench.bench.tiny_models import tiny_model
from workbench.core.errors import ModelError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, load_models
from workbench.interop.gguf import export_gguf
from workbench.methods import registry

gguf = pytest.importorskip("gguf", reason="pip install gguf")


@pytest.fixture(scope="module")
def models() -> Models:
    return load_models("text-target", "auto", "cpu", "float32")


def separate(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo the export's permutation: move neighbouring dimensions of each head half a head apart again."""
    n = weight.shape[0] // heads
    order = [h * n + i for h in range(heads) for i in (*range(0, n, 2), *range(1, n, 2))]
    return weight[order]


@pytest.mark.parametrize("half", [False, True])
def test_every_weight_can_be_read_back(models: Models, tmp_path: Path, half: bool) -> None:
    model: Any = models.drafter and models.drafter.model
    reader = gguf.GGUFReader(export_gguf(model, models.tokenizer, tmp_path / "m.gguf", half=half))
    found = {t.name: t.data for t in reader.tensors}
    state = {n: w.float().numpy() for n, w in model.state_dict().items() if n != "lm_head.weight"}
    assert len(found) == len(state), "a tied head is not written twice"
    heads = model.config.num_attention_heads
    q, k = separate(found["blk.0.attn_q.weight"], heads), separate(found["blk.0.attn_k.weight"], heads)
    kind = np.float16 if half else np.float32
    assert np.array_equal(q, state["model.layers.0.self_attn.q_proj.weight"].astype(kind))
    assert np.array_equal(k, state["model.layers.0.self_attn.k_proj.weight"].astype(kind))
    assert np.array_equal(found["token_embd.weight"], state["model.embed_tokens.weight"].astype(kind))
    assert np.array_equal(found["output_norm.weight"], state["model.norm.weight"]), "norms stay float32"
    plain = {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj"}  # fmt: skip
    for theirs, ours in plain.items():
        assert np.array_equal(found[f"blk.0.{theirs}.weight"], state[f"model.layers.0.{ours}.weight"].astype(kind))
    fields = reader.fields
    assert fields["llama.block_count"].contents() == model.config.num_hidden_layers
    assert fields["llama.rope.freq_base"].contents() == model.config.rope_parameters["rope_theta"]
    assert fields["tokenizer.ggml.tokens"].contents() == models.tokenizer.convert_ids_to_tokens(
        list(range(model.config.vocab_size))
    )


def test_models_that_llama_cpp_would_run_wrongly_are_refused(models: Models, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16))
    with pytest.raises(ModelError, match="model type is gpt2"):
        export_gguf(other, models.tokenizer, path)
    scaled = tiny_model(16, 0)
    scaled.config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(ModelError, match="its RoPE is scaled"):
        export_gguf(scaled, models.tokenizer, path)
    assert not path.exists()


@pytest.mark.slow
def test_llama_cpp_generates_the_same_tokens(models: Models, tmp_path: Path) -> None:
    """Plain, with its prompt lookup and with the drafter, compared with our engine's plain decoding, in float32."""
    pytest.importorskip("xllamacpp", reason="pip install xllamacpp")
    assert not llamacpp.why_not(models)
    methods = [registry.get(name).with_params() for name in ("draft-model", "prompt-lookup")]
    ours = EngineContender(Engine(models), registry.get("autoregressive").with_params(), SamplingParams(), 24)
    with llamacpp.contenders(models, methods, 24, SamplingParams(), 0, tmp_path) as theirs:
        assert [c.name for c in theirs] == ["llama.cpp", "llama.cpp-draft", "llama.cpp-lookup"]
        rounds = dict.fromkeys((c.name for c in theirs), 0)
        for prompt in load_prompts()[::6]:
            ids = prompt.encode(models.tokenizer)
            wanted = ours.run(ids).token_ids
            for contender in theirs:
                sample = contender.run(ids)
                assert sample.token_ids == wanted, f"{contender.name} on {prompt.name}"
                rounds[contender.name] += sample.rounds
        assert rounds["llama.cpp-draft"] < rounds["llama.cpp"]
        assert rounds["llama.cpp-lookup"] < rounds["llama.cpp"]
        for text in ("It's 1234 dragons, don't you think?\n\n  Yes!", "naïve café — 42%"):
            assert theirs[0].tokenise(text) == models.tokenizer(text)["input_ids"]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_crash_of_a_peer_is_reported_and_others_continue(models: Models, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install xllamacpp")
    ours = EngineContender(Engine(models), registry.get("autoregressive").with_params(), SamplingParams(), 4)
    ids, ended = load_prompts()[0].encode(models.tokenizer), []
    with llamacpp.contenders(models, [], 4, SamplingParams(), 0, tmp_path) as (peer,):
        assert isinstance(peer, llamacpp.LlamaCppContender)
        assert peer.run(ids).token_ids == ours.run(ids).token_ids
        assert peer._process
        peer._process.send_signal(signal.SIGSEGV)  # as compiled code that crashes ends
        samples, complete = measure(
            [ours, peer], [ids], 2, on_failure=lambda c, error: ended.append((c.name, str(error)))
        )
    assert complete
    assert {s.contender for s in samples} == {"autoregressive"}
    assert ended == [("llama.cpp", ended[0][1])]
    assert f"signal {signal.SIGSEGV:d}" in ended[0][1]


@pytest.mark.slow
def test_file_that_llama_cpp_refuses_excludes_only_that_peer(models: Models, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install xllamacpp")
    with llamacpp.contenders(models, [], 4, SamplingParams(), 0, tmp_path) as (peer,):
        (tmp_path / "target.gguf").write_bytes(b"GGUF, not quite")
        with pytest.raises(ContenderFailedError, match="did not start"):
            peer.run([1, 2, 3])


def test_peer_that_cannot_run_is_excluded_with_the_reason(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp.importlib.util, "find_spec", lambda name: None)
    assert "pip install xllamacpp" in llamacpp.why_not(models)
    monkeypatch.undo()
    monkeypatch.setattr(llamacpp.importlib.util, "find_spec", lambda name: name)
    assert not llamacpp.why_not(models)
    monkeypatch.setattr(models.target, "dtype", torch.float64)
    assert "float32" in llamacpp.why_not(models)
