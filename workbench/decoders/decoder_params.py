"""Parameters of a method that generates text with a decoder of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from workbench.decoders.draft_verify.parts import Part

if TYPE_CHECKING:
    from workbench.core.sampling import SamplingParams
    from workbench.engine.decoder import Decoder, EngineContext
    from workbench.engine.request import Sequence


class DecoderParams(Part):
    """Parameters of a method with its own decoder. Subclasses are frozen dataclasses, like other parts.

    The methods of one class share a decoder, which reads a sequence's parameters from its configured method.
    """

    is_speculative: ClassVar[bool] = False
    """Whether the decoder's rounds draft and verify in some order, so that features that need a draft tree work."""
    is_unbounded: ClassVar[bool] = False
    """Whether prompt and text may be longer than the target's context."""
    keeps_greedy: ClassVar[bool] = True
    """Whether greedy output equals the target's own greedy output."""

    def decoder(self, context: EngineContext) -> Decoder:
        """Create the decoder that runs all sequences whose methods have parameters of this class."""
        raise NotImplementedError

    def unsupported_reason(self, sequence: Sequence, sampling: SamplingParams) -> str:
        """Return why the decoder cannot run a request; "" if it can.

        This default refuses features that need a draft tree, unless `is_speculative`.

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
