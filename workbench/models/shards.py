"""Split weight files into shards of at most 10 MiB, the limit of Git hosts, and join them again.

An embedding of 49,152 tokens is one tensor of more than 10 MiB, so tensors are split, too.

The files `part-00001-of-00003.safetensors` and so on contain tensors under their own names, and slices of a large
tensor as `NAME#0`, `NAME#1`, … No other software reads this format; for `from_pretrained` the tensors are joined once,
in the cache folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from filelock import FileLock

from workbench.core.errors import ModelError, WorkbenchError, system_reason
from workbench.kernels.disk_cache import cache_folder
from workbench.models import converted_models
from workbench.models.checksums import SUMS_FILE, check_weights, sum_of, write_sums
from workbench.models.weight_files import weight_files

SHARD_PATTERN = "part-*-of-*.safetensors"
MOST = 9_000_000
"""Maximum size of a shard (part of a split weight file) in bytes."""


def join_shards(folder: Path) -> Path:
    """Return the folder from which to load a model: `folder` or, if its weights are split, a copy with joined tensors.

    The copy is created at the first call.

    Raises:
        ModelError: a shard is missing or damaged.
        WorkbenchError: the copy cannot be written.
    """
    if not any(folder.glob(SHARD_PATTERN)) or not (folder / SUMS_FILE).is_file():
        return folder
    copy = cache_folder().with_name("joined") / f"{folder.name}-{sum_of(folder / SUMS_FILE)[:16]}"
    if converted_models.is_intact(copy):
        return copy
    check_weights(folder)
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(copy.with_name(f".{copy.name}.lock")):
            if not converted_models.is_intact(copy):  # another process may have written it in the meantime
                _join(folder, copy)
    except OSError as error:
        raise WorkbenchError(
            f"The split weight files of {folder.name} cannot be joined into one file in {copy.parent}: "
            f"{system_reason(error)}.",
            "Set WORKBENCH_CACHE to another folder.",
        ) from error
    return copy


def _join(folder: Path, place: Path) -> None:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    pieces: dict[str, dict[int, torch.Tensor]] = {}
    try:
        for file in sorted(folder.glob(SHARD_PATTERN)):
            for name, tensor in load_file(file).items():
                tensor_name, _, index = name.partition("#")
                pieces.setdefault(tensor_name, {})[int(index or 0)] = tensor
        if any(sorted(slices) != [*range(len(slices))] for slices in pieces.values()):
            raise ValueError("a shard is missing")
    except (SafetensorError, ValueError) as error:
        raise ModelError(f"The weights in {folder} cannot be joined: {error}", "Download the folder again.") from error
    weights = {name: torch.cat([slices[i] for i in range(len(slices))]) for name, slices in pieces.items()}

    def write(part: Path) -> None:
        for file in folder.iterdir():
            if file.is_file() and file.suffix in (".json", ".jinja"):
                shutil.copyfile(file, part / file.name)
        save_file(weights, part / "model.safetensors", {"format": "pt"})
        (part / "model.safetensors").chmod(0o644)

    converted_models.fill(place, write)


def split_into_shards(folder: Path, most: int = MOST) -> None:
    """Split the weight files of a folder into shards of at most `most` bytes, in place, and write new checksums."""
    from safetensors.torch import load_file, save_file

    old_files = sorted([*weight_files(folder), *folder.glob("*.safetensors.index.json")])
    tensors = {}
    for file in (file for file in old_files if file.suffix == ".safetensors"):
        for name, tensor in load_file(file).items():
            n = -(-tensor.nbytes // most)
            chunks = tensor.chunk(n)
            tensors |= {name: tensor} if n == 1 else {f"{name}#{i}": piece.clone() for i, piece in enumerate(chunks)}
    groups: list[dict] = [{}]
    for name, tensor in tensors.items():
        if sum(member.nbytes for member in groups[-1].values()) + tensor.nbytes > most:
            groups.append({})
        groups[-1][name] = tensor
    for i, group in enumerate(groups, 1):
        piece = folder / f"part-{i:05}-of-{len(groups):05}.safetensors"
        save_file(group, piece, {"format": "pt"})
        piece.chmod(0o644)
    for file in old_files:
        file.unlink()
    write_sums(folder)
