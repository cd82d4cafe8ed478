"""Forwards of a GPU, recorded once and played again: all that one launches is then launched as one.

A forward is some forty kernels a layer, and for a few tokens the host takes longer to launch one than the GPU to run
it: of 12.6 ms that a round of plain decoding took on an H200 (16 layers of 2,048, bfloat16), kernels ran for 2.2. A
CUDA graph holds them all. It reads and writes where it did when it was recorded, so that what changes from one forward
to the next (tokens, masks, positions, places in the cache) is put there first, and what it gives is copied from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from workbench.core.errors import is_out_of_memory
from workbench.engine.cache import TreeCache
from workbench.engine.leancheck import ROUNDING, logits_error
from workbench.engine.own_forward import Mask
from workbench.engine.segment import Output

log = logging.getLogger(__name__)

MOST_TOKENS = 64
"""Of a forward that is recorded: a longer one keeps a GPU busy for longer than its launches take."""
MOST_RECORDS = 48
"""Kept by a model; each holds its kernels' arguments and what it gives. The one played longest ago goes first."""

Work = Callable[[Tensor, Mask, Tensor, Tensor | None], Output]
"""A forward of one row: ids [1, n], mask, positions, and the states [1, n, D] that it begins from, if any."""
Recorder = Callable[[Callable[[], Output]], tuple[Output, Callable[[], None]]]
"""Records some work. Gives where its results will be, and what does it again."""


class Graphs:
    """Records as CUDA graphs. They share memory: none is played before what the last one gave has been copied.

    Args:
        device: where the work is done. It is not asked for anything until there is some: on ZeroGPU it comes later.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        if self._stream is None:
            self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            work()  # libraries set themselves up at their first call on a stream, which cannot be recorded
            graph.capture_begin(self._pool, capture_error_mode="thread_local")  # other threads may go on
            try:
                made = work()
            finally:
                graph.capture_end()
        here.wait_stream(self._stream)
        return made, graph.replay


@dataclass(frozen=True, slots=True)
class Record:
    """One forward that can be played again.

    Attributes:
        fed: what it reads: ids, masks, positions, states.
        index: where in the cache it writes.
        made: what it gives.
        play: does it again.
    """

    fed: list[Tensor]
    index: Int[Tensor, "1 n"]
    made: Output
    play: Callable[[], None]


class Replays:
    """What one model has recorded: a shape is recorded the second time that it is seen, and played from then on.

    A recording is compared with the forward that it is of. Where it gives something else, or cannot be made at all (a
    forward that waits for the GPU in between, as some mixtures of experts do), nothing is recorded from then on.

    Attributes:
        why_not: why nothing is recorded; empty while it is.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.why_not = ""
        self._recorder = recorder
        self._seen: set[Hashable] = set()
        self._records: dict[Hashable, Record] = {}
        self._stand: object = None

    def __len__(self) -> int:
        return len(self._records)

    def check(self, stand: object) -> None:
        """Forget all where weights or buffers are not where they were.

        Args:
            stand: tells where they are.
        """
        if stand != self._stand:
            self._records.clear()
            self._stand = stand

    def __call__(
        self,
        kind: Hashable,
        work: Work,
        cache: TreeCache,
        ids: Tensor,
        mask: Mask,
        positions: Tensor,
        states: Tensor | None = None,
    ) -> Output:
        """A forward of one row, played if there is a record of its like.

        Args:
            kind: tells it from others of the same shape: which layers, what is asked of them.
            work: the forward.
            cache: whose window says where it writes and how far it reads.
            ids: [1, n].
            mask: who sees whom.
            positions: [1, n].
            states: [1, n, D], what it begins from in place of the tokens.
        """
        window, n = cache.window, ids.shape[1]
        key = (kind, n, window.rows.start, window.used)
        record = self._records.pop(key, None)
        if record is None:
            if self.why_not or key not in self._seen or window.start is None:
                self._seen.add(key)
                return work(ids, mask, positions, states)
            return self._record(key, work, cache, ids, mask, positions, states)
        self._records[key] = record  # the latest stands last
        assert window.start is not None
        for kept, new in zip(record.fed, _tensors(ids, mask, positions, states), strict=True):
            kept.copy_(new)
        torch.arange(window.start, window.start + n, out=record.index[0])
        record.play()
        made = record.made
        return Output(made.logits.clone(), made.hidden.clone(), {at: tap.clone() for at, tap in made.taps.items()})

    def _record(
        self,
        key: Hashable,
        work: Work,
        cache: TreeCache,
        ids: Tensor,
        mask: Mask,
        positions: Tensor,
        states: Tensor | None,
    ) -> Output:
        """Do it as it is, and record it. What a record would write, the forward itself has written already."""
        truth, window = work(ids, mask, positions, states), cache.window
        assert window.start is not None
        ids, positions = ids.clone(), positions.clone()
        mask = {kind: one.clone() for kind, one in mask.items()} if isinstance(mask, dict) else mask.clone()
        states = None if states is None else states.clone()
        index = torch.arange(window.start, window.start + ids.shape[1], device=ids.device).unsqueeze(0)
        try:
            cache.window = replace(window, start=None, index=index)
            made, play = self._recorder(lambda: work(ids, mask, positions, states))
            play()
            error = logits_error(made.logits, truth.logits)
            if not error <= ROUNDING[truth.logits.dtype]:
                self.why_not = f"what is played differs by {error:.1e}"
        except (RuntimeError, MemoryError) as failed:
            self.why_not = "out of memory" if is_out_of_memory(failed) else str(failed).strip().split("\n")[0]
        finally:
            cache.window = window
        if self.why_not:
            log.warning("Forwards are launched kernel by kernel: %s", self.why_not)
            self._records.clear()
            return work(ids, mask, positions, states)
        if len(self._records) >= MOST_RECORDS:
            del self._records[next(iter(self._records))]
        self._records[key] = Record(_tensors(ids, mask, positions, states), index, made, play)
        return truth


def _tensors(ids: Tensor, mask: Mask, positions: Tensor, states: Tensor | None) -> list[Tensor]:
    masks = [mask] if isinstance(mask, Tensor) else list(mask.values())
    return [ids, *masks, positions] + ([] if states is None else [states])
