"""Convert models in GGUF files to Transformers' format once, and store the converted copies in a cache folder.

A copy is written into a temporary folder next to the final folder, with the checksums last, and renamed when it is
complete. So a killed process leaves no incomplete copy in the final folder; the next start deletes the temporary folder
and begins again. A lock ensures that one process converts a model while other processes wait.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from workbench.core.errors import CapacityError, ModelError, WorkbenchError, system_reason
from workbench.kernels.disk_cache import cache_folder
from workbench.models.bundle import SOURCE, Progress
from workbench.models.checksums import SUMS_FILE, checksum_problem, sum_of, write_sums
from workbench.trace.files import PART, check_regular

LOG = logging.getLogger(__name__)

FORMAT = 3
"""Version of the conversion of models. Increase it when the conversion changes, so that older copies are replaced."""
MAGIC = b"GGUF"
WAIT_S = 0.2
"""Time in seconds between calls of the progress callback while another process converts the model."""


def source_of(place: Path) -> dict[str, str]:
    """Return the origin of a converted model: "file", "title", "licence" and "family", as far as they are known."""
    try:
        return json.loads((place / SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def copies() -> list[Path]:
    """Return the folders of all converted copies of models."""
    folder = cache_folder()
    try:
        return sorted(sums.parent for sums in folder.glob(f"*/{SUMS_FILE}")) if folder.is_dir() else []
    except OSError:
        return []


def is_gguf(name: str) -> bool:
    """Return whether a name looks like the path of a GGUF file."""
    return name.lower().endswith(".gguf") and "\0" not in name


def copy_folder(stem: str, digest: str) -> Path:
    """Return the folder for the converted copy of a GGUF file with a given SHA-256 sum; it need not exist yet.

    Args:
        stem: start of the folder's name.
        digest: SHA-256 sum of the original file.
    """
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-")[:60]
    return cache_folder() / f"{readable or 'model'}-{digest[:16]}-v{FORMAT}"


def is_complete(place: Path) -> bool:
    """Return whether the conversion of a model was completed. The files are not checked; `is_intact` does that."""
    return is_file(place / SUMS_FILE)


def is_file(path: Path) -> bool:
    """Return whether a file exists and is accessible; False in a folder without permission."""
    try:
        return path.is_file()
    except OSError:
        return False


def copy_of(file: Path) -> Path | None:
    """Return the folder of the converted copy of a GGUF file; None if the file is not converted yet.

    The GGUF file is read once per process to compute its SHA-256 sum.

    Raises:
        ModelError: there is no such file, or it is not a GGUF file.
    """
    check_gguf(file)
    copy = copy_folder(file.stem, sum_of(file))
    return copy if is_complete(copy) else None


def check_gguf(file: Path) -> None:
    """Refuse a file that cannot be GGUF, by its first bytes.

    Raises:
        ModelError: the file is unreadable or not GGUF; the message names it.
    """
    try:
        check_regular(file)
        with file.open("rb") as stream:
            first_bytes = stream.read(len(MAGIC))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {system_reason(error)}.", "Give a GGUF file or a folder.") from None
    if first_bytes != MAGIC:
        raise ModelError(f"{file} is not a GGUF file: its first bytes are not GGUF's.", "Download the file again.")


def convert(file: Path, on_progress: Progress = lambda done, total: None, stem: str | None = None) -> Path:
    """Return the folder with the converted copy of a GGUF file; create the copy if there is none.

    An existing copy is checked against its checksums and replaced if they do not match.

    Args:
        file: GGUF file of the model.
        on_progress: progress callback, called with the completed bytes of the file and its bytes in total.
        stem: start of the copy's name; None: the file's name.

    Raises:
        ModelError: the file is damaged, or its model cannot be a target.
        CapacityError: the disk is full.
        WorkbenchError: the cache folder cannot be written, or the package `gguf` is missing.
    """
    check_gguf(file)
    copy = copy_folder(stem or file.stem, sum_of(file))
    if is_intact(copy):
        return copy
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with _hold_lock(FileLock(copy.with_name(f".{copy.name}.lock")), lambda: on_progress(0, file.stat().st_size)):
            if not is_intact(copy):  # another process may have written it in the meantime
                _make(file, copy, on_progress)
    except OSError as error:
        raise _write_error(error, copy) from error
    return copy


@contextlib.contextmanager
def _hold_lock(lock: FileLock, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a conversion inside the block.

    While another process holds the lock, call `on_wait` every `WAIT_S` seconds; an exception in `on_wait` ends the
    wait.
    """
    while True:
        try:
            lock.acquire(timeout=WAIT_S)
            break
        except Timeout:
            on_wait()
    try:
        yield
    finally:
        lock.release()


def is_intact(place: Path) -> bool:
    """Return whether a converted copy exists and its files match its checksums. Files are read once per process."""
    if not is_complete(place):
        return False
    lines = [line.split("  ", 1) for line in (place / SUMS_FILE).read_text(encoding="utf-8").splitlines()]
    return bool(lines) and all(len(line) == 2 and not checksum_problem(place / line[1], line[0]) for line in lines)


def _make(file: Path, place: Path, on_progress: Progress) -> None:
    from workbench.models.gguf import dequantise  # imports PyTorch, not needed to look up a copy

    fill(place, lambda part: dequantise(file, part, on_progress))
    for version in range(1, FORMAT):  # copies of the same file in older formats
        shutil.rmtree(place.with_name(f"{place.name.rpartition('-v')[0]}-v{version}"), ignore_errors=True)


def fill(place: Path, write: Callable[[Path], object]) -> None:
    """Write the converted copy of a model and its checksums atomically; replace an existing copy.

    Call this function only while holding the conversion's lock. Temporary folders next to the copy are then left over
    from killed processes, and are deleted.

    Args:
        place: folder of the copy.
        write: function that writes the model's files into the folder given as its argument.
    """
    for leftover in place.parent.glob(f".{place.name}.*{PART}"):
        shutil.rmtree(leftover, ignore_errors=True)
    part = place.with_name(f".{place.name}.{os.getpid()}{PART}")
    part.mkdir()
    try:
        write(part)
        write_sums(part, "*")
        for file in part.iterdir():
            _to_disk(file)
        if place.exists():
            shutil.rmtree(place)
        part.rename(place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _to_disk(place.parent)


def _to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk. Windows cannot open folders and syncs only writable files."""
    if os.name == "nt":
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(error: OSError, place: Path) -> WorkbenchError:
    """Return the error for users if the converted copy of a model could not be written and was removed."""
    message = system_reason(error)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if is_full or re.search(r"No space left|File too large|quota", message):  # safetensors drops errno
        free_bytes = shutil.disk_usage(_above(place)).free
        return CapacityError(
            f"The disk of {place.parent} has only {free_bytes / 1e6:.0f} MB free, too few for the converted "
            "copy of the model.",
            "Free disk space, or name another folder in WORKBENCH_CACHE.",
        )
    return WorkbenchError(
        f"The converted copy of the model cannot be written to {place.parent}: {message}.",
        "Name another folder in WORKBENCH_CACHE.",
    )


def _above(path: Path) -> Path:
    return next(folder for folder in path.parents if folder.exists())
