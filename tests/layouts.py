"""Checkpoints of heads of other projects in their exact layouts: published names, shapes and configurations.

In published sizes, the weights are holes in a sparse file (`write(..., full=True)`); small ones are random. Sources of
names and configurations: SafeAILab/EAGLE (`eagle/model/cnets1.py`, `cnets.py`, `eagle/train/*_config.json`,
`eagle/traineagle3/config.json`), sgl-project/SpecForge (`configs/`), FasterDecoding/Medusa (its configuration says 2
heads, its file has 5), zankner/Hydra (`hydra/model/hydra_heads/`), vllm-project/speculators (`models/eagle.py` of 0.3,
`models/eagle3`, `models/mtp`), vllm-project/vllm (`model_executor/models/medusa.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Shapes = dict[str, tuple[int, ...]]
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 1,
    "tie_word_embeddings": False, "use_cache": True,
}  # fmt: skip
VICUNA = LLAMA | {
    "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048, "num_attention_heads": 32,
    "rms_norm_eps": 1e-6, "vocab_size": 32000,
}  # fmt: skip
LLAMA3 = LLAMA | {
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "vocab_size": 128256, "draft_vocab_size": 32000,
}  # fmt: skip
QWEN3 = LLAMA3 | {
    "architectures": ["LlamaForCausalLMEagle3"], "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3_MOE = QWEN3 | {"hidden_size": 2048, "num_key_value_heads": 4, "fc_norm": True, "norm_output": True}
MEDUSA = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1}
HYDRA = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "grounded_heads": True, "hidden_state_offset": 0,
    "hydra_head_arch": "mlp", "hydra_num_heads": 4, "hydra_num_layers": 1,
}  # fmt: skip
SMALL = LLAMA | {
    "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5, "vocab_size": 257, "rope_theta": 500.0,
}  # fmt: skip
"""Configuration for tiny targets; no published head has it."""
SMALL3 = SMALL | {"draft_vocab_size": 32}
VERIFIER = {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "architectures": ["LlamaForCausalLM"]}


def speculators(kind: str, layer: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a configuration in the format of speculators."""
    method = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    own = {"algorithm": kind, "proposal_methods": [method], "default_proposal_method": "greedy", "verifier": VERIFIER}
    layer = {name: value for name, value in layer.items() if name != "draft_vocab_size"}
    return {"speculators_model_type": kind, "speculators_config": own, "transformer_layer_config": layer} | more


