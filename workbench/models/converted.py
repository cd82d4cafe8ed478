"""Copies of models that lie in another format: made once, kept in a cache folder, there as a whole or not at all.

A copy is made in a folder beside its place and renamed when it is complete, its sums written last, so that a kill at
any point leaves nothing that counts as done; the next start clears it away and begins again. A lock lets one process
make it while others wait.
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

from workbench.core.errors import CapacityError, ModelError, WorkbenchError
from workbench.kernels.disk_cache import cache_folder
from workbench.models.bundle import SOURCE, Told
from workbench.models.checksums import NAME, sum_of, what_is_wrong, write_sums
from workbench.trace.files import PART, check_regular

LOG = logging.getLogger(__name__)

FORMAT = 3
"""Grows when copies are made differently: older ones are then made again, and go."""
MAGIC = b"GGUF"
WAIT_S = 0.2
"""Between two words of how far a copy is that another process makes."""


def source_of(place: Path) -> dict[str, str]:
    """Of what a copy was made: {"file", "title", "licence", "family"}, as far as its file said so."""
    try:
        return json.loads((place / SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def copies() -> list[Path]:
    """All that are there."""
    folder = cache_folder()
    try:
        return sorted(sums.parent for sums in folder.glob(f"*/{NAME}")) if folder.is_dir() else []
    except OSError:
        return []


def is_gguf(name: str) -> bool:
    """Whether a name is that of a GGUF file on this machine, or means to be."""
    return name.lower().endswith(".gguf") and "\0" not in name


def place_of(stem: str, digest: str) -> Path:
    """Where the copy of a file with this SHA-256 sum is, or would be."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-")[:60]
    return cache_folder() / f"{readable or 'model'}-{digest[:16]}-v{FORMAT}"


def is_there(place: Path) -> bool:
    """Whether a copy was completed; `is_whole` reads it."""
    return is_file(place / NAME)


def is_file(path: Path) -> bool:
    """Whether a file is there to be read; where looking is refused, as in somebody else's home, it is not."""
    try:
        return path.is_file()
    except OSError:
        return False


def copy_of(file: Path) -> Path | None:
    """The copy of a GGUF file where there is one; only asked, nothing is made. The file is read once in a process.

    Raises:
        ModelError: there is no such file.
    """
    check_gguf(file)
    place = place_of(file.stem, sum_of(file))
    return place if is_there(place) else None


def check_gguf(file: Path) -> None:
    """Refuse what cannot be a GGUF file, from its first bytes.

    Raises:
        ModelError: naming it.
    """
    try:
        check_regular(file)
        with file.open("rb") as opened:
            begins = opened.read(len(MAGIC))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.", "Give a GGUF file or a folder.") from None
    if begins != MAGIC:
        raise ModelError(f"{file} is not a GGUF file: its first bytes differ.", "Fetch it again.")


def convert(file: Path, told: Told = lambda done, total: None, stem: str | None = None) -> Path:
    """The folder with a GGUF file's model, made now where it is not there yet.

    A copy that is there is compared with its sums, and made anew where they do not hold.

    Args:
        file: of the model.
        told: bytes of the file that are done, and their number in all.
        stem: how the copy's name begins; None: as the file's.

    Raises:
        ModelError: the file is broken, or no model that can be a target.
        CapacityError: the disk is full.
        WorkbenchError: the cache folder cannot be written, or the package `gguf` is missing.
    """
    check_gguf(file)
    place = place_of(stem or file.stem, sum_of(file))
    if is_whole(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _held(FileLock(place.with_name(f".{place.name}.lock")), lambda: told(0, file.stat().st_size)):
            if not is_whole(place):  # another process may have made it while this one waited
                _make(file, place, told)
    except OSError as error:
        raise _unwritten(error, place) from error
    return place


@contextlib.contextmanager
def _held(lock: FileLock, told: Callable[[], None]) -> Iterator[None]:
    """Hold a lock, and be told now and then while another process has it: what `told` raises ends the wait."""
    while True:
        try:
            lock.acquire(timeout=WAIT_S)
            break
        except Timeout:
            told()
    try:
        yield
    finally:
        lock.release()


def is_whole(place: Path) -> bool:
    """Whether a copy is there, with every file that its sums name, as it was. Read once in a process."""
    if not is_there(place):
        return False
    lines = [line.split("  ", 1) for line in (place / NAME).read_text(encoding="utf-8").splitlines()]
    return bool(lines) and all(len(line) == 2 and not what_is_wrong(place / line[1], line[0]) for line in lines)


def _make(file: Path, place: Path, told: Told) -> None:
    from workbench.models.gguf import dequantise  # brings PyTorch, which whoever only asks for a copy needs not

    fill(place, lambda part: dequantise(file, part, told))
    for number in range(1, FORMAT):  # of the same file, as it was made before
        shutil.rmtree(place.with_name(f"{place.name.rpartition('-v')[0]}-v{number}"), ignore_errors=True)


def fill(place: Path, write: Callable[[Path], object]) -> None:
    """Make a copy whole or not at all, with its sums, in place of what is there.

    Only called by the holder of the lock: parts that lie about belong to nobody.

    Args:
        place: the copy's folder.
        write: puts the files into the folder that it is given.
    """
    for left in place.parent.glob(f".{place.name}.*{PART}"):
        shutil.rmtree(left, ignore_errors=True)
    part = place.with_name(f".{place.name}.{os.getpid()}{PART}")
    part.mkdir()
    try:
        write(part)
        write_sums(part, "*")
        for written in part.iterdir():
            _to_disk(written)
        if place.exists():
            shutil.rmtree(place)
        part.rename(place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _to_disk(place.parent)


def _to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk. Windows opens no folder, and syncs no reader."""
    if os.name == "nt":
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _unwritten(error: OSError, place: Path) -> WorkbenchError:
    """What is said of a copy that could not be written; nothing of it is left."""
    words = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or re.search(r"No space left|File too large|quota", words):  # safetensors keeps the words alone
        left = shutil.disk_usage(_above(place)).free
        return CapacityError(
            f"{place.parent} is full: {left / 1e6:.0f} MB are free, too few for the converted copy of the model.",
            "Make room, or name another folder in WORKBENCH_CACHE.",
        )
    return WorkbenchError(
        f"The copy of the model cannot be written to {place.parent}: {words}.",
        "Name another folder in WORKBENCH_CACHE.",
    )


def _above(path: Path) -> Path:
    return next(folder for folder in path.parents if folder.exists())
