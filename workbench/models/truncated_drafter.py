"""Make a draft model for any target: the target's first layers, saved as a separate model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig
from transformers.utils import logging

from workbench.kernels.layers import decoder_layers, text_config
from workbench.models.bundle import DEFAULT_TARGET
from workbench.models.names import bundled_drafter, locate
from workbench.models.pretrained import load_model, load_processor, load_tokenizer

_temporary_folders: dict[str, tempfile.TemporaryDirectory[str]] = {}
"""Target → temporary folder of the draft model that this process made from the target's first layers. The folders are
deleted when the process ends."""


def save_truncated(target: str, folder: Path, layers: int) -> Path:
    """Save the first layers of a model, with its embedding, final norm, head and vision tower, as a separate model.

    Args:
        target: bundled name, local folder, or Hub id.
        folder: output folder; tokenizer and processor are saved there, too.
        layers: number of decoder layers to keep, at least one.

    Raises:
        ModelError: the target cannot be loaded, or its decoder layers were not found.

    Source: Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710, §3.3, without the shared cache.
    """
    model: Any = load_model(target, torch.device("cpu"), torch.float32)
    name, decoder = decoder_layers(model)
    layers = max(1, min(layers, len(decoder)))
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, nn.ModuleList(decoder[i] for i in range(layers)))
    config: Any = text_config(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    processor = load_processor(target, model)
    with _hide_progress_bars():
        model.save_pretrained(folder)
        load_tokenizer(target).save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
    return folder


def drafter_for(target: str | None, drafter: str | None = None) -> str:
    """Return the name or folder of a draft model for a target: the given one, else the bundled one, else a new one.

    The new draft model consists of the target's first layers, saved in a temporary folder.

    Args:
        target: name of the target, as in `Workbench`; None: the bundled target.
        drafter: name of the draft model, as in `Workbench`; None: choose a draft model.

    Raises:
        ModelError: the target cannot be loaded, or its decoder layers were not found.
    """
    name = target or DEFAULT_TARGET
    if existing := drafter or bundled_drafter(name):
        return existing
    if name not in _temporary_folders:
        config = AutoConfig.from_pretrained(locate(name), trust_remote_code=False)
        layers = max(1, text_config(config).num_hidden_layers // 6)
        temporary = tempfile.TemporaryDirectory(prefix="drafter-")
        save_truncated(name, Path(temporary.name) / f"{Path(name).name}-first-{layers}", layers)
        _temporary_folders[name] = temporary
    return str(next(Path(_temporary_folders[name].name).iterdir()))


@contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """Hide Transformers' progress bars while a model is saved."""
    is_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_enabled:
            logging.enable_progress_bar()
