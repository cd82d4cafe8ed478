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
"""Of all rows of a forward that is recorded: a longer one keeps a GPU busy for longer than its launches take."""
MOST_RECORDS = 48
"""Kept by a model. The one played longest ago goes first."""
MOST_BYTES = 2**29
"""Of what the records of a model read and give."""
AGAIN = 16
"""Times that a shape whose record has gone is seen before it is recorded anew: with more shapes than records each would
otherwise be recorded whenever it comes, which takes as long as several forwards."""
SAME = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest difference of logits, as a share of the largest, from the forward that a record is of: the kernels are the
same, but for products that a library splits otherwise."""

Work = Callable[[Tensor, Mask, Tensor, Tensor | None], Output]
"""A forward: ids [B, n], mask, positions [B, n], and the states [B, n, D] that it begins from, if any."""


@runtime_checkable
class Recorder(Protocol):
    """Records work."""

    def __call__(self, work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        """Where the results of some work will be, and what does it again."""
        ...

    def forget(self) -> None:
        """Nothing that was recorded will be played again."""
        ...


@dataclass(slots=True)
class Record:
    """One forward that can be played again.

    Attributes:
        fed: what it reads: ids, masks, positions, states.
        index: where in the cache it writes.
        made: what it gives.
        play: does it again.
        place: position at which it was recorded; None: its rows stood at different ones.
        left: how often it will be compared once more, with the forward at other positions.
    """

    fed: list[Tensor]
    index: Int[Tensor, "B n"]
    made: Output
    play: Callable[[], None]
    place: int | None
    left: int

    @property
    def n_bytes(self) -> int:
        """Of what it reads and gives."""
        held = [*self.fed, self.index, self.made.logits, self.made.hidden, *self.made.taps.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


class Replays:
    """What one model has recorded: a shape is recorded the second time that it is seen, and played from then on.

    A record is compared with the forward that it is of, where it was made and at the first other place (of several rows
    the first two times that it is played). Where it gives something else, or cannot be made at all (a forward that
    waits for the GPU in between, as some mixtures of experts do), all are dropped, and nothing is recorded from then
    on. What a hook or an adapter that is put on the model later does is not seen by records made before; a text that is
    opened behind a change of weights or of their places begins without any (`check`).

    Args:
        recorder: records for the device.

    Attributes:
        why_not: why nothing is recorded; empty while it is.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.why_not = ""
        self._recorder = recorder
        self._seen: dict[Hashable, int] = {}
        self._records: dict[Hashable, Record] = {}
        self._stand: object = None
        self._rest = 0  # forwards until it is tried again: there was no room

    def __len__(self) -> int:
        return len(self._records)

    @property
    def n_bytes(self) -> int:
        """Memory of what the records read and give; what they compute with in between is shared."""
        return sum(record.n_bytes for record in list(self._records.values()))  # others ask while it records

    def check(self, stand: object) -> None:
        """Forget all where the model is not what it was.

        Args:
            stand: tells where weights and buffers are, and how the model is set.
        """
        if stand != self._stand:
            self._clear()
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
        """A forward, played if there is a record of its like.

        Args:
            kind: tells it from others of the same shape: which layers, what is asked of them.
            work: the forward.
            cache: whose window says where it writes and how far it reads.
            ids: [B, n].
            mask: who sees whom.
            positions: [B, n].
            states: [B, n, D], what it begins from in place of the tokens.
        """
        window, n = cache.window, ids.shape[1]
        key = (kind, n, window.rows.start, window.rows.stop, window.used)
        record = self._records.pop(key, None)
        if record is None:
            seen = self._seen[key] = self._seen.pop(key, 0) + 1
            if len(self._seen) > MOST_RECORDS * AGAIN:
                del self._seen[next(iter(self._seen))]
            self._rest -= self._rest > 0
            if self.why_not or seen < 2 or self._rest:
                return work(ids, mask, positions, states)
            return self._record(key, work, cache, ids, mask, positions, states)
        self._records[key] = record  # the latest stands last
        start = window.start
        for kept, new in zip(record.fed, _tensors(ids, mask, positions, states), strict=True):
            kept.copy_(new)
        record.index.copy_(_index(window, ids))
        record.play()
        made = record.made
        out = Output(made.logits.clone(), made.hidden.clone(), {at: tap.clone() for at, tap in made.taps.items()})
        if not record.left or (start is not None and start == record.place):
            return out
        truth = work(ids, mask, positions, states)  # which writes once more what the record has written
        record.left -= self._compare(out, truth)
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
        """Do it as it is, and record it."""
        asked = ids, mask, positions, states
        truth, window = work(*asked), cache.window
        if bool(truth.logits.isnan().any()):
            return truth  # nothing can be compared with it
        ids, positions = ids.clone(), positions.clone()
        mask = {name: one.clone() for name, one in mask.items()} if isinstance(mask, dict) else mask.clone()
        states = None if states is None else states.clone()
        index = _index(window, ids).clone()
        is_played = False
        try:
            cache.window = replace(window, start=None, index=index)
            made, play = self._recorder(lambda: work(ids, mask, positions, states))
            is_played = True
            play()
            fed, left = _tensors(ids, mask, positions, states), 2 if window.start is None else 1
            record = Record(fed, index, made, play, window.start, left)
            self._compare(made, truth)
        except (RuntimeError, MemoryError) as error:
            self._clear()
            if is_out_of_memory(error):  # others may leave room again
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
        return work(*asked) if is_played and key not in self._records else truth  # it may have written wrongly

    def _keep(self, key: Hashable, record: Record) -> None:
        self._records[key] = record
        while len(self._records) > MOST_RECORDS or (len(self._records) > 1 and self.n_bytes > MOST_BYTES):
            gone = next(iter(self._records))
            del self._records[gone]
            self._seen[gone] = 1 - AGAIN

    def _compare(self, played: Output, truth: Output) -> bool:
        """Give up where they differ. Gives whether there was something to compare: no number is like no other."""
        error = logits_error(played.logits, truth.logits)
        if not error <= SAME.get(truth.logits.dtype, 0.0) and not bool(truth.logits.isnan().any()):
            self._give_up(f"what is played differs by {error:.1e}")
        return error == error

    def _give_up(self, why: str) -> None:
        log.warning("Forwards are launched kernel by kernel: %s", why)
        self.why_not = why
        self._clear()

    def _clear(self) -> None:
        self._records.clear()
        self._recorder.forget()
        self._seen.clear()


def standing_of(model: PreTrainedModel) -> list[object]:
    """Where a model's weights and buffers are, and how it attends."""
    held = [*model.parameters(), *model.buffers()]
    return [getattr(model.config, "_attn_implementation", ""), *((one.data_ptr(), one.dtype) for one in held)]


def _index(window: Window, ids: Int[Tensor, "B n"]) -> Int[Tensor, "B n"]:
    """Where each token is written."""
    if window.index is not None:
        return window.index
    assert window.start is not None
    return torch.arange(window.start, window.start + ids.shape[1], device=ids.device).expand_as(ids)


def _tensors(ids: Tensor, mask: Mask, positions: Tensor, states: Tensor | None) -> list[Tensor]:
    masks = [mask] if isinstance(mask, Tensor) else list(mask.values())
    return [ids, *masks, positions] + ([] if states is None else [states])
