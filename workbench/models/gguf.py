"""Convert GGUF files of Llama-like models: dequantise and rename weights, write a folder that `from_pretrained` opens.

llama.cpp's package `gguf` decodes the numbers. This module decides which files can be targets, and maps the weights;
`workbench.models.gguf_tokenizer` builds the tokenizer.
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
from transformers import AutoModelForCausalLM, PretrainedConfig

from workbench.core.errors import ModelError, WorkbenchError, system_reason
from workbench.models.bundle import SOURCE, Progress
from workbench.models.gguf_metadata import DAMAGED_ADVICE, config_of, first_line, refuse
from workbench.models.gguf_tokenizer import tokenizer_of

SHARD = 1 << 30
"""Size in bytes at which a shard of converted weights is written to disk; it limits the weights in memory at once."""


def dequantise(file: Path, folder: Path, on_progress: Progress = lambda done, total: None) -> None:
    """Write a GGUF model as configuration, safetensors, tokenizer and chat template into an empty folder.

    Quantised matrices are written as float16, at half the size of float32. Their scales are float16, so rounding adds
    at most 2⁻¹¹ of a weight, a hundredth of the error of Q4_1 (measured in `tests/engine`). Weights that have 16 or 32
    bits in the file keep their format.

    Args:
        file: GGUF file of the model; it is memory-mapped, never read completely.
        folder: existing, empty folder.
        on_progress: progress callback.

    Raises:
        ModelError: the file is damaged or truncated, or its model is not supported.
        WorkbenchError: the package `gguf` is not installed.
        OSError: the folder cannot be written.
    """
    gguf = import_gguf()
    on_progress(0, file.stat().st_size)
    reader = _open_reader(gguf, file)
    config = config_of(reader, file)
    tokenizer = tokenizer_of(reader, file)
    if len(tokenizer) > config.vocab_size:
        raise ModelError(f"{file} has {len(tokenizer)} tokens, but {config.vocab_size} embedding rows.", DAMAGED_ADVICE)
    config.save_pretrained(folder)
    _generation(config, folder)
    tokenizer.save_pretrained(folder)
    _source(reader, file, folder)
    _write_weights(_weights(gguf, reader, config, file, on_progress), folder)


def import_gguf() -> Any:
    """Import and return the Python package `gguf`, which reads GGUF files.

    Raises:
        WorkbenchError: the package is not installed.
    """
    try:
        import gguf
    except ModuleNotFoundError:
        raise WorkbenchError("Reading a GGUF file needs the Python package gguf.", "pip install gguf") from None
    return gguf


def _open_reader(gguf: Any, file: Path) -> Any:
    """Open a GGUF file and return its reader. Its tables are checked; its weights are not read."""
    try:
        return gguf.GGUFReader(file)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {system_reason(error)}.", DAMAGED_ADVICE) from None
    except Exception as error:  # damaged bytes raise any of ValueError, IndexError, KeyError, UnicodeError, …
        raise ModelError(
            f"{file} is not a GGUF file, or is damaged or truncated ({first_line(error)}).", DAMAGED_ADVICE
        ) from None


def _source(reader: Any, file: Path, folder: Path) -> None:
    """Write the file that describes the origin of a converted model, for lists of available models."""
    keys = {"title": "general.name", "licence": "general.license", "family": "general.architecture"}
    facts = {name: reader.fields[key].contents() for name, key in keys.items() if key in reader.fields}
    (folder / SOURCE).write_text(json.dumps({"file": str(file), **facts}, indent=2) + "\n", encoding="utf-8")


def _generation(config: PretrainedConfig, folder: Path) -> None:
    ids = {name: getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    token_ids = {f"{name}_token_id": value for name, value in ids.items() if value is not None}
    (folder / "generation_config.json").write_text(json.dumps(token_ids, indent=2) + "\n", encoding="utf-8")


# -- the weights -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weight:
    """Weight of a model: the tensor and its name in Transformers."""

    name: str
    value: torch.Tensor


def _weights(gguf: Any, reader: Any, config: Any, file: Path, on_progress: Progress) -> Iterator[_Weight]:
    """Yield all weights of the model in a GGUF file, in the file's order, with Transformers' names and shapes."""
    expected = _expected_weights(gguf, config)
    names = {tensor.name for tensor in reader.tensors}
    if missing := sorted(expected.keys() - names):
        raise ModelError(f"{file} lacks {len(missing)} of the model's weights ({missing[0]} …).", DAMAGED_ADVICE)
    if unknown := sorted(names - expected.keys()):
        refuse(f"the file has weights that this architecture does not use ({', '.join(unknown[:3])})", file)
    total = file.stat().st_size
    for tensor in reader.tensors:
        name, shape = expected[tensor.name]
        value = _dequantised(gguf, tensor, file)
        if value.shape != shape:
            raise ModelError(f"{file}: {tensor.name} is {list(value.shape)}, not {list(shape)}.", DAMAGED_ADVICE)
        if config.model_type == "llama" and ".attn_q." in tensor.name:
            value = reorder_rope_rows(value, config.num_attention_heads)
        elif config.model_type == "llama" and ".attn_k." in tensor.name:
            value = reorder_rope_rows(value, config.num_key_value_heads)
        yield _Weight(name, _to_stored_dtype(value, tensor.tensor_type.name, f"{file}: {tensor.name}"))
        on_progress(min(total, int(tensor.data_offset + tensor.n_bytes)), total)


def _expected_weights(gguf: Any, config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return a dict from the GGUF name of each weight to its Transformers name and shape.

    Args:
        gguf: the package `gguf`.
        config: configuration of the model.
    """
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    with torch.device("meta"):
        state = AutoModelForCausalLM.from_config(config).state_dict()
    weights = {}
    for name, weight in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, kind = name.rpartition(".")
        weights[f"{names.get_name(stem)}.{kind}"] = (name, tuple(weight.shape))
    return weights


