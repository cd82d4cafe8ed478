"""Look up the files and configurations of models by name, without PyTorch."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError
from workbench.models import converted_models, local_models, model_index
from workbench.models.bundle import bundled, check_files, config_of
from workbench.models.shards import join_shards
from workbench.models.weight_files import weight_files

ANY_DRAFTER = "any-drafter"
"""Name of the requirement of methods that accept a draft model with any vocabulary, because they translate its tokens.
"""


def folder_of(name: str) -> Path | None:
    """Return the folder of a model's files on this machine; None if they are not downloaded or converted yet."""
    if name in (bundled_models := bundled()):
        return bundled_models[name]
    if name in model_index.MODEL_INDEX:
        return model_index.local_folder(model_index.MODEL_INDEX[name])
    path = local_models.path_of(name)
    if path.is_dir():
        return path
    return converted_models.copy_of(path) if converted_models.is_gguf(name) and path.is_file() else None


def locate(name: str) -> str:
    """Return the argument for `from_pretrained` by which a model can be loaded: a folder, or a Hub id.

    A published model that is not on this machine is downloaded, and a GGUF file is converted. `service.hub.fetch` does
    this beforehand with progress messages, so that only programs that use the engine directly have to wait here.

    Raises:
        ModelError: `name` is not a bundled or published name, a model folder, a GGUF file, or a possible Hub id; or
            the folder contains a pipe or a device.
        WorkbenchError: a converted or joined copy of the files cannot be written.
    """
    bundled_models = bundled()
    if name in bundled_models:
        check_files(bundled_models[name])
        return str(join_shards(bundled_models[name]))
    if model := model_index.MODEL_INDEX.get(name):
        return str(model_index.obtain(model, lambda: model_index.download(model)))
    path = local_models.path_of(name)
    if converted_models.is_gguf(name):
        return str(converted_models.convert(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json.", "Give a folder with config.json and *.safetensors.")
        check_files(path)
        return str(join_shards(path))
    if path.is_file():
        raise ModelError(f"{path} is a file.", "Give a folder with config.json and *.safetensors.")
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_local:
        matches = difflib.get_close_matches(name, [*bundled_models, *model_index.MODEL_INDEX], n=2, cutoff=0.6)
        guess = f"Did you mean {' or '.join(map(repr, matches))}? " if matches else ""
        names = ", ".join([*bundled_models, *model_index.MODEL_INDEX])
        hint = f"Known models: {names}; `workbench models` shows details."
        raise ModelError(
            f"There is no model {name!r}.",
            f"{guess}Give a bundled name, a folder, a GGUF file, or a Hub id (owner/name). {hint}",
        )
    return name


def weight_bytes(name: str) -> int:
    """Return the size of a model's weight files in bytes; 0 if the model is not in a folder on this machine."""
    folder = folder_of(name)
    return sum(file.stat().st_size for file in weight_files(folder)) if folder else 0


def bundled_drafter(target: str, ignores_images: bool = False) -> str | None:
    """Return the name of the bundled draft model for a target; None if there is none.

    Args:
        target: name of the target.
        ignores_images: whether the method ignores images. If so, prefer a draft model that was trained without them.
    """
    drafters = [(name, config) for name, _, config in known_targets() if local_models.trained_for(config) == target]
    if ignores_images:
        drafters.sort(key=lambda found: "vision_config" in found[1])
    return drafters[0][0] if drafters else None


def is_drafter(name: str) -> bool:
    """Return whether a model on this machine is a draft model, that is, its configuration names its target."""
    folder = folder_of(name)
    return folder is not None and bool(local_models.trained_for(config_of(folder)))


def known_targets() -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield (name, folder, configuration) of bundled models; a draft model's configuration has the entry `target`."""
    for name, folder in bundled().items():
        if (config := config_of(folder)) and "workbench_head" not in config:
            yield name, folder, config


def heads_of(target_name: str, kinds: Sequence[str]) -> list[str]:
    """Return the names of the bundled trained heads of given kinds for a target, without loading them."""
    configs = ((name, config_of(folder)) for name, folder in bundled().items())
    return [n for n, c in configs if c.get("workbench_head") in kinds and local_models.trained_for(c) == target_name]
