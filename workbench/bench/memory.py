"""How far memory rises during a run: on a GPU what PyTorch allocates, elsewhere what the process holds (Linux)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import torch

_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@contextlib.contextmanager
def growth() -> Iterator[list[int | None]]:
    """Yields a list whose one entry holds, at the end, the peak less the level at the start in bytes, or None.

    Times nothing, so put it around what is timed. Buffers that an earlier run left behind are used again and do not
    count: the first runs show more.
    """
    found: list[int | None] = [None]
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        found[0] = torch.cuda.max_memory_allocated() - before
        return
    try:
        _RESET.write_text("5")  # the kernel's high-water mark starts again
        before = _resident("VmRSS")
    except (OSError, TypeError):
        yield found
        return
    yield found
    with contextlib.suppress(OSError, TypeError):
        found[0] = max(0, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    """Bytes. TypeError: the system does not say."""
    line = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return 1024 * int(line[1])  # pyright: ignore[reportOptionalSubscript]
