"""Feature drafters on disk: safetensors and a configuration that says which target they fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from workbench.engine.checksums import write_sums
from workbench.methods.drafters.eagle_vlm import EagleVLMNet
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.methods.drafters.flash import FlashNet
from workbench.methods.drafters.msd import MSDNet
from workbench.methods.drafters.specvlm import SpecVLMNet
from workbench.trace.files import replacing, write_whole

NETS: dict[str, type[FeatureNet]] = {net.kind: net for net in (EagleVLMNet, MSDNet, SpecVLMNet, FlashNet)}
"""Kinds of feature drafters by the name of their method."""


def save_net(
    net: FeatureNet, out: Path, target: str, dtype: torch.dtype = torch.float16, **facts: Any
) -> dict[str, Any]:
    """Write `model.safetensors` and `config.json`; return the configuration.

    Args:
        net: the drafter.
        out: folder, made where it is missing.
        target: name of the target whose features it reads.
        dtype: of the weights on disk.
        facts: more for the configuration.
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().to(dtype).contiguous() for name, weight in net.state_dict().items()}
    with replacing(out / "model.safetensors") as part:
        save_file(weights, part, metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    write_sums(out)
    config = {"workbench_head": net.kind, "target": target, "hidden_size": net.width, "net": net.sizes, **facts}
    write_whole(out / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    return config


def load_saved(folder: Path) -> tuple[FeatureNet, dict[str, Any]]:
    """The net in a folder, in float32, and its configuration."""
    config = json.loads((folder / "config.json").read_text())
    net = NETS[config["workbench_head"]](**config["net"])
    net.load_state_dict({name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()})
    return net, config
