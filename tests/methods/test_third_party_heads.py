"""Third-party heads draft here as in their own code, and the text stays the target's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import layouts
import model_helpers
import pytest
import torch
from layouts import PUBLISHED, SMALL, SMALL3, write
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from workbench.engine import Engine, Models, Request, load_models
from workbench.methods import registry
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.common.trained_net import head_of, load_trained
from workbench.methods.medusa.drafter import MedusaHeads, MedusaState
from workbench.models.checkpoints import user_heads
from workbench.models.checkpoints.layouts import read_checkpoint
from workbench.models.loading import HeadInfo, find_heads

pytestmark = pytest.mark.usefixtures("no_user_heads")


@pytest.fixture(scope="module")
def text_models() -> Models:
    return load_models("text-target", None, "cpu", "float32")


def make_small_models(**overrides: Any) -> Models:
    """Return a tiny target with an embedding and a configuration for which heads can be made."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "vocab_size": 257}
    return model_helpers.make_models("llama", noise=None, **(sizes | overrides))


def run(models: Models, method: str, prompt: list[int], n: int = 24, **params: Any) -> Any:
    request = Request(prompt, registry.get(method).with_params(**params), max_new_tokens=n, seed=1)
    return Engine(models, max_sequences=1).generate(request)


def load_user_heads(place: Path, models: Models) -> HeadInfo:
    """Load the heads in a folder as for a target that is already loaded."""
    user_heads.use_heads(str(place))
    models.heads = find_heads(models.target_name, models.target)
    models.shared = {}
    return next(info for info in models.heads.values() if info.folder == place)


def with_embedding(models: Models) -> dict[str, torch.Tensor]:
    return {"embed_tokens.weight": models.target.model.get_input_embeddings().weight.detach().float().clone()}


@pytest.mark.parametrize("bias", [False, True])
def test_eagle_layer_equals_transformers_layer(tmp_path: Path, bias: bool) -> None:
    """The reference is fc over [embedding; feature], then Llama's own layer without its first norm."""
    models = make_small_models()
    scaled = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = SMALL | {"rope_scaling": scaled | {"original_max_position_embeddings": 16}}
    folder = write(tmp_path / "heads", config, layouts.eagle(config, bias=bias), **with_embedding(models))
    info = load_user_heads(folder, models)
    assert info.problem == ""
    net = load_trained(FeatureNet, models, "heads", "")
    rope = scaled | {"original_max_position_embeddings": 16, "rope_theta": 500.0}
    plain = {k: v for k, v in config.items() if k not in ("rope_scaling", "rope_theta", "architectures", "model_type")}
    llama = LlamaConfig(**plain, rope_parameters=rope, attention_bias=bias, attn_implementation="eager")
    theirs = LlamaDecoderLayer(llama, 0).double()
    theirs.input_layernorm = nn.Identity()
    read_back = {
        n: w.double() for n, w in read_checkpoint(folder).files.tensors(layouts.eagle(config, bias=bias)).items()
    }
    inside = {n.removeprefix("layers.0."): w for n, w in read_back.items() if n.startswith("layers.0.")}
    missing = theirs.load_state_dict(inside, strict=False).missing_keys
    assert set(missing) <= {"self_attn.o_proj.bias"}
    if bias:
        nn.init.zeros_(theirs.self_attn.o_proj.bias)
    n, places = 9, torch.arange(9)
    embeds, features = torch.randn(2, 1, n, 16, dtype=torch.float64).unbind(0)
    x = nn.functional.linear(torch.cat([embeds, features], -1), read_back["fc.weight"], read_back["fc.bias"])
    mask = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    turned = LlamaRotaryEmbedding(llama)(x, places[None])
    found = theirs(x, attention_mask=mask, position_embeddings=turned)
    wanted = found if isinstance(found, torch.Tensor) else found[0]
    assert torch.allclose(net(net.make_pairs(embeds, features), places), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "kind"), [(1, "theirs"), (2, "theirs"), (1, "vllm"), (1, "mapped"), (1, "rows of all")]
)
def test_medusa_computes_its_own_heads(tmp_path: Path, layers: int, kind: str) -> None:
    models = make_small_models()
    kept = torch.tensor([9, 4, 200, 17])
    if kind == "theirs":
        folder = write(tmp_path / "heads", layouts.MEDUSA, layouts.medusa(16, 257, 3, layers))
    else:
        mapped = kind != "vllm"
        rows = 4 if kind == "mapped" else 257
        shapes = layouts.medusa_vllm(16, rows, mapped=mapped)
        config = PUBLISHED["medusa-vllm"][2] | {"hidden_size": 16, "vocab_size": 257}
        config |= {"truncated_vocab_size": 4} if mapped else {}
        folder = write(tmp_path / "heads", config, shapes, **({"token_map": kept} if mapped else {}))
    assert load_user_heads(folder, models).problem == ""
    hidden = torch.randn(2, 16, dtype=torch.float64)
    state = MedusaState(load_trained(MedusaHeads, models, "heads", ""), head_of(MedusaHeads, models))
    weights = {
        n: w.double() for n, w in read_checkpoint(folder).files.tensors(read_checkpoint(folder).files.shapes).items()
    }
    for k in range(3):
        x = hidden
        for j in range(layers):
            name, bias = (f"{k}.{j}.linear", True) if kind == "theirs" else (f"blocks.{k}.layers.{j}", False)
            x = x + nn.functional.silu(
                nn.functional.linear(x, weights[f"{name}.weight"]) + (weights[f"{name}.bias"] if bias else 0)
            )
        table = weights[f"{k}.{layers}.weight" if kind == "theirs" else f"lm_heads.{k}.weight"]
        wanted = x @ table.T
        whole = state.level_logits(hidden, k)
        if kind in ("mapped", "rows of all"):
            assert set(whole[0].isfinite().nonzero()[:, 0].tolist()) == set(kept.tolist())
            wanted = wanted if kind == "mapped" else wanted[:, kept]
            assert torch.allclose(whole[:, kept], wanted, atol=1e-6), "each row belongs to its own token"
            best = state.head_logits(hidden)[:, k].argmax(-1)
            assert torch.equal(state.head.to_token_ids(best), kept[wanted.argmax(-1)])
        else:
            assert torch.allclose(whole, wanted, atol=1e-6)
            assert torch.allclose(state.head_logits(hidden)[:, k], wanted, atol=1e-6)


