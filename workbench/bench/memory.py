"""Peak memory of a run: on a GPU PyTorch's allocations, elsewhere the process's resident memory (Linux)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import torch

_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@contextlib.contextmanager
def growth() -> Iterator[list[int | None]]:
    """Yield a list whose one entry is, at the end, the peak minus the level at the start in bytes, or None.

    It takes no time measurements; put it around the timed code. Buffers that an earlier run left are reused and do not
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
        _RESET.write_text("5")  # reset the kernel's high-water mark
        before = _resident("VmRSS")
    except (OSError, TypeError):
        yield found
        return
    yield found
    with contextlib.suppress(OSError, TypeError):
        found[0] = max(0, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    """Return bytes. TypeError: the system does not report them."""
    line = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return 1024 * int(line[1])  # pyright: ignore[reportOptionalSubscript]
