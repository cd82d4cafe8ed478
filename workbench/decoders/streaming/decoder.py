"""Plain decoding over a streaming KV cache: attention sinks and a window of the newest tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import MethodUnavailableError
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.one_pass import OnePassDecoder, OnePassState, Step, choose_token
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.prefill import prefill_chunk
from workbench.engine.request import Sequence
from workbench.engine.settings import Settings
from workbench.kernels.segment import Segment
from workbench.kernels.streaming import SinkWindow
from workbench.models.key_rotation import key_rotation


@dataclass(frozen=True)
class Streaming(DecoderParams):
    """Decode with a KV cache that holds the first `sinks` tokens and the newest `window` tokens.

    Source: Xiao et al. 2023, StreamingLLM, arXiv:2309.17453, §3.2.
    """

    keeps_greedy: ClassVar[bool] = False
    is_unbounded: ClassVar[bool] = True

    sinks: int = param(
        4, ge=0, le=64, doc="number of tokens at the start of the text that stay in the KV cache (attention sinks)"
    )
    window: int = param(128, ge=8, le=4096, doc="number of newest tokens that stay in the KV cache")

    def decoder(self, context: EngineContext) -> Decoder:
        """Create the decoder that runs all sequences with a streaming KV cache."""
        return StreamingDecoder(context)


class StreamingDecoder(OnePassDecoder):
    """Decoder that generates one token per round and sequence, with a KV cache of constant size from prefill on."""

    def prefill(self, sequence: Sequence) -> bool:
        """Prefill a chunk of one window, then drop old KV cache entries. Return whether the prompt is finished.

        A token attends at most to the attention sinks and two windows.
        """
        self._set_retention(sequence)
        return prefill_chunk(sequence, self.context, self._window(sequence))

    def open(self, sequence: Sequence) -> None:
        """Create the state of a sequence. If it comes from another decoder, drop its old KV cache entries."""
        self._set_retention(sequence)
        sequence.state = OnePassState()
        self._note_cut(sequence)

    def change(self, sequence: Sequence, settings: Settings) -> None:
        """Apply a new attention window from the next round on. Dropped KV cache entries are not computed again."""
        super().change(sequence, settings)
        self._note_cut(sequence)

    def _note_cut(self, sequence: Sequence) -> None:
        window, wanted = self._window(sequence), self._params(sequence).window
        if window < wanted:
            sequence.add_warning(
                f"The window was cut from {wanted} to {window} tokens, because the attention sinks and two "
                f"windows must fit into the context of {self.models.target.context} tokens."
            )

    def _set_retention(self, sequence: Sequence) -> None:
        """Set the sequence's KV cache slot to retain only the attention sinks and the window of newest tokens."""
        sinks, slot, target = self._params(sequence).sinks, sequence.cache_slot, self.models.target
        slot.retention = SinkWindow(sinks, self._window(sequence), key_rotation(target))
        slot.retention.after_commit(target.cache, slot)

    def _window(self, sequence: Sequence) -> int:
        """Return the attention window in tokens: the chosen one, or the largest with which prefill fits the context."""
        params = self._params(sequence)
        return max(1, min(params.window, (self.models.target.context - params.sinks - 1) // 2))

    @staticmethod
    def _params(sequence: Sequence) -> Streaming:
        params = sequence.configured_method.decoder_params
        assert isinstance(params, Streaming)
        return params

    def segment(self, sequence: Sequence) -> Segment:
        """Return the last token of the text, the only input of the forward pass."""
        self._set_retention(sequence)  # parameters may have changed, or a change to another decoder was refused
        sequence.cache_slot.scratch = 0
        return Segment(sequence.cache_slot, to_device([sequence.committed[-1]], self.models.target.device))

    def advance(self, sequence: Sequence, logits: Float[Tensor, "n V"], hidden: Float[Tensor, "n D"]) -> Step:
        """Choose the next token as in plain decoding, and commit its KV cache entry."""
        slot = sequence.cache_slot
        token, p = choose_token(sequence, logits)
        self.models.target.commit(slot, range(1))
        slot.last_hidden = hidden[0]
        emitted, reason = self.emit(sequence, [token], [p])
        return Step(emitted, {}, reason, {"KV cache entries": float(slot.length)})

    def revoke(self, sequence: Sequence) -> None:
        """Compute the dropped KV cache entries again, because another decoder will continue the text.

        Raises:
            MethodUnavailableError: the text is longer than the context.
        """
        slot, target = sequence.cache_slot, self.models.target
        if not slot.shift:
            return
        if len(sequence.committed) > target.context:
            raise MethodUnavailableError(
                f"The text has {len(sequence.committed)} tokens, more than the context of {target.context}, which "
                "only a streaming KV cache can continue.",
                "Keep the current method, or start a new run.",
            )
        slot.retention = None
        target.rewind(slot, 0)
        slot.shift = 0
        target.prefill(slot, sequence.committed[:-1])

    def close(self, sequence: Sequence) -> None:
        """Retain all KV cache entries of the sequence from now on, as other decoders expect."""
        sequence.cache_slot.retention = None
        super().close(sequence)
