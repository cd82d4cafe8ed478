"""Trained heads on disk: safetensors and a configuration that says which target they fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from workbench.engine.checksums import write_sums
from workbench.methods import registry
from workbench.methods.drafters.trained import TrainedNet
from workbench.trace.files import replacing, write_whole
from workbench.training.models import in_lines


def save_net(
    net: TrainedNet, out: Path, target: str, dtype: torch.dtype = torch.float16, **facts: Any
) -> dict[str, Any]:
    """Write `model.safetensors` and `config.json`; return the configuration.

    Args:
        net: the net.
        out: folder, made where it is missing.
        target: name of the target that it drafts for.
        dtype: of the weights on disk, whole numbers apart.
        facts: more for the configuration.
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: (weight.to(dtype) if weight.is_floating_point() else weight).detach().contiguous()
        for name, weight in net.state_dict().items()
    }
    with replacing(out / "model.safetensors") as part:
        save_file(weights, part, metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    write_sums(out)
    config = {"workbench_head": net.kind, "target": target, **net.config(), **facts}
    write_whole(out / "config.json", in_lines(config))
    return config


def load_saved(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The net in a folder, in float32, and its configuration."""
    config = json.loads((folder / "config.json").read_text())
    net = registry.heads()[config["workbench_head"]].net.of(config)
    net.load_state_dict(load_file(folder / "model.safetensors"))  # which takes float16 for float32
    return net, config
