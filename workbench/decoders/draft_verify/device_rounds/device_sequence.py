"""A sequence whose length and last tokens only the device knows, for the phases of a round that run there."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.random_stream import Purpose
from workbench.core.transfer import to_device
from workbench.engine.request import Sequence
from workbench.kernels.device_random import as_signed, device_uniforms
from workbench.kernels.segment import DeviceLength, Slot
from workbench.models.runner import SCRATCH

if TYPE_CHECKING:
    from workbench.core.tree import DraftTree
    from workbench.decoders.draft_verify.acceptance import WalkTensors
    from workbench.decoders.draft_verify.parts import Plan
    from workbench.kernels.device_walk import DevicePath
    from workbench.models.runner import Runner

BUCKET = 256
"""Bounds of lengths are rounded up to a multiple of this number, so that a recorded round can be replayed for many."""
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
        last_hidden: [D], the LM head's input from which the last committed token was drawn.
        seed: int64 [1], seed of the random numbers, with the bits of the unsigned number.
        attempt: int64 [1], see `RandomStream.attempt`.
    """

    length: Int64[Tensor, " one"]
    draft_length: Int64[Tensor, " one"]
    last_tokens: Int64[Tensor, " two"]
    last_hidden: Float[Tensor, " D"]
    seed: Int64[Tensor, " one"]
    attempt: Int64[Tensor, " one"]

    @staticmethod
    def allocate(target: Runner) -> DeviceState:
        """Allocate the state of one sequence on the target's device."""
        numbers = torch.zeros(6, dtype=torch.int64, device=target.device)
        hidden = torch.zeros(target.hidden_size, dtype=target.dtype, device=target.device)
        return DeviceState(numbers[0:1], numbers[1:2], numbers[2:4], hidden, numbers[4:5], numbers[5:6])

    def load(self, sequence: Sequence) -> None:
        """Copy the facts about a sequence of at least two committed tokens to the device."""
        stream, length = sequence.random_stream, len(sequence.committed)
        facts = [length - 1, length - 2, *sequence.committed[-LAST:], as_signed(stream.seed), stream.attempt]
        numbers = to_device(facts, self.length.device)
        tensors = self.length, self.draft_length, self.last_tokens, self.seed, self.attempt
        for tensor, new in zip(tensors, numbers.split([1, 1, LAST, 1, 1]), strict=True):
            tensor.copy_(new)
        if (hidden := sequence.cache_slot.last_hidden) is not None:
            self.last_hidden.copy_(hidden)

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the state."""
        return [getattr(self, field.name) for field in fields(self)]

    def advance(
        self,
        tokens: Int64[Tensor, " N"],
        path: DevicePath,
        bonus: Int64[Tensor, " N_plus_1"],
        hidden: Float[Tensor, "N_plus_1 D"],
    ) -> None:
        """Commit the tokens of an accepted path and the token after it.

        Args:
            tokens: tokens of the draft.
            path: accepted path.
            bonus: token to emit at each position if the path ends there.
            hidden: the LM head's input at each position.
        """
        emitted = bonus.index_select(0, path.last + 1)
        self.last_hidden.copy_(hidden.index_select(0, path.last + 1)[0])
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

    Recorded rounds read the same memory in every replay. So a view and its memory serve one sequence after the other
    (`attach`).

    Attributes:
        on_device: facts about the sequence on the device.
        state: the sequence's own state, with the draft budget of every round.
        key: shapes and addresses on which the next round depends, set by `limit_length`.
    """

    is_on_device: ClassVar[bool] = True

    def __init__(self, target: Runner) -> None:
        self.on_device = DeviceState.allocate(target)
        self.rows, self.key = (-1, -1), None
        self._bound = 0
        self._owner: Sequence | None = None

    def attach(self, owner: Sequence, plan: Plan) -> None:
        """Serve another sequence, whose rounds all have the draft budget `plan`."""
        self._owner, self.state = owner, replace(owner.state, plan=plan)
        self.on_device.load(owner)

    def detach(self) -> None:
        """End the service for a sequence, which uses the lengths that the host knows from now on."""
        owner = self.owner
        if owner.slot is not None:
            owner.slot.on_device, owner.slot.last_hidden = None, self.on_device.last_hidden.clone()
        owner.drafter.end_on_device(owner)

    def forget(self) -> None:
        """Release the last sequence; called when no phase of a round uses the view any more."""
        self._owner, self.state = None, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.owner, name)

    @property
    def owner(self) -> Sequence:
        """Return the sequence of which this is a view."""
        assert self._owner is not None
        return self._owner

    @property
    def committed(self) -> list[int]:  # type: ignore[override]
        """Raise an error, because the host does not know the tokens of rounds that it has not read."""
        raise WorkbenchError(
            "A component of the method read the text in a round on the device, before the host had the round's tokens."
        )

    def uniforms(self, purpose: Purpose, n: int, device: torch.device | None, level: int = 0) -> Float64[Tensor, " n"]:
        """Return the numbers of `Sequence.uniforms`, drawn on the target's device."""
        state = self.on_device
        position = state.length + 1  # number of committed tokens
        return device_uniforms(state.seed, state.attempt, position, purpose, n, level).to(device or "cpu")

    def uncached_tokens(self, slot: Slot, device: torch.device) -> Int64[Tensor, " n"]:
        """Return the last token for the target's slot, and the last two for a draft model's slot."""
        tokens = self.on_device.last_tokens
        return (tokens[1:] if slot is self.owner.slot else tokens).to(device)

    def limit_length(self, bound: int) -> None:
        """Set `bound` as the maximum length of the target's KV cache before the next round, and set this round's key.

        Called before every launch, because a replay runs no Python code: forward passes for other sequences must read
        the length on the device, too, and the KV caches must know how far they may be written.
        """
        models, slot = self.owner.models, self.owner.cache_slot
        self._bound = min(-(-bound // BUCKET) * BUCKET, models.target.context)
        drafter_slot = self.reset_lengths()
        models.target.cache.mark_written(slice(slot.index, slot.index + 1), self._bound + SCRATCH)
        addresses = models.target.cache.addresses()
        if drafter_slot is not None and (draft_model := models.draft_model) is not None:
            row = drafter_slot.index
            draft_model.cache.mark_written(slice(row, row + 1), self._bound + SCRATCH)
            addresses += draft_model.cache.addresses()
        self.rows = slot.index, -1 if drafter_slot is None else drafter_slot.index
        self.key = self.state.plan, self.rows, self._bound, addresses

    def reset_lengths(self) -> Slot | None:
        """Let forward passes read the lengths before the round on the device. Return the drafter's slot, if any."""
        slot, state = self.owner.cache_slot, self.on_device
        slot.on_device, slot.last_hidden, slot.scratch = DeviceLength(state.length, self._bound), state.last_hidden, 0
        return self.owner.drafter.begin_on_device(self, self._bound)

    def commit(self, tree: DraftTree, walk: WalkTensors, path: DevicePath, hidden: Float[Tensor, "N_plus_1 D"]) -> None:
        """Commit an accepted path on the device: tokens, hidden state, and KV cache entries of target and drafter.

        Args:
            tree: the draft.
            walk: results of the acceptance rule.
            path: accepted path.
            hidden: the LM head's input at each position of the tree.
        """
        state, target, slot = self.on_device, self.owner.models.target, self.owner.cache_slot
        self.owner.drafter.commit_on_device(self, path)
        if tree.fanout > 1:
            place = torch.arange(1, len(path.nodes) + 1, device=path.nodes.device)
            target.cache.move_on_device(slot.index, state.length + 1 + path.nodes, state.length + place)
        bonus = walk.bonus
        assert isinstance(bonus, Tensor)
        state.advance(tree.tokens, path, bonus, hidden)
