"""Parameters of a method that generates text with a special decoder, not with draft-and-verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from workbench.decoders.draft_verify.parts import Part

if TYPE_CHECKING:
    from workbench.core.sampling import SamplingParams
    from workbench.engine.decoder import Decoder, EngineContext
    from workbench.engine.request import Sequence


class DecoderParams(Part):
    """Base class for the parameters of a method with a special decoder. Subclasses are frozen dataclasses.

    All methods with parameters of one class use the same decoder, which reads a sequence's parameters from its
    configured method.
    """

    is_speculative: ClassVar[bool] = False
    """Whether each round of the decoder drafts and verifies, one after the other or in parallel.

    Only such decoders support all requests; see `unsupported_reason` for the others.
    """
    is_unbounded: ClassVar[bool] = False
    """Whether prompt and generated text together may be longer than the target's context."""
    keeps_greedy: ClassVar[bool] = True
    """Whether greedy output with the decoder equals the greedy output of the target alone."""

    def decoder(self, context: EngineContext) -> Decoder:
        """Create the decoder for all sequences whose methods have parameters of this class."""
        raise NotImplementedError

    def unsupported_reason(self, sequence: Sequence, sampling: SamplingParams) -> str:
        """Return why the decoder cannot run a request; "" if it can.

        By default, a decoder whose `is_speculative` is False refuses images, log-probabilities, logits processors and
        repetition penalties. Other decoders refuse nothing.

        Args:
            sequence: sequence with the request and its images.
            sampling: sampling parameters of the request.
        """
        if self.is_speculative:
            return ""
        features = {
            "images": sequence.image_inputs is not None,
            "log-probabilities of generated tokens": sequence.request.options.logprobs is not None,
            "constraints, biases or other logits processors": bool(sampling.processors),
            "repetition penalty": sampling.repetition_penalty != 1.0,
        }
        requested = [name for name, is_wanted in features.items() if is_wanted]
        return f"its own decoding loop does not support {' or '.join(requested)}" if requested else ""
