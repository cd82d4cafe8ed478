"""Headers of safetensors files, read without PyTorch."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from safetensors import safe_open

SCALE = "_scale"
"""End of the name of an int8 tensor's scales (`workbench.models.int8_checkpoint`)."""


def is_scale(name: str, names: Collection[str]) -> bool:
    """Return whether the tensor `name`, in a file with the tensors `names`, holds the scales of another tensor."""
    return name.endswith(SCALE) and name.removesuffix(SCALE) in names


def count_weights(path: Path) -> int:
    """Return the number of weights in a safetensors file, scales not counted. An unchanged file is read once."""
    facts = path.stat()
    return _count_weights(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)


@lru_cache(maxsize=512)
def _count_weights(path: Path, *version: int) -> int:
    """Return the number of weights in a file. `version` (size and modification time) is part of the cache key."""
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