@pytest.mark.parametrize(("method", "shapes"), [("eagle-2", layouts.eagle(SMALL)), ("medusa", layouts.medusa(16, 257))])
def test_foreign_heads_draft_and_greedy_text_is_the_targets(
    tmp_path: Path, method: str, shapes: layouts.Shapes
) -> None:
    models = make_small_models()
    embed = with_embedding(models) if method == "eagle-2" else {}
    config = SMALL if method == "eagle-2" else layouts.MEDUSA
    load_user_heads(write(tmp_path / "heads", config, shapes, **embed), models)
    prompt = model_helpers.random_prompt(12, 200)
    plain, drafted = run(models, "autoregressive", prompt), run(models, method, prompt)
    assert drafted.token_ids == plain.token_ids
    assert sum(len(r.nodes.tokens) for r in drafted.rounds) > 24, "there are drafts"


def test_heads_of_other_weights_or_another_target_are_refused(tmp_path: Path) -> None:
    models = make_small_models()
    info = load_user_heads(write(tmp_path / "a", SMALL, layouts.eagle(SMALL)), models)  # its embedding is random
    assert "the head was trained for other weights" in info.problem
    assert "other weights" in models.missing_reason("eagle")
    wide = make_small_models(hidden_size=32, num_attention_heads=4, head_dim=8)
    info = load_user_heads(write(tmp_path / "b", SMALL, layouts.eagle(SMALL, embed=False)), wide)
    assert "it is for a target of hidden size 16" in info.problem
    eagle3 = load_user_heads(
        write(tmp_path / "c", SMALL3, layouts.eagle3(SMALL3)), make_small_models(num_hidden_layers=8)
    )
    assert eagle3.problem == "", "read and checked for each method that uses it"


def test_matching_heads_replace_bundled_ones_and_others_do_not(tmp_path: Path, text_models: Models) -> None:
    bundled = text_models.heads["medusa"].name
    user_heads.use_heads(str(write(tmp_path / "mine", layouts.MEDUSA, layouts.medusa(288, 4096, 2))))
    assert find_heads("text-target", text_models.target)["medusa"].name == "mine"
    user_heads.use_heads(str(write(tmp_path / "wide", layouts.MEDUSA, layouts.medusa(16, 4096, 2))))
    assert find_heads("text-target", text_models.target)["medusa"].name == bundled
