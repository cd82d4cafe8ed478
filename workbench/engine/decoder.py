"""What the scheduler knows of whatever writes text: it opens rows, runs rounds, takes in changes, and closes rows.

`engine/round.py` has the one that drafts and verifies. A method that writes in another way names its own
(`Method.rounds`); both run beside each other, and a run may change from one to the other between two rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from workbench.engine.parts import Part

if TYPE_CHECKING:
    from workbench.core.sampling import SamplingParams
    from workbench.engine.detokenise import TokenText
    from workbench.engine.request import Row
    from workbench.engine.settings import Settings
    from workbench.kernels.device_clock import Clock
    from workbench.models.loading import Models

Guard = Callable[["Row", Callable[[], object]], bool]
"""Run something for one row; an error ends that row and no other. Returns whether the row goes on."""


@dataclass(frozen=True, slots=True)
class House:
    """What the scheduler lends its decoders.

    Attributes:
        models: the engine's.
        clock: the engine's.
        token_text: the text of tokens, for the trace.
        record: keep the likeliest tokens and the entropy at every place in the trace.
        guard: see `Guard`.
        end: ends a row: (row, status, reason).
    """

    models: Models
    clock: Clock
    token_text: TokenText
    record: bool
    guard: Guard
    end: Callable[[Row, str, str], None]


@runtime_checkable
class Decoder(Protocol):
    """Writes the text of rows, in rounds. One for each engine and kind; what it knows of a row is kept on the row.

    Between two rounds `row.committed` is final, and the target's cache (`row.place`) holds all of it but the last
    token: whatever else is in it has gone, or a change to another decoder could not be.
    """

    def open(self, row: Row) -> None:
        """Make what the rounds of a row need: its prompt has been read, or it comes from another decoder."""
        ...

    def step(self, rows: Sequence[Row]) -> bool:
        """One round for each row. Returns whether there was one for any of them."""
        ...

    def change(self, row: Row, settings: Settings) -> None:
        """Put settings into force that name this decoder still, whole or not at all.

        Raises:
            Exception: it cannot be. The row is then as it was.
        """
        ...

    def close(self, row: Row) -> None:
        """Give back what it holds for a row, which ends, or goes on with another decoder. Must not fail.

        Tokens that the trace shows and `row.committed` lacks are taken back: their positions go into `row.revoked`,
        which the next round records. Where the row ends there is none: what stood behind its text stands in the trace.
        """
        ...


class OwnRounds(Part):
    """The parameters of a method with rounds of its own. Subclasses are frozen dataclasses, as of other parts.

    The methods of one class share a decoder: it reads the parameters of a row from `row.configured.rounds`.
    """

    drafts: ClassVar[bool] = False
    """Whether its rounds draft and verify in an order of their own: what needs a draft tree then works."""

    def decoder(self, house: House) -> Decoder:
        """What runs the rounds of all rows with parts of this class."""
        raise NotImplementedError

    def refusal(self, row: Row, sampling: SamplingParams) -> str:
        """Why it cannot do what a row asks for; "" where it can. By default it has nothing that takes a draft tree."""
        if self.drafts:
            return ""
        asked = {
            "pictures": row.images is not None,
            "log-probabilities of its tokens": row.request.extras.logprobs is not None,
            "constraints, biases or other logits processors": bool(sampling.processors),
            "repetition penalty": sampling.repetition_penalty != 1.0,
        }
        wanted = [name for name, is_wanted in asked.items() if is_wanted]
        return f"it has its own decoding loop, without {' and no '.join(wanted)}" if wanted else ""
