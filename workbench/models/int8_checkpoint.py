"""Write and read int8 checkpoints of trained heads, draft models and small targets, at half the file size.

A matrix is stored as signed bytes with one scale per group of 64 (or 32) inputs of an output. Rounding changes a weight
by at most 1/254 of the largest weight in its group. Reading returns ordinary weights, so no other code depends on the
format. An int8 tensor `name` has its scales in the tensor `name_scale`, in the layout of compressed-tensors' group
quantisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor
from transformers import AutoConfig, GenerationConfig

from workbench.kernels.quantised import STEPS
from workbench.models.weight_files import SCALE, is_scale, weight_files
from workbench.trace.files import replace_atomically

STORED = "stored"
"""Key in a model's configuration that marks an int8 checkpoint. Its value is a dict with `bits` and `error` (relative
change of the weights by rounding)."""
MODEL_FILE = "int8.safetensors"
"""Name of the weight file of a model in an int8 checkpoint. It is a name that `from_pretrained` does not find, because
`from_pretrained` would load the bytes as if they were the weights."""
METADATA = {"format": "pt", "quantisation": "int8, symmetric, bfloat16 scales NAME_scale [outputs, groups]"}
"""Metadata of the safetensors files of int8 checkpoints."""
GROUPS = (64, 32)
"""Possible numbers of int8 weights that share a scale. The first number that divides a matrix's number of inputs is
used."""
LEAST = 4096
"""Minimum number of elements of a weight that an int8 checkpoint stores in int8; norms and biases stay unchanged."""


def quantise_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Quantise weights: matrices become int8 [o, i] with bfloat16 scales [o, i / group]; other weights stay unchanged.

    Args:
        weights: weights by name. A matrix also stays unchanged if no group size divides its last dimension.
    """
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        group = _group(weight)
        if not group:
            tensors[name] = weight
            continue
        groups = weight.detach().float().unflatten(1, (-1, group))
        scale = (groups.abs().amax(2, keepdim=True) / STEPS * (1 + 2**-8)).bfloat16()  # at least the exact scale
        numbers = (groups / scale.float().clamp_min(torch.finfo(torch.float32).tiny)).round_()
        tensors[name] = numbers.to(torch.int8).flatten(1)
        tensors[name + SCALE] = scale.squeeze(2)
    return tensors


def dequantise_weights(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Invert `quantise_weights`: int8 weights with scales become float32; other weights stay unchanged."""
    return {
        name: _times(tensor, stored[name + SCALE]) if name + SCALE in stored else tensor
        for name, tensor in stored.items()
        if not is_scale(name, stored)
    }


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a safetensors file, int8 or not.

    Raises:
        OSError, SafetensorError: the file cannot be read.
        ValueError: the scales do not fit the int8 tensors.
    """
    return dequantise_weights(load_file(path))


def read_folder(folder: Path, names: set[str] | None = None) -> dict[str, Tensor]:
    """Return the weights of all safetensors files in a folder, int8 or not; only those in `names` if given.

    Raises:
        OSError, SafetensorError: a file cannot be read.
        ValueError: the scales do not fit the int8 tensors.
    """
    stored: dict[str, Tensor] = {}
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  it is no mapping
                if names is None or name in names or name.removesuffix(SCALE) in names:
                    stored[name] = file.get_tensor(name)
    return dequantise_weights(stored)


def write_weights(weights: Mapping[str, Tensor], path: Path) -> float:
    """Write an int8 checkpoint, and return its relative error ‖rounded − original‖ / ‖original‖.

    The error is over the quantised weights; 0 if no weight is quantised.
    """
    stored = quantise_weights(weights)
    with replace_atomically(path) as part:
        save_file(stored, part, metadata=METADATA)
    path.chmod(0o644)
    restored = dequantise_weights(stored)
    names = [name for name in weights if name + SCALE in stored]
    change = sum(float((restored[name] - weights[name].float()).square().sum()) for name in names)
    squared_norm = sum(float(weights[name].float().square().sum()) for name in names)
    return (change / squared_norm) ** 0.5 if squared_norm else 0.0


def is_int8(config: Any) -> bool:
    """Return whether a transformers configuration belongs to a model that is stored as an int8 checkpoint."""
    return hasattr(config, STORED)


def storage_entry(error: float) -> dict[str, Any]:
    """Return the entry for a model's configuration that marks an int8 checkpoint with the given relative error."""
    return {STORED: {"bits": 8, "error": round(error, 5)}}


def remove_storage_entry(config: Any) -> None:
    """Remove the entry that marks an int8 checkpoint from the configuration of a loaded (dequantised) model."""
    if hasattr(config, STORED):
        delattr(config, STORED)


def load_int8_model(model_class: Any, folder: Path, config: Any, dtype: torch.dtype) -> Any:
    """Load a transformers model from an int8 checkpoint. The configuration of the result no longer mentions int8.

    Args:
        model_class: class of the model, or an Auto class.
        folder: folder of the model.
        config: configuration of the model, for which `is_int8` holds; it is changed.
        dtype: dtype of the loaded model.

    Raises:
        OSError, SafetensorError: a file cannot be read.
        ValueError: the scales do not fit the int8 tensors.
    """
    remove_storage_entry(config)
    mapping = getattr(model_class, "_model_mapping", None)
    concrete: Any = model_class if mapping is None else mapping[type(config)]
    model = concrete.from_pretrained(None, config=config, state_dict=read_folder(folder), dtype=dtype)
    if model.can_generate() and (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def load_folder(model_class: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Load a transformers model from a folder with an int8 checkpoint or an ordinary checkpoint (`from_pretrained`)."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if is_int8(config):
        return load_int8_model(model_class, folder, config, dtype)
    return model_class.from_pretrained(str(folder), dtype=dtype)


def _group(weight: Tensor) -> int:
    """Return how many inputs of a weight share a scale in an int8 checkpoint; 0 if the weight is stored unchanged."""
    is_matrix = weight.is_floating_point() and weight.ndim == 2 and weight.numel() >= LEAST
    return next((group for group in GROUPS if is_matrix and weight.shape[1] % group == 0), 0)


def _times(numbers: Tensor, scale: Tensor) -> Tensor:
    fits = numbers.dtype is torch.int8 and numbers.ndim == scale.ndim == 2 and len(numbers) == len(scale)
    if not fits or not scale.numel() or numbers.shape[1] % scale.shape[1]:
        raise ValueError(f"{tuple(scale.shape)} scales do not fit {tuple(numbers.shape)} numbers of {numbers.dtype}")
    groups = numbers.float().unflatten(1, (scale.shape[1], -1))
    return (groups * scale.float().unsqueeze(2)).flatten(1)
