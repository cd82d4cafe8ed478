"""Tree logits equal separate full forward passes of each path, in float64, for every supported model family."""

from __future__ import annotations

from typing import Any

import model_helpers
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from workbench.core.errors import ModelError
from workbench.engine import Engine, Models, Request, Runner
from workbench.kernels.segment import Segment
from workbench.methods import registry
from workbench.models import admission

hf: Any = transformers  # configurations take more arguments than their stubs declare
TOLERANCE = 1e-12
PARENTS = ([-1, -1, 0, 0, 1, 2, 5], [-1, 0, 0])
PATHS = ([0, 2, 5, 6], [0, 2])


@pytest.fixture(autouse=True)
def _llama4_routes_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 4's router takes its sigmoid in float32 whatever the dtype. The vectorised sigmoid rounds differently from
    the scalar one at the end of an array: a difference of 5e-7 between one token and several, which is not tested.
    """

    def route(self: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.nn.functional.linear(hidden_states, self.weight, self.bias)
        value, index = torch.topk(logits, self.top_k, dim=1)
        return torch.full_like(logits, -torch.inf).scatter_(1, index, value).sigmoid(), logits

    monkeypatch.setattr(hf.models.llama4.modeling_llama4.Llama4Router, "forward", route)


TEMPERED = {"attn_temperature_tuning": True, "floor_scale": 3, "attn_scale": 1.0, "num_hidden_layers": 4}
"""Llama 4 whose fourth layer has no rotary embedding, and scales queries by position from the third token on."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in model_helpers.FAMILIES},
    "llama4_text, tempered": ("llama4_text", TEMPERED),
    "mistral, stray switch": ("mistral", {"use_sliding_window": False}),
    "qwen2, own windows": ("qwen2", {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_tree_logits_equal_full_forwards_of_each_path(name: str, device: str) -> None:
    family, values = VARIANTS[name]
    model = model_helpers.family(family, device=device, **values)
    runner, ask = Runner(model), model_helpers.next_logits_function(model)
    texts = [model_helpers.random_prompt(11, seed=1), model_helpers.random_prompt(5, seed=2)]
    drafts = [model_helpers.random_prompt(7, seed=3), model_helpers.random_prompt(3, seed=4)]
    slots = [runner.open(), runner.open()]
    for slot, text in zip(slots, texts, strict=True):
        runner.prefill(slot, text[:-1], chunk=4)
    for turn in range(3):  # before, after one and after two commits
        batch = [
            model_helpers.tree_segment(slot, text[-1], draft, parents, device)
            for slot, text, draft, parents in zip(slots, texts, drafts, PARENTS, strict=True)
        ]
        out = runner.forward(batch if turn else batch[::-1])  # in any order
        for b in range(2):
            error = model_helpers.tree_error(out.logits[b], texts[b], drafts[b], PARENTS[b], ask)
            assert error < TOLERANCE, f"row {b}, turn {turn}: {error}"
            runner.commit(slots[b], [0, *(node + 1 for node in PATHS[b])])
            texts[b] += [drafts[b][i] for i in PATHS[b]] + model_helpers.random_prompt(1, seed=10 * turn + b)


@pytest.mark.parametrize("name", model_helpers.FAMILIES)
def test_embedding_input_equals_its_token(name: str, device: str) -> None:
    """Also in families that scale embeddings or add positions to them; the placeholder token id is not used."""
    model = model_helpers.family(name, device=device)
    runner = Runner(model)
    slot, text = runner.open(), model_helpers.random_prompt(12)
    runner.prefill(slot, text[:-2], chunk=5)
    tokens = torch.tensor(text[-2:], device=device)
    with torch.inference_mode():
        states = runner.embed(tokens)
    out = runner.forward([Segment(slot, torch.full_like(tokens, 7), states=states)])
    assert float((out.logits[0, -1] - model_helpers.next_logits_function(model)(text)).abs().max()) < TOLERANCE
    slot.scratch = 0
    out = runner.forward([Segment(slot, tokens)])
    assert float((out.logits[0, -1] - model_helpers.next_logits_function(model)(text)).abs().max()) < TOLERANCE, (
        "and only in that pass"
    )


@pytest.mark.parametrize("name", model_helpers.FAMILIES)
def test_first_layers_equal_a_model_of_that_depth(name: str, device: str) -> None:
    model = model_helpers.family(name, device=device)
    runner = Runner(model)
    slot, text = runner.open(), model_helpers.random_prompt(12)
    runner.prefill(slot, text[:-2], chunk=5)
    out = runner.forward([Segment(slot, torch.tensor(text[-2:], device=device))], layers=(0, 1))

    fewer: dict[str, Any] = {"num_hidden_layers": 2}
    if name in ("gemma3_text", "gpt_oss"):
        fewer["layer_types"] = model.config.layer_types[:2]
    config = model_helpers.FAMILIES[name](**fewer)
    shallow: Any = model_helpers.random_model(config, device=device)
    shallow.load_state_dict(model.state_dict(), strict=False)
    wanted = model_helpers.next_logits_function(shallow)(text)
    assert float((out.logits[0, -1] - wanted).abs().max()) < TOLERANCE

    runner.rewind(slot, len(text) - 2)  # the whole model overwrites the entries of the first layers
    out = runner.forward([Segment(slot, torch.tensor(text[-2:], device=device))])
    assert float((out.logits[0, -1] - model_helpers.next_logits_function(model)(text)).abs().max()) < TOLERANCE


def test_draft_continues_over_several_forward_passes(device: str) -> None:
    """Later passes attend to scratch nodes of earlier ones at their own positions, also in sliding layers."""
    model = model_helpers.family("gemma3_text", device=device)
    runner, ask = Runner(model), model_helpers.next_logits_function(model)
    text, draft, parents = model_helpers.random_prompt(9), model_helpers.random_prompt(5, seed=5), [-1, -1, 0, 1, 2]
    slot = runner.open()
    runner.prefill(slot, text[:-1])
    whole = model_helpers.tree_segment(slot, text[-1], draft, parents, device)
    assert whole.attention_mask is not None
    assert whole.depth is not None
    for a, b in ((0, 1), (1, 3), (3, 6)):  # the root, the first level, the rest
        part = Segment(slot, whole.tokens[a:b], whole.attention_mask[a:b, :b], whole.depth[a:b])
        out = runner.forward([part])
        for node in range(a - 1, b - 1):
            wanted = ask([*text, *(draft[i] for i in model_helpers.path_to(parents, node))])
            assert float((out.logits[0, node + 1 - a] - wanted).abs().max()) < TOLERANCE


def test_closing_a_sequence_moves_the_last_one_into_its_slot(device: str) -> None:
    model = model_helpers.family("llama", device=device)
    runner, ask = Runner(model), model_helpers.next_logits_function(model)
    texts = [model_helpers.random_prompt(4 + i, seed=i) for i in range(3)]
    slots = [runner.open() for _ in texts]
    for slot, text in zip(slots, texts, strict=True):
        runner.prefill(slot, text[:-1])
    runner.close(slots[0])
    assert {slot.index for slot in slots[1:]} == {0, 1}
    for slot, text in zip(slots[1:], texts[1:], strict=True):
        out = runner.forward([Segment(slot, torch.tensor(text[-1:], device=device))])
        assert float((out.logits[0, -1] - ask(text)).abs().max()) < TOLERANCE


RECURRENT = {
    "mamba": lambda: hf.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4),
    "mamba2": lambda: hf.Mamba2Config(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4, num_heads=4, head_dim=8, n_groups=1
    ),
    "falcon_mamba": lambda: hf.FalconMambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4),
    "rwkv": lambda: hf.RwkvConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=4,
        linear_value_head_dim=4, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    ),
    "jamba": lambda: hf.JambaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, num_experts=2, num_experts_per_tok=1, mamba_d_state=4, mamba_dt_rank=2,
        attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False,
    ),
    "recurrent_gemma": lambda: hf.RecurrentGemmaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, lru_width=16,
    ),
    "lfm2": lambda: hf.Lfm2Config(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, layer_types=["conv", "conv", "full_attention", "conv"],
    ),
    "bamba": lambda: hf.BambaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, attn_layer_indices=[1], mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4,
        mamba_n_groups=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_models_with_recurrent_state_are_refused_with_the_name_of_their_layers(name: str) -> None:
    model = AutoModelForCausalLM.from_config(RECURRENT[name]())
    with pytest.raises(ModelError, match="keeps a recurrent state") as caught:
        Runner(model)
    assert "layers of type recurrent state" not in caught.value.message
    assert "Use a target whose layers are all attention" in caught.value.remedy


