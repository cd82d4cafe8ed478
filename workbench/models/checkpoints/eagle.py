"""Read checkpoints of EAGLE-1 and -2 (one layer; only their trees differ), also in the layouts of vLLM's speculators.

Layouts: SafeAILab's `eagle/model/cnets1.py`; vllm-project/speculators' types `eagle` (until 0.3) and `mtp`. EAGLE: Li
et al. 2024, arXiv:2401.15077, §4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import (
    ROPES,
    Checkpoint,
    TensorSpec,
    match_tensors,
    read_positive_int,
    rope_of,
)
from workbench.models.checkpoints.draft_vocabulary import MAPS, draft_vocabulary
from workbench.models.checkpoints.files import CheckpointFiles

SAFEAILAB, SPECULATORS, MTP = "EAGLE (SafeAILab)", "speculators (eagle)", "speculators (mtp)"
IN_LAYER = {
    "q.weight": "self_attn.q_proj.weight", "k.weight": "self_attn.k_proj.weight", "v.weight": "self_attn.v_proj.weight",
    "q.bias": "self_attn.q_proj.bias", "k.bias": "self_attn.k_proj.bias", "v.bias": "self_attn.v_proj.bias",
    "out.weight": "self_attn.o_proj.weight", "between.weight": "post_attention_layernorm.weight",
    "gate.weight": "mlp.gate_proj.weight", "up.weight": "mlp.up_proj.weight", "down.weight": "mlp.down_proj.weight",
    "before.weight": "input_layernorm.weight",
}  # fmt: skip
"""Names of a decoder layer's tensors: name in this workbench → name in transformers' Llama."""
OUTSIDE = {
    SAFEAILAB: {"embed.weight": "embed_tokens.weight", "fuse.weight": "fc.weight", "fuse.bias": "fc.bias"},
    SPECULATORS: {
        "embed.weight": "embed_tokens.weight", "fuse.weight": "fusion_fc.weight", "fuse.bias": "fusion_fc.bias",
        "norm_embed.weight": "embedding_layernorm.weight", "after.weight": "pre_lm_head_layernorm.weight",
    },
    MTP: {
        "embed.weight": "embed_tokens.weight", "fuse.weight": "mtp_layers.0.input_proj.weight",
        "norm_embed.weight": "mtp_layers.0.token_layernorm.weight",
        "norm_feature.weight": "mtp_layers.0.hidden_layernorm.weight",
        "after.weight": "mtp_layers.0.final_layernorm.weight",
    },
}  # fmt: skip
"""Names of the tensors of EAGLE heads outside the decoder layer, by layout: name in this workbench → name in the
file."""
LAYER = {SAFEAILAB: "layers.0.", SPECULATORS: "transformer.", MTP: "mtp_layers.0."}
"""Prefix of the names of the decoder layer's tensors in files of EAGLE heads, by layout."""
UNREAD = ("lm_head.weight", "embed_tokens.weight", "verifier_lm_head.weight", "d2t", "t2d")


def read_eagle(stored: CheckpointFiles) -> Checkpoint | None:
    """Return the description of EAGLE heads; None if the files have another layout.

    Raises:
        ModelError: the files are damaged, or the heads are of a kind that is not supported.
    """
    config, layout = stored.config, layout_of(stored)
    if layout is None:
        return None
    layer = config if layout == SAFEAILAB else config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ModelError(
            f"The config.json in {stored.folder} has no `transformer_layer_config`.", "Download the checkpoint again."
        )
    facts = layer_facts(stored, layer)
    if facts["heads"] * facts["head_size"] != facts["hidden_size"]:
        raise ModelError(
            f"The heads in {stored.folder} are not supported: {facts['heads']} attention heads of size "
            f"{facts['head_size']} do not add up to the hidden size {facts['hidden_size']:,}.",
            "Use other heads.",
        )
    names = OUTSIDE[layout] | {name: LAYER[layout] + inside for name, inside in IN_LAYER.items()}
    norms = norms_of(layout, config)
    shapes = layer_shapes(facts, facts["hidden_size"])
    optional = {"embed.weight", "fuse.bias", "q.bias", "k.bias", "v.bias"}
    parts = [
        TensorSpec(name, stored_name, shapes[name], name in optional)
        for name, stored_name in names.items()
        if name.removesuffix(".weight") not in NORMS or name.removesuffix(".weight") in norms
    ]
    tensor_names = match_tensors(stored, layout, parts, UNREAD)
    draft_tokens, order = draft_vocabulary(stored, facts["vocab_size"])
    return Checkpoint(
        layout,
        "eagle",
        stored,
        facts | {"norms": norms},
        tensor_names,
        draft_tokens,
        order,
        tuple(name for name in UNREAD if name in stored.shapes and name not in (*tensor_names.values(), *MAPS)),
        verifier_of(config),
    )


