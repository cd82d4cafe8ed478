"""Convert a GGUF file's metadata to the Transformers configuration of its model, or find why it is not supported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from workbench.core.errors import ModelError

FAMILIES: dict[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
"""GGUF architecture → Transformers configuration class, for the supported architectures. GGUF files of Mistral, SmolLM
and TinyLlama also have the architecture "llama"."""
UNSUPPORTED_ADVICE = "Give a GGUF file of a Llama, Mistral, Qwen2 or Qwen3 model, or a folder with *.safetensors."
"""Advice in error messages about GGUF files with an unsupported model."""
DAMAGED_ADVICE = "Download the file again; its download may have ended early."
"""Advice in error messages about damaged GGUF files."""


def config_of(reader: Any, file: Path) -> PretrainedConfig:
    """Return the Transformers configuration of the model in a GGUF file.

    Raises:
        ModelError: the metadata is damaged, or the model is not supported as a target.
    """
    facts = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.t")}
    try:
        return _from_facts(reader, facts, file)
    except ModelError:
        raise
    except KeyError as error:
        raise ModelError(
            f"The metadata of {file} lack the field {str(error).strip(chr(39))}.", DAMAGED_ADVICE
        ) from None
    except Exception as error:  # a configuration class may raise anything for impossible values
        raise ModelError(f"{file} has invalid metadata ({first_line(error)}).", DAMAGED_ADVICE) from error


def _from_facts(reader: Any, facts: dict[str, Any], file: Path) -> PretrainedConfig:
    family = str(facts.get("general.architecture"))
    refuse(_why_not(facts, family, {t.name for t in reader.tensors}), file)
    fields = {name.partition(".")[2]: value for name, value in facts.items() if name.startswith(f"{family}.")}
    heads = fields["attention.head_count"]
    config = FAMILIES[family](
        vocab_size=fields.get("vocab_size") or len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=fields["embedding_length"],
        intermediate_size=fields["feed_forward_length"],
        num_hidden_layers=fields["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=fields.get("attention.head_count_kv", heads),
        max_position_embeddings=fields["context_length"],
        rms_norm_eps=_short(fields["attention.layer_norm_rms_epsilon"]),
        rope_parameters={"rope_type": "default", "rope_theta": _short(fields.get("rope.freq_base", 10000.0))},
        tie_word_embeddings=all(t.name != "output.weight" for t in reader.tensors),
        bos_token_id=special_id(facts, "bos"),
        eos_token_id=_ends(facts),
        pad_token_id=facts.get("tokenizer.ggml.padding_token_id"),
    )
    if family != "qwen2":  # Qwen2Config has no such field: its head size is always width / heads
        config.head_dim = fields.get("attention.key_length") or fields["embedding_length"] // heads
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    return config


def _why_not(facts: dict[str, Any], family: str, names: set[str]) -> str:
    """Return why a GGUF file's model cannot be a target, according to the file's metadata; empty if it can.

    Args:
        facts: metadata of the file.
        family: architecture of the model.
        names: names of the file's tensors.
    """
    scaling = facts.get(f"{family}.rope.scaling.type", "none")
    if family not in FAMILIES:
        return f"its family is {family!r}"
    if facts.get("general.type", "model") != "model":
        return f"the file contains {facts['general.type']!r}, not a model"
    if facts.get("split.count", 0) > 1:
        return (
            f"the file is one of {facts['split.count']} parts of a split model (llama-gguf-split --merge "
            f"joins the parts)"
        )
    if facts.get(f"{family}.expert_count"):
        return "the model is a mixture of experts"
    if scaling not in ("none", "") or "rope_freqs.weight" in names:
        return "its RoPE is scaled in a way that its metadata describes only in part"
    if "token_embd.weight" not in names:
        return "the file has no embedding weights"
    return _positions(facts, family)


def _positions(facts: dict[str, Any], family: str) -> str:
    """Return why the positional encoding of a GGUF file's model is not supported; "" if it is.

    The file's metadata decides this, because the shapes of the weights do not depend on it.
    """
    fields = {name.removeprefix(f"{family}."): value for name, value in facts.items()}
    if {fields.get("rope.scale_linear", 1), fields.get("rope.scaling.factor", 1)} - {0, 1}:
        return "its RoPE is scaled in a way that its metadata describes only in part"
    head = fields.get("attention.key_length") or fields["embedding_length"] // fields["attention.head_count"]
    if fields.get("rope.dimension_count", head) != head:
        return "its RoPE rotates only a part of each attention head"
    if 0 < fields.get("attention.sliding_window", 0) < fields["context_length"]:
        return "the model uses sliding-window attention"
    return ""


def refuse(why: str, file: Path) -> None:
    """Raise ModelError with the reason `why` a GGUF file's model cannot be a target; do nothing if `why` is empty."""
    if why:
        raise ModelError(f"{file.name} cannot be used as a target: {why}.", UNSUPPORTED_ADVICE)


def special_id(facts: dict[str, Any], name: str) -> int | None:
    """Return the id of a special token from a GGUF file, or llama.cpp's default for a SentencePiece vocabulary.

    Args:
        facts: metadata of the file, with or without the prefix "tokenizer.".
        name: "bos", "eos", "eot", "unknown" or "padding".

    Returns:
        The id; None if there is no such token.
    """
    fields = {key.removeprefix("tokenizer."): value for key, value in facts.items()}
    default = {"unknown": 0, "bos": 1, "eos": 2}.get(name) if fields.get("ggml.model") == "llama" else None
    return fields.get(f"ggml.{name}_token_id", default)


def _ends(facts: dict[str, Any]) -> int | list[int] | None:
    """Return the ids of the tokens that end a text: end of sequence, and end of turn if it is another token.

    Args:
        facts: metadata of the GGUF file.

    Returns:
        One id or a list of ids; None if the file has no such token.
    """
    candidates = [special_id(facts, name) for name in ("eos", "eot")]
    ids = sorted({i for i in candidates if i is not None})
    return ids if len(ids) > 1 else ids[0] if ids else None


def _short(value: float) -> float:
    """Round a float32 number of a GGUF file's metadata to its shortest decimal: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, shortened to fit a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
