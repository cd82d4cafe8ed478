"""Tiny configurations of any family for which transformers has a causal language model.

Configurations mostly use the same names for the same sizes. Sizes such as hidden size, heads, layers and experts are
reduced; lists with one entry per layer are cut; nested configurations (a text decoder, a vision tower) are reduced in
turn. Exceptions are in `EXTRA`.
"""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

VOCABULARY = 64
LAYERS = 3
_NAMES: dict[Any, tuple[str, ...]] = {
    VOCABULARY: ("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"),
    LAYERS: ("num_hidden_layers", "n_layer", "n_layers", "decoder_layers", "encoder_layers", "num_layers", "depth",
             "num_decoder_layers", "num_encoder_layers"),
    32: ("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "input_embedding_size",
         "output_embedding_size", "emb_dim", "pronunciation_embed_dim", "shape_embed_dim"),
    48: ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "ffn_hidden_size", "dff",
         "dim_ff", "intermediate_size_mlp", "intermediate_size_mlp_layers"),
    4: ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads", "encoder_attention_heads", "num_heads",
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_decoder_attention_heads",
        "num_encoder_attention_heads", "swa_num_attention_heads", "index_n_heads", "linear_num_key_heads",
        "linear_num_value_heads", "linear_num_heads", "mamba_num_heads", "mamba_n_heads", "num_mem_heads",
        "pronunciation_vocab_size", "shape_vocab_size", "prompt_types", "segment_types", "gated_norm_rank"),
    2: ("num_key_value_heads", "swa_num_key_value_heads", "num_experts_per_tok", "num_experts_per_token", "moe_k",
        "moe_topk", "o_groups"),
    8: ("head_dim", "swa_head_dim", "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "index_head_dim", "dim_head",
        "linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "mamba_head_dim", "kv_channels",
        "d_rel", "ple_embed_dim", "hc_lowrank"),
    16: ("kv_lora_rank", "q_lora_rank", "o_lora_rank", "moe_intermediate_size", "shared_expert_intermediate_size",
         "shared_experts_intermediate_size", "expert_ffn_hidden_size", "moe_shared_expert_intermediate_size",
         "moe_dim", "router_hidden_size", "index_topk", "mamba_d_state", "ssm_state_size", "state_size", "rotary_dim",
         "dim_model_base", "mamba_d_head"),
    1: ("n_group", "topk_group", "n_groups", "mamba_n_groups", "n_shared_experts", "num_shared_experts"),
    128: ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "model_max_length"),
}  # fmt: skip
SIZES = {name: size for size, names in _NAMES.items() for name in names}
"""Values of a tiny model's configuration, by the names that the configurations of transformers use."""
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
"""Values of special token ids for families that require them; elsewhere they are None, so that no text ends early."""
_ENCODERS = ("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
             "prophetnet", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
             "xlm-roberta", "xlm-roberta-xl", "xmod")  # fmt: skip
_LATENT = ("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
           "glm_moe_dsa", "kimi_linear", "minicpm3", "youtu")  # fmt: skip
EXTRA: dict[str, dict[str, Any]] = {
    **{name: {"is_decoder": True, "pad_token_id": 1} for name in _ENCODERS},  # as decoders, their classes generate text
    **{name: {"num_key_value_heads": 4} for name in _LATENT},  # every head has its own keys
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "falcon_h1": {"mamba_d_ssm": 64},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "zaya": {"num_experts_per_tok": 1},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16]},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "falcon": {"new_decoder_architecture": False},
    "xmod": {"is_decoder": True, "pad_token_id": 1, "default_language": "en_XX"},
}
"""Configuration values of tiny models by family, for families in which the general reduction does not suffice."""


def tiny_config(name: str, **values: Any) -> PretrainedConfig:
    """Return the configuration of a model with about ten thousand weights.

    Args:
        name: `model_type` of a family, a key of transformers' mappings.
        values: values of the configuration; they take precedence over those of `SIZES` and `EXTRA`.

    Raises:
        Exception: the values of `SIZES` and `EXTRA` do not fit the family; its configuration may raise any exception.
    """
    return _small(CONFIG_MAPPING[name], {**EXTRA.get(name, {}), **values})


def _small(kind: type[PretrainedConfig], values: dict[str, Any]) -> PretrainedConfig:
    config_class: Any = kind  # configurations accept more arguments than their type stubs declare
    default, values = config_class(), dict(values)
    parts = {
        name: _small(type(part), {}).to_dict() | values.pop(name, {})
        for name in config_class.sub_configs
        if isinstance(part := getattr(default, name, None), PretrainedConfig)
    }
    alias = config_class.attribute_map
    sizes = {
        name: size
        for name, size in SIZES.items()
        if _holds(default, name, int) and name not in alias and not isinstance(getattr(kind, name, None), property)
    }
    lists = {name: _cut(name, entry) for name, entry in vars(default).items() if _is_by_layer(default, entry)}
    merged = {**sizes, **lists, **parts, **values}
    try:
        return config_class(**{name: None for name in TOKENS if hasattr(default, name)} | merged)
    except Exception:  # a family that requires token ids
        return config_class(**{name: token for name, token in TOKENS.items() if hasattr(default, name)} | merged)


def _holds(config: Any, name: str, kind: type) -> bool:
    try:
        return isinstance(getattr(config, name, None), kind) or getattr(config, name, 0) is None
    except Exception:  # sizes that differ between layers raise errors
        return False


def _is_by_layer(config: Any, entry: Any) -> bool:
    layers = getattr(config, "num_hidden_layers", None)
    return isinstance(entry, (list, tuple)) and layers is not None and len(entry) == layers > LAYERS


def _cut(name: str, entry: Any) -> list[Any]:
    """Shorten a configuration list with one entry per layer to the tiny model's layers, different entries first."""
    kinds = list(dict.fromkeys(map(str, entry))) if all(isinstance(e, str) for e in entry) else []
    return (kinds + list(entry))[:LAYERS] if len(kinds) > 1 else list(entry)[:LAYERS]
