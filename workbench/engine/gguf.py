"""GGUF files of Llama-like models, read: dequantised, renamed and written as a folder that `from_pretrained` opens.

Numbers come from the package `gguf`, which belongs to llama.cpp, the tokenizer from transformers; here is what lies
between: which file can be a target at all, where each weight goes, and what is said of one that cannot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from workbench.core.errors import ModelError, WorkbenchError
from workbench.engine.bundle import SOURCE, Told

FAMILIES: dict[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
"""Architectures that are read: decoders like Llama. Mistral's, SmolLM's and TinyLlama's files say "llama" too."""
SHARD = 1 << 30
"""Bytes after which a file of weights is closed and the next one is begun: no more lies in memory at once."""
_INSTEAD = "Give a GGUF file of a Llama, Mistral, Qwen2 or Qwen3 model, or a folder with *.safetensors."
_WHOLE = "Fetch the file again; its download may have ended early."


def dequantise(file: Path, folder: Path, told: Told = lambda done, total: None) -> None:
    """Write a GGUF model as configuration, safetensors, tokenizer and chat template into an empty folder.

    Quantised matrices are written as float16: their scales are float16, so that rounding adds at most 2⁻¹¹ of a
    weight, a hundredth of what Q4_1 itself left out, at half the size of float32 (measured in `tests/engine`). What
    the file has in 16 or 32 bits stays as it is.

    Args:
        file: of the model; read by pages, never whole.
        folder: that is there and empty.
        told: how far it is.

    Raises:
        ModelError: the file is broken or cut, or no model that is read here.
        WorkbenchError: the package `gguf` is not installed.
        OSError: the folder cannot be written.
    """
    gguf = package()
    told(0, file.stat().st_size)
    reader = _opened(gguf, file)
    config = _config(reader, file)
    tokenizer = _tokenizer(reader, file, folder, config)
    config.save_pretrained(folder)
    _generation(config, folder)
    tokenizer.save_pretrained(folder)
    _source(reader, file, folder)
    _write_weights(_weights(gguf, reader, config, file, told), folder)


def package() -> Any:
    """The package `gguf`.

    Raises:
        WorkbenchError: it is not installed.
    """
    try:
        import gguf
    except ModuleNotFoundError:
        raise WorkbenchError("GGUF needs the package gguf.", "pip install gguf") from None
    return gguf


def _opened(gguf: Any, file: Path) -> Any:
    """A reader of the file, whose tables hang together; its numbers are not looked at."""
    try:
        return gguf.GGUFReader(file)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.", _WHOLE) from None
    except Exception as error:  # whatever the bytes make of the reader: Value, Index, Key, Unicode, Overflow …
        raise ModelError(f"{file} is no GGUF file, or a broken or cut one ({_said(error)}).", _WHOLE) from None


def _config(reader: Any, file: Path) -> PretrainedConfig:
    """What transformers must know of the model, or why it cannot be had."""
    facts = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.t")}
    try:
        return _from_facts(reader, facts, file)
    except ModelError:
        raise
    except KeyError as error:
        raise ModelError(f"{file} does not say its {str(error).strip(chr(39))}.", _WHOLE) from None
    except Exception as error:  # whatever numbers and words that no model has make of the configuration
        raise ModelError(f"{file} says of itself what no model can be ({_said(error)}).", _WHOLE) from error


