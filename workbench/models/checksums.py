"""Bundled weights are what they were when they were made: SHA-256 sums beside them, checked when they are loaded.

`SHA256SUMS` has the form that `sha256sum -c SHA256SUMS` reads. Training writes it anew with the weights.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from workbench.core.errors import ModelError
from workbench.models.bundle import bundled_folder, check_files
from workbench.trace.files import write_whole

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^/\\]+)")
_PIECE = 1 << 20
_POINTER = b"version https://git-lfs"


def write_sums(folder: Path, pattern: str = "*.safetensors") -> None:
    """Write down what the weights in a folder, or the files of another pattern, are now."""
    files = sorted(folder.glob(pattern))
    write_whole(folder / NAME, "".join(f"{sum_of(file)}  {file.name}\n" for file in files).encode())


def check_weights(folder: Path) -> None:
    """Refuse bundled weights that were cut or changed since they were made. Each file is read once in a process.

    A folder of somebody's own is not asked for sums; what lies in it may be no pipe and no device.

    Raises:
        ModelError: naming the file and what to do.
    """
    check_files(folder)
    sums = folder / NAME
    if folder.resolve().parent != bundled_folder().resolve() or not sums.is_file():
        return
    for line in sums.read_text(encoding="utf-8").splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            raise ModelError(f"{sums} is damaged: {line[:40]!r} is not a checksum line.", _REMEDY)
        wanted, name = found.groups()
        if wrong := what_is_wrong(folder / name, wanted):
            raise ModelError(f"{folder / name} {wrong}.", _REMEDY)


_REMEDY = (
    "Fetch the repository's assets again (git checkout -- assets/models; with Git LFS, git lfs pull first). Where you "
    f"changed the weights yourself, delete {NAME} beside them."
)


def what_is_wrong(file: Path, wanted: str) -> str:
    """Why a file is not the one with this sum, in words that follow its name; empty when it is."""
    if not file.is_file():
        return "is missing"
    if sum_of(file) == wanted:
        return ""
    with file.open("rb") as opened:
        is_pointer = opened.read(len(_POINTER)) == _POINTER
    return (
        "is a Git LFS pointer, not the weights"
        if is_pointer
        else "does not match its checksum: it is truncated or damaged"
    )


def sum_of(file: Path) -> str:
    """The SHA-256 sum of a file, which is read once in a process for as long as its size and date stay."""
    now = file.stat()
    return _read(str(file), now.st_size, now.st_mtime_ns)


@lru_cache(maxsize=256)
def _read(file: str, n_bytes: int, changed: int) -> str:
    """The sum of a file; its size and date decide when it is read anew."""
    digest = hashlib.sha256()
    with Path(file).open("rb") as opened:
        while piece := opened.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