def _dequantised(gguf: Any, tensor: Any, file: Path) -> np.ndarray:
    """Return the values of a GGUF tensor in float32, dequantised by the `gguf` package.

    Args:
        gguf: the package `gguf`.
        tensor: tensor of the package's reader.
        file: path of the file, for errors.
    """
    try:
        return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except NotImplementedError:
        kind = tensor.tensor_type.name
        refuse(f"{tensor.name} is in {kind}, which the package gguf cannot dequantise", file)
        raise AssertionError from None


def _to_stored_dtype(values: np.ndarray, kind: str, what: str) -> torch.Tensor:
    """Convert a weight of a GGUF file to the dtype in which the converted model stores it.

    The dtype is bfloat16 for BF16, float32 for F32, F64 and vectors, and float16 for all other formats. A weight that
    exceeds the range of float16 becomes float32.

    Args:
        values: numbers in float32.
        kind: name of the weight's number format in the GGUF file.
        what: name of the tensor, for errors.
    """
    tensor = torch.from_numpy(np.array(values, dtype=np.float32))  # a copy: the memory-mapped file is read-only
    if not torch.isfinite(tensor).all():
        raise ModelError(f"{what} contains NaN or infinite values.", DAMAGED_ADVICE)
    if kind == "BF16":
        return tensor.bfloat16()
    if kind in ("F32", "F64") or tensor.ndim == 1:
        return tensor
    half = tensor.half()
    return half if torch.isfinite(half).all() else tensor


def reorder_rope_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder query or key rows from llama.cpp's RoPE layout (adjacent pairs) to Transformers' (half a head apart).

    Args:
        weight: weight [H · d, ·] of queries or keys.
        heads: number of heads H.
    """
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _write_weights(weights: Iterator[_Weight], folder: Path) -> None:
    """Write weights as safetensors shards; for several shards, also write the index file that Transformers reads."""
    shards: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    n_bytes = total = 0

    def close() -> None:
        nonlocal n_bytes
        try:
            save_file(shard, folder / f"shard-{len(shards)}", metadata={"format": "pt"})
        except Exception as error:  # safetensors' own error type has the system's message but not its errno
            raise OSError(first_line(error)) from error
        shards.append(list(shard))
        shard.clear()
        n_bytes = 0

    for weight in weights:
        size = weight.value.numel() * weight.value.itemsize
        if shard and n_bytes + size > SHARD:
            close()
        shard[weight.name] = weight.value.contiguous()
        n_bytes, total = n_bytes + size, total + size
    close()
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / "model.safetensors")
        return
    titles = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for i, title in enumerate(titles):
        (folder / f"shard-{i}").rename(folder / title)
    weight_map = {name: title for title, names in zip(titles, shards, strict=True) for name in names}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
