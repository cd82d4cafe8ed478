"""Interface between the scheduler and decoders: open a sequence, run rounds, apply changes, close it.

The decoder in `engine/round.py` drafts and verifies. A method that generates text in another way names its own decoder
(`Method.rounds`). Both run in one engine, and a run may change from one to the other between two rounds.
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
"""Run something for one sequence; an error ends only that sequence. Returns whether the sequence continues."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Engine state that the scheduler hands to its decoders.

    Attributes:
        models: models of the engine.
        clock: clock of the engine.
        token_text: text of tokens, for the trace.
        record: whether the trace stores top tokens and entropy at every position.
        guard: see `Guard`.
        end: function that ends a sequence: (sequence, status, reason).
    """

    models: Models
    clock: Clock
    token_text: TokenText
    record: bool
    guard: Guard
    end: Callable[[Row, str, str], None]


@runtime_checkable
class Decoder(Protocol):
    """Generates the text of sequences in rounds. There is one per engine and kind; its state is on the sequence.

    Between two rounds `row.committed` is final, and the target's KV cache (`row.place`) holds all of it but the last
    token. It must hold nothing else, as otherwise the sequence could not change to another decoder.
    """

    def open(self, row: Row) -> None:
        """Create the state for a sequence's rounds, after its prefill or when it comes from another decoder."""
        ...

    def step(self, rows: Sequence[Row]) -> bool:
        """Run one round for each sequence. Return whether any of them had one."""
        ...

    def change(self, row: Row, settings: Settings) -> None:
        """Apply settings that still use this decoder, completely or not at all.

        Raises:
            Exception: the settings cannot be applied. The sequence is then unchanged.
        """
        ...

    def revoke(self, row: Row) -> None:
        """Take back all tokens that may still change, before another decoder continues the text.

        Their positions go into `row.report.revoked`, which the next round records. The change may still fail, and the
        sequence then continues with this decoder.
        """
        ...

    def close(self, row: Row) -> None:
        """Release the resources of a sequence that ends or changes to another decoder. Must not fail.

        Tokens that the trace shows but `row.committed` lacks are taken back: their positions go into
        `row.report.revoked`. If the sequence ends, no round follows that would record them, and the trace keeps
        showing them.
        """
        ...


class OwnRounds(Part):
    """Parameters of a method with its own decoder. Subclasses are frozen dataclasses, like other parts.

    The methods of one class share a decoder: it reads the parameters of a sequence from `row.configured.rounds`.
    """

    drafts: ClassVar[bool] = False
    """Whether its rounds draft and verify in their own order, so that features that need a draft tree work."""

    def decoder(self, context: EngineContext) -> Decoder:
        """Return the decoder for all sequences with parts of this class."""
        raise NotImplementedError

    def refusal(self, row: Row, sampling: SamplingParams) -> str:
        """Return why it does not support a request; "" if it does. The default refuses features that need a tree."""
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
