"""Files that are either there as a whole or not at all, and files that are files."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path

PART = ".part"
"""Ending of a file that is being written; whoever finds an old one may delete it."""
_NAMED = 60
"""Bytes of a file's name that the name of its part repeats: together they must stay below what file systems allow."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a kill or a power cut at any point leaves the old file or the new one, never a part.

    What is no regular file, a terminal or a pipe, has nothing to be kept, and is written to as it is.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    if _is_stream(path):
        with path.open("wb") as stream:
            stream.write(data)
        return
    with replacing(path) as part, part.open("xb") as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """The name of a part to write, for libraries that write files by name; it takes the file's place when all is well.

    The file keeps its permissions, and a link keeps leading to it.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    place = _place(path)
    name = place.name.encode(errors="surrogateescape")[:_NAMED].decode(errors="ignore")
    part = place.with_name(f".{name}.{secrets.token_hex(4)}{PART}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            part.chmod(stat.S_IMODE(place.stat().st_mode))
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name
        finally:
            os.close(folder)


def check_writable(path: Path) -> None:
    """Try whether `write_whole` could write a file, now rather than after the work. What is in it stays.

    Raises:
        OSError: it could not.
    """
    if _is_stream(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    place = _place(path)
    tried = place.with_name(f".{secrets.token_hex(8)}{PART}")
    with tried.open("xb"):
        pass
    tried.unlink()


def read_regular(path: Path, or_pipe: bool = False) -> bytes:
    """The bytes of a regular file.

    A pipe, a device or a socket under the name of a file would keep its reader waiting, for ever even: they are
    refused, without opening a pipe's end that somebody may wait for.

    Args:
        path: of the file.
        or_pipe: a pipe is read too, to its end, for what the shell's user names on purpose: `<(command)`. One that
            nobody writes to is waited for.

    Raises:
        OSError: it cannot be read, or is no regular file; `strerror` says which.
    """
    if or_pipe and stat.S_ISFIFO(path.stat().st_mode):
        return path.read_bytes()
    check_regular(path)
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        _check_kind(os.fstat(file.fileno()).st_mode, path)  # it may be another one by now
        return file.read()


def check_regular(path: Path) -> None:
    """Refuse what is no regular file, for libraries that open files by name.

    Raises:
        OSError: there is none, or it is something else; `strerror` says what.
    """
    _check_kind(path.stat().st_mode, path)


def _check_kind(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EINVAL, f"it is no file but {kind}", str(path))


def _is_stream(path: Path) -> bool:
    """Whether it is there, and neither a regular file nor a folder."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _place(path: Path) -> Path:
    """Where a link leads to, if a file may be put there."""
    place = Path(os.path.realpath(path))
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if place.exists() and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return place
