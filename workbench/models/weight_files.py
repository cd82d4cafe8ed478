"""Find safetensors files and read their headers, without PyTorch."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from safetensors import safe_open

SCALE = "_scale"
"""Suffix of the name of the tensor that holds an int8 tensor's scales (`workbench.models.int8_checkpoint`)."""


def is_scale(name: str, names: Collection[str]) -> bool:
    """Return whether a tensor of a safetensors file holds the scales of an int8 tensor of the same file."""
    return name.endswith(SCALE) and name.removesuffix(SCALE) in names


def count_weights(path: Path) -> int:
    """Return the number of weights in a safetensors file, scales not counted. An unchanged file is read once."""
    facts = path.stat()
    return _count_weights(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)


@lru_cache(maxsize=512)
def _count_weights(path: Path, *version: int) -> int:
    """Return the number of weights in a safetensors file, cached by path and `version` (size, modification time)."""
    with safe_open(path, "np") as file:
        names = set(file.keys())
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names if not is_scale(name, names))


def weight_files(folder: Path | str) -> list[Path]:
    """Return the paths of the safetensors files in a model's folder, sorted by name."""
    return sorted(Path(folder).glob("*.safetensors"))


def count_model_weights(folder: Path | str) -> int:
    """Return the number of weights in all safetensors files of a model's folder, scales not counted.

    Raises:
        SafetensorError: a file is damaged.
        OSError: a file cannot be read.
    """
    return sum(map(count_weights, weight_files(folder)))
