"""Trained heads on disk: safetensors and a configuration that names their target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from workbench.core.errors import ModelError, ParameterError
from workbench.methods import registry
from workbench.methods.drafters.trained_net import TrainedNet
from workbench.models.bundle import config_of
from workbench.models.checksums import SUMS_FILE as SUMS
from workbench.models.checksums import check_weights, write_sums
from workbench.models.int8_checkpoint import SCALE, dequantise_weights, quantise_weights, read_weights
from workbench.trace.files import replace_atomically, write_atomically
from workbench.training.models import format_json

WEIGHTS = "model.safetensors"
STORED = "stored"
"""Key in the configuration of an int8 checkpoint: {"bits", "error": relative change of the weights}."""


def save_net(
    net: TrainedNet, out: Path, target: str, dtype: torch.dtype = torch.float16, **facts: Any
) -> dict[str, Any]:
    """Write `model.safetensors` and `config.json`; return the configuration.

    Args:
        net: the net.
        out: folder, created if it is missing.
        target: name of the target that it drafts for.
        dtype: dtype of the floating-point weights on disk.
        facts: further entries of the configuration.
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: (weight.to(dtype) if weight.is_floating_point() else weight).detach().contiguous()
        for name, weight in net.state_dict().items()
    }
    with replace_atomically(out / WEIGHTS) as part:
        save_file(weights, part, metadata={"format": "pt"})
    (out / WEIGHTS).chmod(0o644)
    write_sums(out)
    config = {"workbench_head": net.kind, "target": target, **net.config(), **facts}
    write_atomically(out / "config.json", format_json(config))
    return config


def load_net(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Load the net in a folder, in float32, and its configuration."""
    config = json.loads((folder / "config.json").read_text())
    net = registry.heads()[config["workbench_head"]].net.of(config)
    net.load_state_dict(read_weights(folder / WEIGHTS))  # `load_state_dict` converts float16 to float32
    return net, config


def shrink(folder: Path, out: Path) -> dict[str, Any]:
    """Write a copy of a trained head as an int8 checkpoint (`workbench.models.int8_checkpoint`).

    Args:
        folder: folder of the head.
        out: an empty folder, or one that does not exist yet.

    Returns:
        {"before", "after": bytes of the weights, "error": relative error of the weights (norms)}.

    Raises:
        ModelError: the head cannot be read, or has no weights to convert.
        ParameterError: `out` is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ParameterError(f"{out} is not empty.", "Choose a new folder.")
    source = folder / WEIGHTS
    try:
        check_weights(folder)
        weights = load_file(source)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder} has no readable weights: {error}", "Give the folder of a head.") from None
    int8_weights = quantise_weights(weights)
    if "workbench_head" not in config_of(folder) or int8_weights.keys() == weights.keys():
        raise ModelError(
            f"{folder} has no weights that can be converted to int8.", "Give a float head that was trained here."
        )
    restored = dequantise_weights(int8_weights)
    names = [name for name in weights if name + SCALE in int8_weights]
    error = sum(float((restored[name] - weights[name].float()).square().sum()) for name in names)
    squared_norm = sum(float(weights[name].float().square().sum()) for name in names)
    relative_error = (error / squared_norm) ** 0.5
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name not in (WEIGHTS, SUMS, "config.json"):
            shutil.copyfile(file, out / file.name)
    write_atomically(
        out / "config.json", format_json(config_of(folder) | {STORED: {"bits": 8, "error": round(relative_error, 5)}})
    )
    with replace_atomically(out / WEIGHTS) as part:
        save_file(int8_weights, part, metadata={"format": "pt"})
    (out / WEIGHTS).chmod(0o644)
    write_sums(out)
    sizes = {name: (path / WEIGHTS).stat().st_size for name, path in (("before", folder), ("after", out))}
    return sizes | {"error": relative_error}