def layer(prefix: str, config: Mapping[str, Any], reads: int, *norms: str, bias: bool = False) -> Shapes:
    """Return the shapes of a Llama decoder layer in transformers with this input width of the attention."""
    width, ffn, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size = config.get("head_dim", width // heads)
    sizes = {"q": heads * size, "k": (kv := config.get("num_key_value_heads", heads) * size), "v": kv}
    found: Shapes = {f"self_attn.{name}_proj.weight": (n, reads) for name, n in sizes.items()}
    found |= {f"self_attn.{name}_proj.bias": (n,) for name, n in sizes.items() if bias}
    found |= {"self_attn.o_proj.weight": (width, heads * size), "mlp.gate_proj.weight": (ffn, width)}
    found |= {"mlp.up_proj.weight": (ffn, width), "mlp.down_proj.weight": (width, ffn)}
    found |= {f"{name}.weight": (width,) for name in (*norms, "post_attention_layernorm")}
    return {prefix + name: shape for name, shape in found.items()}


def eagle(config: Mapping[str, Any], fc_bias: bool = True, bias: bool = False, embed: bool = True) -> Shapes:
    """Return the shapes of SafeAILab's EAGLE-1 and EAGLE-2."""
    width = config["hidden_size"]
    found = layer("layers.0.", config, width, bias=bias) | {"fc.weight": (width, 2 * width)}
    return found | ({"fc.bias": (width,)} if fc_bias else {}) | (embedding(config) if embed else {})


def embedding(config: Mapping[str, Any]) -> Shapes:
    """Return the shape of the copied input embedding of the target."""
    return {"embed_tokens.weight": (config["vocab_size"], config["hidden_size"])}


def eagle3(config: Mapping[str, Any], prefix: str = "midlayer.", taps: int = 3) -> Shapes:
    """Return the shapes of EAGLE-3 by SafeAILab, SpecForge and speculators."""
    inner = config.get("transformer_layer_config", config)
    width, proposed = inner["hidden_size"], config["draft_vocab_size"]
    norms = ("hidden_norm", "input_layernorm")
    found = layer(prefix, inner, 2 * width, *norms) | {"fc.weight": (width, taps * width), "norm.weight": (width,)}
    found |= {"lm_head.weight": (proposed, width), "d2t": (proposed,), "t2d": (inner["vocab_size"],)}
    return found | ({f"fc_norm.{i}.weight": (width,) for i in range(taps)} if config.get("fc_norm") else {})


def speculators_eagle(config: Mapping[str, Any]) -> Shapes:
    """Return the shapes of the type `eagle` of speculators, with or without norms."""
    inner, norms = config["transformer_layer_config"], bool(config["layernorms"])
    width = inner["hidden_size"]
    found = layer("transformer.", inner, width, *(["input_layernorm"] if norms else []))
    found |= {"fusion_fc.weight": (width, 2 * width)} | ({"fusion_fc.bias": (width,)} if config["fusion_bias"] else {})
    return found | (
        {f"{n}.weight": (width,) for n in ("embedding_layernorm", "pre_lm_head_layernorm")} if norms else {}
    )


def medusa(width: int, vocabulary: int, heads: int = 5, layers: int = 1) -> Shapes:
    """Return the shapes of FasterDecoding's Medusa."""
    found: Shapes = {}
    for k in range(heads):
        for j in range(layers):
            found |= {f"{k}.{j}.linear.weight": (width, width), f"{k}.{j}.linear.bias": (width,)}
        found[f"{k}.{layers}.weight"] = (vocabulary, width)
    return found


def medusa_vllm(width: int, rows: int, heads: int = 3, shared: bool = False, mapped: bool = False) -> Shapes:
    """Return the shapes of vLLM's Medusa."""
    found: Shapes = {f"blocks.{k}.layers.0.weight": (width, width) for k in range(heads)}
    found |= (
        {"lm_head.weight": (rows, width)} if shared else {f"lm_heads.{k}.weight": (rows, width) for k in range(heads)}
    )
    return found | ({"token_map": (rows,)} if mapped else {})


def hydra(width: int, vocabulary: int, heads: int = 4, layers: int = 1, ffn: int = 0) -> Shapes:
    """Return the shapes of Hydra, or with an MLP width `ffn` of Hydra++, whose names count dropout layers, too."""
    step, found = 2 if ffn else 1, Shapes()
    for k in range(heads):
        for j in range(layers):
            at, reads = f"hydra_mlp.{k}.{step * j + step - 1}", (k + 2) * width if j == 0 else width
            for name in ("linear", "res_connection") if j == 0 else ("linear",):
                found |= {f"{at}.{name}.weight": (width, reads), f"{at}.{name}.bias": (width,)}
        at = f"hydra_lm_head.{k}{'.1' if ffn else ''}"
        found |= {f"{at}.weight": (vocabulary, width), f"{at}.bias": (vocabulary,)}
    if ffn:
        config = {"hidden_size": width, "intermediate_size": ffn, "num_attention_heads": 32}
        found |= layer("prefix_embeding_layer.layers.0.", config, width, "input_layernorm")
        found |= {"prefix_embeding_layer.norm.weight": (width,)}
        found |= {"prefix_embeding_layer.embed_tokens.weight": (vocabulary, width)}
    return found | {"input_embed_fn.weight": (vocabulary, width)}


EAGLE_HASS = speculators("eagle", LLAMA3, layernorms=True, fusion_bias=False)
EAGLE_PLAIN = speculators("eagle", LLAMA3, layernorms=False, fusion_bias=True)
EAGLE3_SPECULATORS = speculators("eagle3", LLAMA3, draft_vocab_size=32000, norm_before_residual=True)
PUBLISHED: dict[str, tuple[str, str, dict[str, Any], Shapes]] = {
    "eagle-vicuna": ("EAGLE (SafeAILab)", "eagle", VICUNA, eagle(VICUNA)),
    "eagle-llama3": ("EAGLE (SafeAILab)", "eagle", LLAMA3 | {"bias": False}, eagle(LLAMA3, fc_bias=False)),
    "eagle3-llama3": ("EAGLE-3 (SafeAILab)", "eagle-3", LLAMA3, eagle3(LLAMA3)),
    "specforge-qwen3": ("EAGLE-3 (SpecForge)", "eagle-3", QWEN3, eagle3(QWEN3)),
    "specforge-3.1": ("EAGLE-3 (SpecForge)", "eagle-3", QWEN3_MOE, eagle3(QWEN3_MOE)),
    "speculators-eagle3": (
        "speculators (eagle3)", "eagle-3", EAGLE3_SPECULATORS, eagle3(EAGLE3_SPECULATORS, "layers.0.")
    ),
    "speculators-hass": ("speculators (eagle)", "eagle", EAGLE_HASS, speculators_eagle(EAGLE_HASS)),
    "speculators-eagle": ("speculators (eagle)", "eagle", EAGLE_PLAIN, speculators_eagle(EAGLE_PLAIN)),
    "medusa-vicuna": ("Medusa (FasterDecoding)", "medusa", MEDUSA, medusa(4096, 32000)),
    "medusa-vllm": (
        "Medusa (vLLM)", "medusa",
        {"model_type": "medusa", "hidden_size": 768, "vocab_size": 32000, "num_heads": 3, "num_hidden_layers": 1},
        medusa_vllm(768, 32000),
    ),
    "hydra-vicuna": ("Hydra", "hydra", HYDRA, hydra(4096, 32000)),
    "hydra-plus-vicuna": (
        "Hydra++", "hydra", HYDRA | {"hydra_head_arch": "prefix-mlp", "hydra_num_layers": 4},
        hydra(4096, 32000, layers=4, ffn=11008),
    ),
}  # fmt: skip
"""Layout, kind of head, configuration and shapes of published checkpoints, by name."""


def write(folder: Path, config: Mapping[str, Any], shapes: Shapes, full: bool = False, **given: torch.Tensor) -> Path:
    """Write a checkpoint with random weights of these shapes, or with `full` as holes; some tensors may be given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    maps = _maps(shapes) | given
    path = folder / "model.safetensors"
    if full:
        return _with_holes(path, shapes, {"d2t": torch.int64, "t2d": torch.bool}, maps)
    generator = torch.Generator().manual_seed(0)
    weights = {n: maps[n] if n in maps else 0.3 * torch.randn(s, generator=generator) for n, s in shapes.items()}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, path)
    return folder


def _maps(shapes: Shapes) -> dict[str, torch.Tensor]:
    """Return draft-vocabulary maps with every third token, or with the first tokens if the vocabulary is too small."""
    if "d2t" not in shapes:
        return {}
    n, size = shapes["d2t"][0], shapes["t2d"][0]
    kept = torch.arange(n) * (3 if 3 * n <= size else 1)
    known = torch.zeros(size, dtype=torch.bool)
    known[kept] = True
    return {"d2t": kept - torch.arange(n), "t2d": known}


def _with_holes(path: Path, shapes: Shapes, kinds: Mapping[str, torch.dtype], maps: Mapping[str, torch.Tensor]) -> Path:
    """Write a sparse safetensors file: a header, and no disk blocks for the weights."""
    header, at, written = {}, 0, list[tuple[int, bytes]]()
    for name, shape in shapes.items():
        kind = kinds.get(name, torch.float16)
        n_bytes = torch.Size(shape).numel() * kind.itemsize
        tag = {torch.int64: "I64", torch.bool: "BOOL", torch.float16: "F16"}[kind]
        header[name] = {"dtype": tag, "shape": list(shape), "data_offsets": [at, at + n_bytes]}
        if name in maps:
            written.append((at, maps[name].numpy().tobytes()))
        at += n_bytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for place, data in written:
            file.seek(8 + len(head) + place)
            file.write(data)
        file.truncate(8 + len(head) + at)
    return path.parent
