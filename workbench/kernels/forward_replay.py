"""Record a GPU forward pass once as a CUDA graph, and replay it with a single launch.

A forward pass has some forty kernels per layer. For a few tokens the host takes longer to launch a kernel than the GPU
to run it: of the 12.6 ms that a round of plain decoding took on an H200 (16 layers of width 2,048, bfloat16), kernels
ran for 2.2 ms. A CUDA graph launches all kernels of a forward pass at once. It always reads and writes the
memory of its recording. So the inputs that change between forward passes (tokens, masks, positions, cache positions)
are copied to that memory first, and the outputs are copied from it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import is_out_of_memory
from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.model_forward import Mask
from workbench.kernels.segment import Output
from workbench.kernels.self_test import logits_error

log = logging.getLogger(__name__)

MOST_TOKENS = 64
"""Maximum number of tokens, over all sequences, in a forward pass that is recorded as a CUDA graph. Longer ones gain
little from a replay."""
MOST_RECORDS = 48
"""Maximum number of recorded forward passes (CUDA graphs) per model. The least recently replayed is dropped first."""
MOST_BYTES = 2**29
"""Maximum memory in bytes for the inputs and outputs of a model's recorded forward passes (CUDA graphs)."""
AGAIN = 16
"""Number of forward passes of one shape that run unrecorded after the record of this shape was dropped.
If a run uses more shapes than records are kept, recording a shape at every use would take as long as several forward
passes."""
SAME = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Maximum difference of logits between a replayed and an ordinary forward pass by dtype, as a share of the largest
logit. Both run the same kernels, except for products that a library splits differently."""

Work = Callable[[Tensor, Mask, Tensor, Tensor | None], Output]
"""Type of a function that runs a forward pass. Its arguments are token ids [B, n], mask, positions [B, n], and starting
states [B, n, D] in place of token embeddings, or None."""


@runtime_checkable
class Recorder(Protocol):
    """Function that records work on a device, such as a CUDA graph, so that it can be replayed."""

    def __call__(self, work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        """Record GPU work. Return its output tensors, and a function that runs the work again and overwrites them."""
        ...

    def reset(self) -> None:
        """Release the memory that recordings share; earlier recordings must not be replayed after this call."""
        ...


_paused = threading.local()


@contextmanager
def recording_paused() -> Iterator[None]:
    """Do not record or replay forward passes in this context and thread: they are part of a larger recording."""
    _paused.is_set = True
    try:
        yield
    finally:
        _paused.is_set = False


@dataclass(slots=True)
class Record:
    """One recorded forward pass that can be replayed.

    Attributes:
        inputs: input tensors: token ids, masks, positions, states.
        index: cache positions that the forward pass writes.
        output: output tensors.
        replay: function that replays the forward pass.
        start: first cache position that was written at the recording; None: it differed between sequences.
        checks_left: number of replays at other positions that must still be compared with an ordinary forward pass.
    """

    inputs: list[Tensor]
    index: Int[Tensor, "B n"]
    output: Output
    replay: Callable[[], None]
    start: int | None
    checks_left: int

    @property
    def n_bytes(self) -> int:
        """Return the memory in bytes of the inputs and outputs of a recorded forward pass."""
        tensors = [*self.inputs, self.index, self.output.logits, self.output.hidden, *self.output.layer_states.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class ReplayCache:
    """Cache of a model's recorded forward passes (CUDA graphs). Of each shape, the second is recorded for replays.

    A replay is compared with an ordinary forward pass right after the recording, and at the first other position (with
    several sequences, at the first two replays). If the results differ, all records are dropped, and nothing is
    recorded from then on. The same happens if a forward pass cannot be recorded, because it waits for the GPU, as some
    mixtures of experts do.

    Hooks or adapters that are added to the model later do not affect existing records. All records are dropped when a
    sequence is opened after a change of weights or of their addresses (`check`).

    Args:
        recorder: recorder for the device.

    Attributes:
        why_not: reason why nothing is recorded any more; empty while recording works.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.why_not = ""
        self._recorder = recorder
        self._seen: dict[Hashable, int] = {}
        self._records: dict[Hashable, Record] = {}
        self._stand: object = None
        self._rest = 0  # forwards until recording is tried again after an out-of-memory error

    def __len__(self) -> int:
        return len(self._records)

    @property
    def n_bytes(self) -> int:
        """Return the memory in bytes of the inputs and outputs of all recorded forward passes.

        The memory for intermediate results, which records share, is not included.
        """
        return sum(record.n_bytes for record in list(self._records.values()))  # other threads read while it records

    def check(self, fingerprint: object) -> None:
        """Drop all recorded forward passes if the model has changed since they were recorded.

        Args:
            fingerprint: addresses of weights and buffers, and settings of the model.
        """
        if fingerprint != self._stand:
            self._clear()
            self._stand = fingerprint

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
        """Run a forward pass: replay it if one of its shape was recorded, else compute it and perhaps record it.

        Args:
            kind: key that separates different forward passes of the same shape, by layers and requested outputs.
            work: function that runs the forward pass.
            cache: KV cache; `cache.window` determines which positions are written and read.
            ids: token ids, [B, n].
            mask: attention mask.
            positions: positions in the sequence, [B, n].
            states: [B, n, D], starting states instead of token embeddings.
        """
        if getattr(_paused, "is_set", False):
            return work(ids, mask, positions, states)
        window, n = cache.window, ids.shape[1]
        key = (kind, n, window.rows.start, window.rows.stop, window.used)
        record = self._records.pop(key, None)
        if record is None:
            n_uses = self._seen[key] = self._seen.pop(key, 0) + 1
            if len(self._seen) > MOST_RECORDS * AGAIN:
                del self._seen[next(iter(self._seen))]
            self._rest -= self._rest > 0
            if self.why_not or n_uses < 2 or self._rest:
                return work(ids, mask, positions, states)
            return self._record(key, work, cache, ids, mask, positions, states)
        self._records[key] = record  # the most recent one is last
        start = window.start
        for buffer, new in zip(record.inputs, _tensors(ids, mask, positions, states), strict=True):
            buffer.copy_(new)
        record.index.copy_(_index(window, ids))
        record.replay()
        output = record.output
        out = Output(
            output.logits.clone(),
            output.hidden.clone(),
            {layer: tap.clone() for layer, tap in output.layer_states.items()},
        )
        if not record.checks_left or (start is not None and start == record.start):
            return out
        truth = work(ids, mask, positions, states)  # overwrites the cache entries that the record has written
        record.checks_left -= self._compare(out, truth)
        return truth

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
        """Run a forward pass, record it under `key`, and return its output."""
        inputs = ids, mask, positions, states
        truth, window = work(*inputs), cache.window
        if bool(truth.logits.isnan().any()):
            return truth  # NaN cannot be compared
        ids, positions = ids.clone(), positions.clone()
        mask = {name: part.clone() for name, part in mask.items()} if isinstance(mask, dict) else mask.clone()
        states = None if states is None else states.clone()
        index = _index(window, ids).clone()
        is_played = False
        try:
            cache.window = replace(window, start=None, index=index)
            output, play = self._recorder(lambda: work(ids, mask, positions, states))
            is_played = True
            play()
            input_tensors, n_checks = _tensors(ids, mask, positions, states), 2 if window.start is None else 1
            record = Record(input_tensors, index, output, play, window.start, n_checks)
            self._compare(output, truth)
        except (RuntimeError, MemoryError) as error:
            self._clear()
            if is_out_of_memory(error):  # other processes may free memory later
                self._rest = AGAIN
            else:
                self._give_up(str(error).strip().split("\n")[0] or type(error).__name__)
        except BaseException:
            self._clear()
            raise
        else:
            if not self.why_not:
                self._keep(key, record)
        finally:
            cache.window = window
        return work(*inputs) if is_played and key not in self._records else truth  # the replay may have been wrong

    def _keep(self, key: Hashable, record: Record) -> None:
        self._records[key] = record
        while len(self._records) > MOST_RECORDS or (len(self._records) > 1 and self.n_bytes > MOST_BYTES):
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._seen[oldest] = 1 - AGAIN

    def _compare(self, played: Output, truth: Output) -> bool:
        """Compare the outputs of a replayed and an ordinary forward pass; stop recording for good if they differ.

        Returns:
            Whether the outputs could be compared, that is, neither contains NaN.
        """
        error = logits_error(played.logits, truth.logits)
        if not error <= SAME.get(truth.logits.dtype, 0.0) and not bool(truth.logits.isnan().any()):
            self._give_up(f"the replay's logits differ by {error:.1e}")
        return error == error

    def _give_up(self, why: str) -> None:
        log.warning("Forward passes are launched kernel by kernel, without CUDA graphs: %s", why)
        self.why_not = why
        self._clear()

    def _clear(self) -> None:
        self._records.clear()
        self._recorder.reset()
        self._seen.clear()


def model_fingerprint(model: PreTrainedModel) -> list[object]:
    """Return the addresses of a model's weights and buffers, and its attention implementation, to detect changes."""
    tensors = [*model.parameters(), *model.buffers()]
    return [
        getattr(model.config, "_attn_implementation", ""),
        *((tensor.data_ptr(), tensor.dtype) for tensor in tensors),
    ]


def _index(window: Window, ids: Int[Tensor, "B n"]) -> Int[Tensor, "B n"]:
    """Return the position of the KV cache to which each token of a forward pass is written."""
    if window.index is not None:
        return window.index
    assert window.start is not None
    return torch.arange(window.start, window.start + ids.shape[1], device=ids.device).expand_as(ids)


def _tensors(ids: Tensor, mask: Mask, positions: Tensor, states: Tensor | None) -> list[Tensor]:
    masks = [mask] if isinstance(mask, Tensor) else list(mask.values())
    return [ids, *masks, positions] + ([] if states is None else [states])
