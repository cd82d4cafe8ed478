"""The process that trains a run: told apart from others by its start, and by a lock that it holds while it lives.

The wall clock decides nothing: a step of it (NTP, a resumed virtual machine) changes the start time that the system
reports for every process. On Linux a process is known by its start in ticks since boot and by the boot's id.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from workbench.core.errors import CapacityError

_PATIENCE_S = 2.0
"""Seconds in which a lock that others only look at is free again."""


def identity(pid: int) -> dict[str, Any]:
    """Return what a process is known by: its number and start time, and on Linux its start in ticks and the boot.

    Raises:
        psutil.Error: there is no such process.
    """
    found: dict[str, Any] = {"pid": pid, "born": psutil.Process(pid).create_time()}
    with contextlib.suppress(OSError, ValueError, IndexError):
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        found["ticks"] = int(after_name.split()[19])  # field 22 of proc(5)
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return found


def find(noted: Mapping[str, Any]) -> psutil.Process | None:
    """Return the process that was noted; None if it has ended, whatever has its number by now."""
    try:
        found = psutil.Process(noted["pid"])
        now = identity(noted["pid"])
        if {"ticks", "boot"} <= noted.keys() & now.keys():
            is_same = (noted["ticks"], noted["boot"]) == (now["ticks"], now["boot"])
        else:  # another system, or a run of an earlier version
            is_same = abs(now["born"] - noted["born"]) < 1
        return found if is_same and found.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        return None


@contextlib.contextmanager
def lock_for_child(file: Path) -> Iterator[tuple[int, ...]]:
    """Take a lock for a child process, which keeps it until it ends, however it and its parent end.

    Yields:
        The descriptors to hand over (`pass_fds`); none on Windows, which has no such lock.

    Raises:
        CapacityError: a process holds it.
    """
    if sys.platform == "win32":
        yield ()
        return
    import fcntl

    opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise CapacityError("This run is being trained.", "Wait for its end, or stop it.") from None
                time.sleep(0.02)
        yield (opened,)
    finally:
        os.close(opened)  # the child has it too: the lock goes with the last of both


def is_locked(file: Path) -> bool:
    """Whether a process holds a lock that `lock_for_child` took."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look at the same time
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(opened)


def holder(file: Path) -> psutil.Process | None:
    """Return a process that has a file open, other than this one; None if none is found."""
    path = str(file.resolve())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and any(opened.path == path for opened in process.open_files()):
                return process
    return None
