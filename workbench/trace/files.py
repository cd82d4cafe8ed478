"""Write files atomically, and read only regular files."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path

PART = ".part"
"""Suffix of temporary files while they are being written. An old file with this suffix may be deleted."""
_NAME_BYTES = 60
"""Number of bytes of a file's name that the name of its temporary file repeats; file systems limit names in length."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: a kill or a power cut leaves the old file or the new file, never an incomplete one.

    A terminal, a pipe or another special file is written to directly.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    if _is_stream(path):
        with path.open("wb") as stream:
            stream.write(data)
        return
    with replace_atomically(path) as part, part.open("xb") as file:
        file.write(data)


@contextlib.contextmanager
def replace_atomically(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary path; the file written there replaces `path` when the block ends without an error.

    This is for libraries that write files by name. The permissions of the old file are preserved, and a symbolic link
    continues to point to the file.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    target = _resolve_writable(path)
    name = target.name.encode(errors="surrogateescape")[:_NAME_BYTES].decode(errors="ignore")
    part = target.with_name(f".{name}.{secrets.token_hex(4)}{PART}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # makes the new name durable
        finally:
            os.close(folder)


def check_writable(path: Path) -> None:
    """Check, before a long computation, that `write_atomically` can write its result file; do not change the file.

    Raises:
        OSError: the file cannot be written.
    """
    if _is_stream(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    target = _resolve_writable(path)
    trial = target.with_name(f".{secrets.token_hex(8)}{PART}")
    with trial.open("xb"):
        pass
    trial.unlink()


def read_regular(path: Path, or_pipe: bool = False) -> bytes:
    """Return the bytes of a regular file.

    Pipes, devices and sockets are refused, because reading them may block forever. They are refused without being
    opened, since the writer of a pipe may be waiting for a reader.

    Args:
        path: path of the file.
        or_pipe: whether to accept a pipe, such as the shell's `<(command)`, and read it to its end. This blocks until a
            writer closes it.

    Raises:
        OSError: the file cannot be read or is not a regular file; `strerror` gives the reason.
    """
    if or_pipe and stat.S_ISFIFO(path.stat().st_mode):
        return path.read_bytes()
    check_regular(path)
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        _check_kind(os.fstat(file.fileno()).st_mode, path)  # it may have been replaced since the first check
        return file.read()


def check_regular(path: Path) -> None:
    """Raise an error if a path is not a regular file. Call this before a library opens a file by name.

    Raises:
        OSError: the file does not exist or is not a regular file; `strerror` gives the reason.
    """
    _check_kind(path.stat().st_mode, path)


def _check_kind(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EINVAL, f"it is not a file but {kind}", str(path))


def _is_stream(path: Path) -> bool:
    """Return whether a path is a special file, such as a terminal or a pipe: neither a regular file nor a folder."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _resolve_writable(path: Path) -> Path:
    """Return the path with symbolic links resolved, after checking that a file may be written there."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return target
