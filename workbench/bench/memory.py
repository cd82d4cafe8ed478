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
    """Measure the growth of memory in a `with` block: yield a list, to which the end of the block appends the growth.

    The growth is the peak of the used memory minus its initial value, in bytes; None if the system does not report the
    peak. Time the code inside the block, not the block itself: this measurement takes time, too. Buffers of
    earlier runs are reused and do not count, so the first runs show more growth.
    """
    result: list[int | None] = [None]
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield result
        result[0] = torch.cuda.max_memory_allocated() - before
        return
    try:
        _RESET.write_text("5")  # reset the kernel's high-water mark
        before = _resident("VmRSS")
    except (OSError, TypeError):
        yield result
        return
    yield result
    with contextlib.suppress(OSError, TypeError):
        result[0] = max(0, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    """Return the entry `name` of this process's memory status (Linux), such as "VmHWM", in bytes.

    Raises:
        TypeError: the system does not report this entry.
    """
    line = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return 1024 * int(line[1])  # pyright: ignore[reportOptionalSubscript]
