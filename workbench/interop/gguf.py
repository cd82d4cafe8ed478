"""Write a Llama model with its byte-level BPE tokenizer as a GGUF file for llama.cpp, in float32 or float16."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workbench.core.errors import ModelError, WorkbenchError
from workbench.models.gguf_pretokenizer import GPT2, name_of
from workbench.models.gguf_tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED
from workbench.trace.files import replace_atomically

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")


def export_gguf(model: Any, tokenizer: Any, path: Path, name: str = "model", half: bool = False) -> Path:
    """Write a Llama model and its tokenizer to a GGUF file for llama.cpp.

    Args:
        model: a `LlamaForCausalLM` of transformers.
        tokenizer: the model's tokenizer.
        path: path of the file.
        name: name in the file's metadata.
        half: whether matrices are float16 instead of float32. Norms are always float32.

    Raises:
        ModelError: the model is not a Llama, the tokenizer is not a byte-level BPE, or one has an unsupported feature.
        WorkbenchError: the package `gguf` is not installed.
    """
    try:
        import gguf
    except ModuleNotFoundError:
        raise WorkbenchError("Writing GGUF needs the package gguf.", "Install the package: pip install gguf") from None
    _refuse(model.config)
    with replace_atomically(path) as part:
        _write(gguf, part, model, tokenizer, name, half)
    return path


def _write(gguf: Any, path: Path, model: Any, tokenizer: Any, name: str, half: bool) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer, config)
    for title, tensor in tensors(model):
        writer.add_tensor(title, tensor.astype(np.float16 if half and tensor.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of a Llama model with their GGUF names, in float32, without a tied LM head."""
    config = model.config
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        match = _LAYER.fullmatch(name)
        title = f"blk.{match[1]}.{_IN_LAYER.get(match[2])}.weight" if match else _NAMES.get(name)
        if title is None or ".None." in title:
            raise ModelError(f"GGUF's Llama has no tensor for the weight {name}.", "Use a plain Llama model.")
        values = weight.detach().to("cpu", torch.float32).numpy()
        if title.endswith("attn_q.weight"):
            values = _interleaved(values, config.num_attention_heads)
        elif title.endswith("attn_k.weight"):
            values = _interleaved(values, config.num_key_value_heads)
        yield title, values


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder a query or key weight for RoPE in llama.cpp.

    llama.cpp rotates pairs of adjacent dimensions of an attention head, Transformers pairs the two halves of the head.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _refuse(config: Any) -> None:
    problem = ""
    if config.model_type != "llama":
        problem = f"its model type is {config.model_type}"
    elif config.attention_bias or config.mlp_bias:
        problem = "it has biases"
    elif config.hidden_act != "silu":
        problem = f"its activation is {config.hidden_act}"
    elif config.rope_parameters.get("rope_type", "default") != "default":
        problem = f"its RoPE is scaled ({config.rope_parameters['rope_type']})"
    if problem:
        raise ModelError(f"The workbench cannot write this model as GGUF: {problem}.", "Try llama.cpp's own converter.")


def _add_tokenizer(writer: Any, tokenizer: Any, config: Any) -> None:
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    model = settings["model"]
    splitter = _splitter(settings["pre_tokenizer"] or {}, bool(model.get("ignore_merges")))
    if model["type"] != "BPE" or settings["normalizer"] or splitter is None:
        raise ModelError(
            "The workbench cannot write this tokenizer as GGUF: it is not a byte-level BPE with a pre-tokenizer "
            "that llama.cpp supports.",
            "Try llama.cpp's own converter.",
        )
    added = {token["id"]: token for token in settings["added_tokens"]}
    texts = {i: text for text, i in model["vocab"].items()} | {i: token["content"] for i, token in added.items()}
    kinds = dict.fromkeys(texts, NORMAL)
    kinds |= {i: CONTROL if token["special"] else USER_DEFINED for i, token in added.items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list([texts.get(i, f"[unused {i}]") for i in range(config.vocab_size)])
    writer.add_token_types([kinds.get(i, UNUSED) for i in range(config.vocab_size)])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    eos = config.eos_token_id if isinstance(config.eos_token_id, int | None) else config.eos_token_id[0]
    ids = {
        writer.add_bos_token_id: config.bos_token_id, writer.add_eos_token_id: eos,
        writer.add_pad_token_id: config.pad_token_id, writer.add_unk_token_id: tokenizer.unk_token_id,
    }  # fmt: skip
    for add, token in ids.items():
        if token is not None:
            add(token)
    encoded = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(config.bos_token_id is not None and encoded[0] == config.bos_token_id)
    writer.add_add_eos_token(eos is not None and encoded[-1] == eos)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _splitter(pre_tokenizer: dict[str, Any], ignores_merges: bool) -> str | None:
    """Return llama.cpp's name for a pre-tokenizer of the library `tokenizers`; None if llama.cpp has no such name."""
    expressions: list[str] = []
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    for part in parts:
        kind = part.get("type")
        pattern = part.get("pattern", {}).get("Regex") if not part.get("invert") else None
        if kind == "Digits" and part["individual_digits"]:
            expressions.append(r"\p{N}")
        elif kind == "Split" and part["behavior"] == "Isolated" and pattern:
            expressions.append(pattern)
        elif kind == "ByteLevel" and part is parts[-1] and not part["add_prefix_space"]:
            return name_of([*expressions, GPT2] if part["use_regex"] else expressions, ignores_merges)
        else:
            return None
    return None