def _from_facts(reader: Any, facts: dict[str, Any], file: Path) -> PretrainedConfig:
    family = str(facts.get("general.architecture"))
    _refuse(_why_not(facts, family, {t.name for t in reader.tensors}), file)
    own = {name.partition(".")[2]: value for name, value in facts.items() if name.startswith(f"{family}.")}
    heads = own["attention.head_count"]
    config = FAMILIES[family](
        vocab_size=own.get("vocab_size") or len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=own["embedding_length"],
        intermediate_size=own["feed_forward_length"],
        num_hidden_layers=own["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=own.get("attention.head_count_kv", heads),
        max_position_embeddings=own["context_length"],
        rms_norm_eps=_short(own["attention.layer_norm_rms_epsilon"]),
        rope_parameters={"rope_type": "default", "rope_theta": _short(own.get("rope.freq_base", 10000.0))},
        tie_word_embeddings=all(t.name != "output.weight" for t in reader.tensors),
        bos_token_id=facts.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=_ends(facts),
        pad_token_id=facts.get("tokenizer.ggml.padding_token_id"),
    )
    if family != "qwen2":  # which has no such field: its heads share the width
        config.head_dim = own.get("attention.key_length") or own["embedding_length"] // heads
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    return config


def _why_not(facts: dict[str, Any], family: str, names: set[str]) -> str:
    """Why a file cannot be a target, from what it says of itself; empty when it can."""
    scaling = facts.get(f"{family}.rope.scaling.type", "none")
    if family not in FAMILIES:
        return f"its family is {family!r}"
    if facts.get("general.type", "model") != "model":
        return f"it holds no model but {facts['general.type']!r}"
    if facts.get("split.count", 0) > 1:
        return f"it is one of {facts['split.count']} parts (llama-gguf-split --merge makes them one file)"
    if facts.get(f"{family}.expert_count"):
        return "it is a mixture of experts"
    if scaling not in ("none", "") or "rope_freqs.weight" in names:
        return "its positions are scaled, which its metadata tells only in part"
    if "token_embd.weight" not in names:
        return "it has no embedding"
    return _positions(facts, family)


def _positions(facts: dict[str, Any], family: str) -> str:
    """Why its positions are none of those that are read here, which no weight's shape would betray."""
    own = {name.removeprefix(f"{family}."): value for name, value in facts.items()}
    if {own.get("rope.scale_linear", 1), own.get("rope.scaling.factor", 1)} - {0, 1}:
        return "its positions are scaled, which its metadata tells only in part"
    head = own.get("attention.key_length") or own["embedding_length"] // own["attention.head_count"]
    if own.get("rope.dimension_count", head) != head:
        return "only a part of each head is rotated"
    if 0 < own.get("attention.sliding_window", 0) < own["context_length"]:
        return "its attention looks back through a window"
    return ""


def _refuse(why: str, file: Path) -> None:
    if why:
        raise ModelError(f"{file.name} cannot be a target: {why}.", _INSTEAD)


def _ends(facts: dict[str, Any]) -> int | list[int] | None:
    """Ids that end a text: the end of the sequence, and of a turn where that is another."""
    found = [facts.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    ids = sorted({i for i in found if i is not None})
    return ids if len(ids) > 1 else ids[0] if ids else None


def _short(value: float) -> float:
    """A float32 of the metadata as it was meant: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _source(reader: Any, file: Path, folder: Path) -> None:
    """Where the copy comes from, for lists of what is there."""
    said = {"title": "general.name", "licence": "general.license", "family": "general.architecture"}
    facts = {name: reader.fields[key].contents() for name, key in said.items() if key in reader.fields}
    (folder / SOURCE).write_text(json.dumps({"file": str(file), **facts}, indent=2) + "\n", encoding="utf-8")


def _generation(config: PretrainedConfig, folder: Path) -> None:
    ids = {name: getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    said = {f"{name}_token_id": value for name, value in ids.items() if value is not None}
    (folder / "generation_config.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


# -- the tokenizer -----------------------------------------------------------------------------------------------------


def _tokenizer(reader: Any, file: Path, empty: Path, config: PretrainedConfig) -> Any:
    """The file's tokenizer, by transformers; cut before BPE as llama.cpp cuts for the name that the file gives.

    Transformers takes the tokens of a tokenizer.json that lies beside the file; so it is shown an `empty` folder.
    """
    kind = reader.fields["tokenizer.ggml.model"].contents() if "tokenizer.ggml.model" in reader.fields else None
    splitter = reader.fields["tokenizer.ggml.pre"].contents() if "tokenizer.ggml.pre" in reader.fields else "default"
    if kind == "gpt2" and splitter not in _known_splitters():
        _refuse(f"its tokenizer cuts text in a way ({splitter!r}) that is not known here", file)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            empty, gguf_file=str(file.resolve()), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers and tokenizers raise many kinds
        raise ModelError(f"The tokenizer in {file} cannot be read: {_said(error)}.", _INSTEAD) from error
    if kind == "gpt2" and splitter == "smollm":
        # transformers 5.23 knows this name's expression only, not the digits that are cut off one by one before it.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if len(tokenizer) > config.vocab_size:
        raise ModelError(f"{file} has {len(tokenizer)} tokens for {config.vocab_size} rows of its embedding.", _WHOLE)
    return tokenizer


def _known_splitters() -> set[str]:
    """Names for ways to cut text before BPE that are followed: plain byte-level, ours, and those of transformers."""
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS as theirs
    except ImportError:
        theirs = {}
    return {"gpt-2", "smollm", *theirs}


# -- the weights -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight under transformers' name, and how many bytes of the file lie behind it when it is written."""

    name: str
    value: torch.Tensor


def _weights(gguf: Any, reader: Any, config: Any, file: Path, told: Told) -> Iterator[_Weight]:
    """The model's weights in the file's order, each of the shape that the model wants, all of them."""
    wanted = _wanted(gguf, config)
    have = {tensor.name for tensor in reader.tensors}
    if missing := sorted(wanted.keys() - have):
        raise ModelError(f"{file} lacks {len(missing)} of the model's weights ({missing[0]} …).", _WHOLE)
    if unknown := sorted(have - wanted.keys()):
        _refuse(f"it has weights that such a model has no place for ({', '.join(unknown[:3])})", file)
    total = file.stat().st_size
    for tensor in reader.tensors:
        name, shape = wanted[tensor.name]
        value = _dequantised(gguf, tensor, file)
        if value.shape != shape:
            raise ModelError(f"{file}: {tensor.name} is {list(value.shape)}, not {list(shape)}.", _WHOLE)
        if config.model_type == "llama" and ".attn_q." in tensor.name:
            value = halves(value, config.num_attention_heads)
        elif config.model_type == "llama" and ".attn_k." in tensor.name:
            value = halves(value, config.num_key_value_heads)
        yield _Weight(name, _kept(value, tensor.tensor_type.name, f"{file}: {tensor.name}"))
        told(min(total, int(tensor.data_offset + tensor.n_bytes)), total)


def _wanted(gguf: Any, config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GGUF's name of each weight of the model → transformers' name and its shape."""
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    with torch.device("meta"):
        state = AutoModelForCausalLM.from_config(config).state_dict()
    found = {}
    for name, weight in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, kind = name.rpartition(".")
        found[f"{names.get_name(stem)}.{kind}"] = (name, tuple(weight.shape))
    return found


def _dequantised(gguf: Any, tensor: Any, file: Path) -> np.ndarray:
    """Its numbers in float32, by the library that wrote them."""
    try:
        return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except NotImplementedError:
        kind = tensor.tensor_type.name
        _refuse(f"{tensor.name} is in {kind}, which the package gguf cannot dequantise", file)
        raise AssertionError from None


def _kept(values: np.ndarray, kind: str, what: str) -> torch.Tensor:
    """A weight in the number format in which it is written; see `dequantise`."""
    whole = torch.from_numpy(np.array(values, dtype=np.float32))  # a copy: the file's pages may not be written to
    if not torch.isfinite(whole).all():
        raise ModelError(f"{what} has values that are no numbers.", _WHOLE)
    if kind == "BF16":
        return whole.bfloat16()
    if kind in ("F32", "F64") or whole.ndim == 1:
        return whole
    half = whole.half()
    return half if torch.isfinite(half).all() else whole


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Dimensions of each head half a head apart, as transformers rotates them; llama.cpp has them side by side."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _write_weights(weights: Iterator[_Weight], folder: Path) -> None:
    """Safetensors in shards, with the index that transformers reads when there are several."""
    shards: list[list[str]] = []
    held: dict[str, torch.Tensor] = {}
    n_bytes = total = 0

    def close() -> None:
        nonlocal n_bytes
        try:
            save_file(held, folder / f"shard-{len(shards)}", metadata={"format": "pt"})
        except Exception as error:  # safetensors' own kind, which keeps the system's words and not its number
            raise OSError(_said(error)) from error
        shards.append(list(held))
        held.clear()
        n_bytes = 0

    for weight in weights:
        size = weight.value.numel() * weight.value.itemsize
        if held and n_bytes + size > SHARD:
            close()
        held[weight.name] = weight.value.contiguous()
        n_bytes, total = n_bytes + size, total + size
    close()
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / "model.safetensors")
        return
    titles = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for i, title in enumerate(titles):
        (folder / f"shard-{i}").rename(folder / title)
    places = {name: title for title, names in zip(titles, shards, strict=True) for name in names}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _said(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
