"""Record GPU work as CUDA graphs, for `workbench.kernels.forward_replay`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from workbench.kernels.device_clock import CAPTURE_LOCK
from workbench.kernels.no_synchronisation import NoSyncMode

R = TypeVar("R")


class CudaGraphRecorder:
    """Recorder of GPU work as CUDA graphs. All graphs share memory: copy a graph's outputs before the next replay.

    Args:
        device: device of the work. It is not used before the first recording, because ZeroGPU attaches it later.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, work: Callable[[], R]) -> tuple[R, Callable[[], None]]:
        """Record some work as a CUDA graph. Return its results, and a function that replays it into their memory.

        Raises:
            RuntimeError: the work waits for the GPU, which a CUDA graph cannot record.
        """
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream = self._stream or torch.cuda.Stream(self._device)
        graph, current_stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current_stream)
        with CAPTURE_LOCK, torch.cuda.device(self._device):
            try:
                with torch.cuda.stream(self._stream):
                    with NoSyncMode(self._device.type):  # a failed recording leaves torch in a broken state
                        work()  # warm-up: libraries initialise at their first call on a stream, which is not recorded
                    graph.capture_begin(self._pool, capture_error_mode="thread_local")
                    try:
                        output = work()
                    except BaseException:
                        with contextlib.suppress(RuntimeError):
                            graph.capture_end()
                        raise
                    graph.capture_end()
            finally:
                current_stream.wait_stream(self._stream)
        return output, graph.replay

    def reset(self) -> None:
        """Use a new memory pool for CUDA graphs from now on: a pool whose graphs were all freed cannot be reused."""
        self._pool = None
