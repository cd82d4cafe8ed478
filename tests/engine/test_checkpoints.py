"""Third-party head checkpoints: every layout is read, and errors and mismatches with the target are explained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layouts
import pytest
import torch
from layouts import PUBLISHED, SMALL, SMALL3, write

from workbench.core.errors import ModelError
from workbench.models.checkpoints.compatibility import HeadRequirements, check_compatibility, mismatch_reason
from workbench.models.checkpoints.layouts import read_checkpoint

TEXT = HeadRequirements("text-target", 288, 4096, 12, {})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_are_read_at_their_sizes(name: str, tmp_path: Path) -> None:
    layout, architecture, config, shapes = PUBLISHED[name]
    found = read_checkpoint(write(tmp_path / name, config, shapes, full=True))
    assert (found.layout, found.architecture) == (layout, architecture)
    inner = config.get("transformer_layer_config", config)
    assert found.facts["hidden_size"] == inner.get("hidden_size", 4096)
    assert found.facts["vocab_size"] == inner.get("vocab_size", 32000)
    left = set(shapes) - set(found.tensor_names.values())
    assert left <= {*found.unread, "d2t", "t2d"}, "no tensor is ignored"
    assert found.draft_tokens is None or (len(found.draft_tokens) == 32000 and found.draft_tokens[1] == 3)


def test_configuration_facts_of_heads(tmp_path: Path) -> None:
    def facts(name: str) -> Any:
        return read_checkpoint(write(tmp_path / name, *PUBLISHED[name][2:], full=True)).facts

    assert (llama3 := facts("eagle-llama3"))["kv_heads"] == 8
    assert llama3["eps"] == 1e-5
    assert llama3["norms"] == ()
    assert facts("speculators-hass")["norms"] == ("norm_embed", "before", "after")
    qwen = facts("specforge-3.1")
    assert qwen["fc_norm"]
    assert qwen["norm_output"]
    assert qwen["head_size"] == 128
    assert qwen["taps"] == ()
    assert qwen["rope"] == {"rope_theta": 1e6, "rope_type": "default"}
    assert facts("speculators-eagle3")["norm_before_residual"] is True
    assert facts("hydra-plus-vicuna") | {"n_layers": 4, "prefix": True} == facts("hydra-plus-vicuna")
    medusa = read_checkpoint(write(tmp_path / "m", *PUBLISHED["medusa-vicuna"][2:], full=True))
    assert medusa.facts["n_heads"] == 5
    assert "states 2 heads, but the weight file has 5" in medusa.notes[0]
    assert medusa.verifier == "lmsys/vicuna-7b-v1.3"


def test_check_against_the_target_and_its_explanation(tmp_path: Path) -> None:
    eagle = read_checkpoint(write(tmp_path / "a", *PUBLISHED["eagle-vicuna"][2:], full=True))
    assert mismatch_reason(eagle, HeadRequirements("vicuna", 4096, 32000, 32, {})) == ""
    reason = mismatch_reason(eagle, TEXT)
    assert "it is for a target of hidden size 4,096" in reason
    assert "it is for a target of 32,000 tokens" in reason
    eagle3 = read_checkpoint(write(tmp_path / "b", *PUBLISHED["eagle3-llama3"][2:], full=True))
    llama = HeadRequirements("llama", 4096, 128256, 32, {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0})
    checks = {line.name: line for line in check_compatibility(eagle3, llama)}
    assert checks["layers"].fits
    assert "2, 16, 29" in checks["layers"].message
    assert "32,000" in checks["draft vocabulary"].message
    assert "10,000, unlike the target's: rotary with base 500,000, scaled (llama3 by 8)" in checks["positions"].message
    shallow = {line.name: line for line in check_compatibility(eagle3, HeadRequirements("six", 4096, 128256, 6, {}))}
    assert not shallow["layers"].fits
    assert "2, 3, 3 of 6" in shallow["layers"].message
    config = PUBLISHED["speculators-eagle3"][2] | {"eagle_aux_hidden_state_layer_ids": [2, 16, 40]}
    deep = read_checkpoint(write(tmp_path / "c", config, PUBLISHED["speculators-eagle3"][3], full=True))
    assert "a target of at least 41 layers" in mismatch_reason(deep, llama)


Spoil = Callable[[Path, dict[str, Any], layouts.Shapes], Path]


def cut(folder: Path, config: dict[str, Any], shapes: layouts.Shapes) -> Path:
    file = write(folder, config, shapes) / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    return folder


def pickled(folder: Path, config: dict[str, Any], shapes: layouts.Shapes) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.save({"fc.weight": torch.zeros(2)}, folder / "pytorch_model.bin")
    return folder


def without(name: str) -> Spoil:
    return lambda f, c, s: write(f, c, {n: shape for n, shape in s.items() if n != name})


def with_config(**more: Any) -> Spoil:
    return lambda f, c, s: write(f, c | more, s)


def with_tensors(**tensors: torch.Tensor) -> Spoil:
    return lambda f, c, s: write(f, c, s, **tensors)


EAGLE, EAGLE3 = (SMALL, layouts.eagle(SMALL)), (SMALL3, layouts.eagle3(SMALL3))
BAD: dict[str, tuple[tuple[dict[str, Any], layouts.Shapes], Spoil, str]] = {
    "cut": (EAGLE, cut, r"model.safetensors is truncated or damaged"),
    "pickle": (EAGLE, pickled, r"pytorch_model.bin is a pickle.*weights_only=True"),
    "empty": (EAGLE, lambda f, c, s: f.mkdir() or f, r"contains no \*\.safetensors"),
    "config": (EAGLE, lambda f, c, s: _damaged(write(f, c, s)), "config.json is damaged"),
    "missing": (EAGLE, without("layers.0.mlp.up_proj.weight"), "lacks the tensors layers.0.mlp.up_proj.weight"),
    "unknown-tensor": (
        EAGLE,
        lambda f, c, s: write(f, c, s | {"layers.0.input_layernorm.weight": (16,)}),
        "also unknown tensors \\(layers.0.input_layernorm.weight",
    ),
    "width": (
        EAGLE,
        with_config(hidden_size=32),
        r"embed_tokens.weight in .* has the shape 257 × 16; its configuration requires 257 × 32",
    ),
    "no-width": (EAGLE, with_config(hidden_size=None), "lacks `hidden_size`"),
    "two-layers": (EAGLE, with_config(num_hidden_layers=2), "it has 2 layers; only one layer is supported"),
    "rope": (
        EAGLE,
        with_config(rope_scaling={"type": "dynamic", "factor": 2.0}),
        "its RoPE has the type 'dynamic'",
    ),
    "head-size": (EAGLE, with_config(head_dim=8), "4 attention heads of size 8 do not add up to the hidden size 16"),
    "activation": (EAGLE, with_config(hidden_act="gelu"), "its activation is 'gelu'; only silu is supported"),
    "layout": (EAGLE, lambda f, c, s: write(f, c, {"model.norm.weight": (16,)}), "no drafting heads in a known layout"),
    "speculators-type": (
        EAGLE,
        with_config(speculators_model_type="dflash"),
        "speculators' type 'dflash'.*Known layouts:",
    ),
    "d2t-out": (EAGLE3, with_tensors(d2t=torch.full((32,), 250)), r"`d2t` in .* has token 257 at index 7"),
    "d2t-twice": (EAGLE3, with_tensors(d2t=-torch.arange(32)), "has token 0 twice"),
    "t2d": (EAGLE3, with_tensors(t2d=torch.ones(257, dtype=torch.bool)), r"have different tokens \(32 and 257\)"),
    "no-d2t": (EAGLE3, without("d2t"), "propose 32 of 257 tokens, but the file lacks `d2t`"),
    "draft-size": (
        EAGLE3,
        with_config(draft_vocab_size=64),
        "has a draft vocabulary of 64 tokens, but the LM head has 32",
    ),
    "taps": (
        EAGLE3,
        with_config(eagle_aux_hidden_state_layer_ids=[5, 2]),
        r"\[5, 2\], not an increasing list of layers",
    ),
    "hydra": (
        (layouts.HYDRA, layouts.hydra(8, 16)),
        with_config(hydra_head_arch="cross-attn"),
        "of the unsupported kind 'cross-attn'",
    ),
}


def _damaged(folder: Path) -> Path:
    (folder / "config.json").write_text("{bad")
    return folder


@pytest.mark.parametrize("name", BAD)
def test_damaged_checkpoint_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    (config, shapes), spoil, message = BAD[name]
    with pytest.raises(ModelError, match=f"(?s){message}"):
        read_checkpoint(spoil(tmp_path / "heads", dict(config), dict(shapes)))


def test_single_file_is_read_and_a_pickle_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a", *EAGLE) / "model.safetensors"
    assert read_checkpoint(file).architecture == "eagle"
    with pytest.raises(ModelError, match=r"(?s)is a pickle.*medusa_lm_head\.safetensors"):
        read_checkpoint(_pt(tmp_path))
    with pytest.raises(ModelError, match="There is no"):
        read_checkpoint(tmp_path / "nowhere")


def _pt(folder: Path) -> Path:
    torch.save({}, folder / "medusa_lm_head.pt")
    return folder / "medusa_lm_head.pt"