NORMS = ("norm_embed", "norm_feature", "before", "after")


def layout_of(stored: CheckpointFiles) -> str | None:
    """Return the name of a checkpoint's EAGLE layout; None if the checkpoint has another layout."""
    kind = stored.config.get("speculators_model_type")
    if kind in ("eagle", "mtp"):
        return SPECULATORS if kind == "eagle" else MTP
    is_eagle = "fc.weight" in stored.shapes and "layers.0.self_attn.q_proj.weight" in stored.shapes
    return SAFEAILAB if kind is None and is_eagle and "layers.0.hidden_norm.weight" not in stored.shapes else None


def norms_of(layout: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the norms of EAGLE heads, except the norm between attention and MLP.

    Args:
        layout: name of the layout.
        config: configuration of the heads.
    """
    if layout == MTP:
        return NORMS
    return ("norm_embed", "before", "after") if config.get("layernorms") else ()


def layer_facts(stored: CheckpointFiles, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes and settings of a Llama-like decoder layer from the configuration of trained heads.

    Args:
        stored: files of the checkpoint, for error messages.
        config: configuration of the heads.

    Raises:
        ModelError: a value is missing or not supported.
    """
    width = read_positive_int(stored, config, "hidden_size")
    heads = read_positive_int(stored, config, "num_attention_heads")
    facts: dict[str, Any] = {
        "hidden_size": width,
        "vocab_size": read_positive_int(stored, config, "vocab_size"),
        "heads": heads,
        "kv_heads": read_positive_int(stored, config, "num_key_value_heads", default=heads),
        "head_size": read_positive_int(stored, config, "head_dim", default=max(width // heads, 1)),
        "ffn": read_positive_int(stored, config, "intermediate_size"),
        "eps": float(config.get("rms_norm_eps") or 1e-6),
        "rope": rope_of(config),
    }
    reason = ""
    if config.get("hidden_act", "silu") != "silu":
        reason = f"its activation is {config['hidden_act']!r:.30}; only silu is supported"
    elif heads % facts["kv_heads"]:
        reason = f"its {heads} attention heads cannot share {facts['kv_heads']} key-value heads"
    elif (kind := facts["rope"].get("rope_type", "default")) not in ROPES:
        reason = f"its RoPE has the type {kind!r:.30}; supported types are {', '.join(ROPES)}"
    elif (layers := config.get("num_hidden_layers", 1)) != 1:
        reason = f"it has {layers!r:.20} layers; only one layer is supported"
    if reason:
        raise ModelError(f"The heads in {stored.folder} are not supported: {reason}.", "Use other heads.")
    return facts


def layer_shapes(facts: Mapping[str, Any], input_width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a decoder layer's tensors by name; `input_width` is the width of its attention's input."""
    width, ffn = facts["hidden_size"], facts["ffn"]
    queries, keys = facts["heads"] * facts["head_size"], facts["kv_heads"] * facts["head_size"]
    norms = {f"{name}.weight": (width,) for name in (*NORMS, "between")}
    return norms | {
        "embed.weight": (facts["vocab_size"], width), "fuse.weight": (width, 2 * width), "fuse.bias": (width,),
        "q.weight": (queries, input_width), "k.weight": (keys, input_width), "v.weight": (keys, input_width),
        "out.weight": (width, queries), "q.bias": (queries,), "k.bias": (keys,), "v.bias": (keys,),
        "gate.weight": (ffn, width), "up.weight": (ffn, width), "down.weight": (width, ffn),
    }  # fmt: skip


def verifier_of(config: Mapping[str, Any]) -> str:
    """Return the name of the target that the configuration of trained heads names; empty if it names none."""
    section = config.get("speculators_config")
    verifier = section.get("verifier") if isinstance(section, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else config.get("base_model_name_or_path")
    return name if isinstance(name, str) else ""
