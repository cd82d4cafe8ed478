"""A sequence whose length and last tokens only the device knows, for the phases of a round that run there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.random_stream import Purpose
from workbench.core.transfer import to_device
from workbench.engine.request import Sequence
from workbench.kernels.device_random import as_signed, device_uniforms
from workbench.kernels.segment import DeviceLength, Slot

if TYPE_CHECKING:
    from workbench.decoders.draft_verify.parts import Plan
    from workbench.kernels.device_walk import DevicePath

LAST = 2
"""Number of last committed tokens on the device. A draft model lacks the last token, and the one before it if the
target accepted a whole draft; it always reads both, so that its forward passes have one shape."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Facts about a sequence that change in every round, on the device. Rounds overwrite the tensors in place.

    Attributes:
        length: int64 [1], number of the target's KV cache entries: of all committed tokens but the last.
        draft_length: int64 [1], `length` − 1, the number of entries that a draft model certainly has.
        last_tokens: int64 [2], the last two committed tokens.
        seed: int64 [1], seed of the random numbers, with the bits of the unsigned number.
        attempt: int64 [1], see `RandomStream.attempt`.
    """

    length: Int64[Tensor, " one"]
    draft_length: Int64[Tensor, " one"]
    last_tokens: Int64[Tensor, " two"]
    seed: Int64[Tensor, " one"]
    attempt: Int64[Tensor, " one"]

    @staticmethod
    def of(sequence: Sequence) -> DeviceState:
        """Copy the state of a sequence of at least two committed tokens to the target's device."""
        device, stream, length = sequence.models.target.device, sequence.random_stream, len(sequence.committed)
        seed = as_signed(stream.seed)
        numbers = to_device([length - 1, length - 2, *sequence.committed[-LAST:], seed, stream.attempt], device)
        return DeviceState(numbers[0:1], numbers[1:2], numbers[2:4], numbers[4:5], numbers[5:6])

    def advance(self, tokens: Int64[Tensor, " N"], path: DevicePath, bonus: Int64[Tensor, " N_plus_1"]) -> None:
        """Commit the tokens of an accepted path and the token after it.

        Args:
            tokens: tokens of the draft.
            path: accepted path.
            bonus: token to emit at each position if the path ends there.
        """
        emitted = bonus.index_select(0, path.last + 1)
        before = self.last_tokens[1:]
        if len(tokens):
            before = torch.where(path.n > 0, tokens.index_select(0, path.last.clamp_min(0)), before)
        self.last_tokens.copy_(torch.cat([before, emitted]))
        self.length.add_(path.n + 1)
        self.draft_length.add_(path.n + 1)


class DeviceSequence(Sequence):
    """View of a sequence for drafting, verification and acceptance in rounds that the host has not read yet.

    It has the sequence's settings, and the tokens and random numbers of its device state. The tokens that the host
    knows are too few, so reading them is an error.

    Args:
        owner: the sequence.
        state: its facts on the device.
        plan: draft budget of every round.
    """

    is_on_device: ClassVar[bool] = True

    def __init__(self, owner: Sequence, state: DeviceState, plan: Plan) -> None:
        self._owner, self.on_device = owner, state
        self.state = replace(owner.state, plan=plan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)

    @property
    def owner(self) -> Sequence:
        """Return the sequence of which this is a view."""
        return self._owner

    @property
    def committed(self) -> list[int]:  # type: ignore[override]
        """Raise an error, because the host does not know the tokens of rounds that it has not read."""
        raise WorkbenchError("A part of the method read the text in the middle of a round on the device.")

    def uniforms(self, purpose: Purpose, n: int, device: torch.device, level: int = 0) -> Float64[Tensor, " n"]:
        """Return the numbers of `Sequence.uniforms`, drawn on the target's device."""
        state = self.on_device
        position = state.length + 1  # number of committed tokens
        return device_uniforms(state.seed, state.attempt, position, purpose, n, level).to(device)

    def uncached_tokens(self, slot: Slot, device: torch.device) -> Int64[Tensor, " n"]:
        """Return the last token for the target's slot, and the last two for a draft model's slot."""
        tokens = self.on_device.last_tokens
        return (tokens[1:] if slot is self.owner.slot else tokens).to(device)

    def bound_lengths(self, bound: int) -> None:
        """Let forward passes read their lengths on the device; that of the target does not exceed `bound`."""
        self.owner.cache_slot.on_device = DeviceLength(self.on_device.length, bound)
        self.owner.drafter.begin_on_device(self, bound)
