"""Files of trained heads: weights as safetensors, and a configuration that names the target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from workbench.core.errors import ModelError, ParameterError
from workbench.methods import registry
from workbench.methods.common.trained_net import TrainedNet
from workbench.models.bundle import config_of
from workbench.models.checksums import SUMS_FILE as SUMS
from workbench.models.checksums import check_weights, write_sums
from workbench.models.int8_checkpoint import STORED, read_weights, storage_entry, write_weights
from workbench.models.weight_files import weight_files
from workbench.trace.files import replace_atomically, write_atomically
from workbench.training.models import convert_to_int8, format_json

WEIGHTS = "model.safetensors"


def save_net(net: TrainedNet, out: Path, target: str, dtype: torch.dtype = torch.int8, **facts: Any) -> dict[str, Any]:
    """Write a trained head as `model.safetensors` and `config.json`; return the configuration.

    Args:
        net: net of the head.
        out: folder, created if it is missing.
        target: name of the target for which the net drafts.
        dtype: dtype of the floating-point weights on disk; int8: matrices as int8, all other weights as float16
            (`workbench.models.int8_checkpoint`).
        facts: further entries of `config.json`.
    """
    out.mkdir(parents=True, exist_ok=True)
    float_dtype = torch.float16 if dtype == torch.int8 else dtype
    weights = {
        name: (weight.to(float_dtype) if weight.is_floating_point() else weight).detach().contiguous()
        for name, weight in net.state_dict().items()
    }
    config = {"workbench_head": net.kind, "target": target, **net.config(), **facts}
    if dtype == torch.int8 and (error := write_weights(weights, out / WEIGHTS)):
        config |= storage_entry(error)
    elif dtype != torch.int8:
        with replace_atomically(out / WEIGHTS) as part:
            save_file(weights, part, metadata={"format": "pt"})
        (out / WEIGHTS).chmod(0o644)
    write_sums(out)
    write_atomically(out / "config.json", format_json(config))
    return config


def load_net(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Load the trained head in a folder: its net in float32, and its configuration."""
    config = json.loads((folder / "config.json").read_text())
    net = registry.heads()[config["workbench_head"]].net.of(config)
    net.load_state_dict(read_weights(folder / WEIGHTS))  # `load_state_dict` converts float16 to float32
    return net, config


def shrink(folder: Path, out: Path) -> dict[str, Any]:
    """Write a copy of a trained head or a model as an int8 checkpoint (`workbench.models.int8_checkpoint`).

    Args:
        folder: folder of the head or the model.
        out: an empty folder, or one that does not exist yet.

    Returns:
        "before" and "after": bytes of the weights; "error": norm of the weights' change / norm of the weights.

    Raises:
        ModelError: the folder cannot be read, or has no weights to convert.
        ParameterError: `out` is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ParameterError(f"The output folder {out} is not empty.", "Choose a new folder.")
    config, old_files = config_of(folder), weight_files(folder)
    try:
        check_weights(folder)
        if not old_files:
            raise FileNotFoundError("no safetensors files")
        if not config or STORED in config:
            raise _nothing_to_convert(folder)
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.name != SUMS:
                shutil.copyfile(file, out / file.name)
        error = convert_to_int8(out)
    except (OSError, SafetensorError) as failure:
        raise ModelError(
            f"{folder} has no readable weights: {failure}", "Give the folder of a head or a model."
        ) from None
    if not error:
        shutil.rmtree(out)
        raise _nothing_to_convert(folder)
    write_sums(out)
    sizes = {name: sum(file.stat().st_size for file in files) for name, files in
             (("before", old_files), ("after", weight_files(out)))}  # fmt: skip
    return sizes | {"error": error}


def _nothing_to_convert(folder: Path) -> ModelError:
    return ModelError(
        f"{folder} has no weights that can be converted to int8.",
        "Give a head or a model with float weights that was trained here.",
    )
