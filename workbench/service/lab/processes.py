"""Identify the process of a training run by its start time and by a file lock that it holds until it ends.

Start times by the wall clock are unreliable: if the clock is adjusted (NTP, a resumed virtual machine), the system
reports other start times for all processes. On Linux a process is identified by its start in ticks since boot, and by
the id of the boot.
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
"""Time in seconds to wait for a file lock: a process that only tests whether the lock is free holds it briefly."""


def identity(pid: int) -> dict[str, Any]:
    """Return the identity of a process: id and start time, and on Linux also the start in ticks and the boot id.

    Raises:
        psutil.Error: there is no such process.
    """
    result: dict[str, Any] = {"pid": pid, "born": psutil.Process(pid).create_time()}
    with contextlib.suppress(OSError, ValueError, IndexError):
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        result["ticks"] = int(after_name.split()[19])  # field 22 of proc(5)
        result["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return result


def find(noted: Mapping[str, Any]) -> psutil.Process | None:
    """Return the process with a given identity (id, start time); None if it has ended, even if its id is reused."""
    try:
        process = psutil.Process(noted["pid"])
        current = identity(noted["pid"])
        if {"ticks", "boot"} <= noted.keys() & current.keys():
            is_same = (noted["ticks"], noted["boot"]) == (current["ticks"], current["boot"])
        else:  # another system, or a run of an earlier version
            is_same = abs(current["born"] - noted["born"]) < 1
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        return None


@contextlib.contextmanager
def lock_for_child(file: Path) -> Iterator[tuple[int, ...]]:
    """Take a file lock that a child process inherits and holds until it ends, even if its parent ends first.

    Yields:
        File descriptors for the argument `pass_fds` of `subprocess.Popen`; an empty tuple on Windows, which has no such
        lock.

    Raises:
        CapacityError: another process holds the lock.
    """
    if sys.platform == "win32":
        yield ()
        return
    import fcntl

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CapacityError(
                        "This training run is still in progress.", "Wait until the training run ends, or stop the run."
                    ) from None
                time.sleep(0.02)
        yield (descriptor,)
    finally:
        os.close(descriptor)  # the child has a copy: the lock is released when both are closed


def is_locked(file: Path) -> bool:
    """Return whether a process holds a lock that `lock_for_child` took."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: several processes may test it at once
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def holder(file: Path) -> psutil.Process | None:
    """Return a process other than this one that has a file open; None if there is no such process."""
    path = str(file.resolve())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and any(file_info.path == path for file_info in process.open_files()):
                return process
    return None
