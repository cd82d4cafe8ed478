"""Check the SHA-256 sums of the bundled weights when they are loaded.

`SHA256SUMS`, next to the weights, has the format that `sha256sum -c SHA256SUMS` reads. Training rewrites it.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from workbench.core.errors import ModelError
from workbench.models.bundle import bundled_folder, check_files
from workbench.trace.files import write_atomically

SUMS_FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^/\\]+)")
_PIECE = 1 << 20
_POINTER = b"version https://git-lfs"


def write_sums(folder: Path, pattern: str = "*.safetensors") -> None:
    """Write the SHA-256 sums of the files in a folder that match a pattern (by default, weights) to `SHA256SUMS`."""
    files = sorted(folder.glob(pattern))
    write_atomically(folder / SUMS_FILE, "".join(f"{sum_of(file)}  {file.name}\n" for file in files).encode())


def check_weights(folder: Path) -> None:
    """Refuse bundled weights that are truncated or changed. Each file is read once per process.

    A user's own folder needs no checksums, but must not contain pipes or devices.

    Raises:
        ModelError: a file fails the check; the message names it and the remedy.
    """
    check_files(folder)
    sums = folder / SUMS_FILE
    if folder.resolve().parent != bundled_folder().resolve() or not sums.is_file():
        return
    for line in sums.read_text(encoding="utf-8").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ModelError(f"The file of checksums {sums} is damaged: {line[:40]!r} is not a checksum line.", _REMEDY)
        checksum, name = match.groups()
        if problem := checksum_problem(folder / name, checksum):
            raise ModelError(f"{folder / name} {problem}.", _REMEDY)


_REMEDY = (
    "Fetch the repository's assets again (git checkout -- assets/models; with Git LFS, git lfs pull first). If "
    f"you changed the weights yourself, delete {SUMS_FILE} in their folder."
)


def checksum_problem(file: Path, wanted: str) -> str:
    """Return why a file fails a check of its SHA-256 sum, as text that follows the file's name; empty if it passes."""
    if not file.is_file():
        return "is missing"
    if sum_of(file) == wanted:
        return ""
    with file.open("rb") as stream:
        is_pointer = stream.read(len(_POINTER)) == _POINTER
    return (
        "is a Git LFS pointer, not the weights"
        if is_pointer
        else "does not match its checksum: it is truncated or damaged"
    )


def sum_of(file: Path) -> str:
    """Return the SHA-256 sum of a file; the file is read again only when its size or modification time changes."""
    stat = file.stat()
    return _read(str(file), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _read(file: str, n_bytes: int, changed: int) -> str:
    """Return the SHA-256 sum of a file, cached by path, size (`n_bytes`) and modification time (`changed`)."""
    digest = hashlib.sha256()
    with Path(file).open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