ONLY_ATTENTION: dict[str, Any] = {
    "lfm2": lambda: hf.Lfm2Config(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, layer_types=["full_attention"] * 2,
    ),
    "granitemoehybrid": lambda: hf.GraniteMoeHybridConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, shared_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, layer_types=["attention"] * 2, num_local_experts=0,
        mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4,
    ),
}  # fmt: skip
"""Models of hybrid families whose layers are all attention: they keep no recurrent state."""


@pytest.mark.parametrize("name", ONLY_ATTENTION)
def test_hybrids_of_attention_layers_alone_decode_like_generate(name: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(ONLY_ATTENTION[name]()).double().eval()
    runner = Runner(model)
    admission.admit(runner, "Mine")
    prompt = model_helpers.random_prompt(9)
    engine = Engine(Models(runner, model_helpers.letter_tokenizer(64), "mine"))
    trace = engine.generate(Request(prompt, registry.get("jacobi"), max_new_tokens=12))
    assert trace.token_ids == model_helpers.hf_greedy(model, prompt, 12)


def test_encoder_decoders_are_refused() -> None:
    config = hf.T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    with pytest.raises(ModelError, match="encoder–decoder") as caught:
        Runner(hf.T5ForConditionalGeneration(config))
    assert "decoder-only" in caught.value.remedy
