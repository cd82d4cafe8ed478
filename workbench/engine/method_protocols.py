"""Protocol classes of decoding methods, which requests and sequences use as types.

Drafters and verifiers import sequences, methods import drafters and verifiers, and sequences use methods. These
protocols avoid an import cycle. The classes that implement them are in `decoders/method.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from workbench.core.params import ParamSpec

if TYPE_CHECKING:
    from workbench.core.sampling import SamplingParams
    from workbench.decoders.declarations import Head
    from workbench.engine.decoder import Decoder, EngineContext
    from workbench.engine.request import Sequence
    from workbench.kernels.segment import CaptureSelection
    from workbench.models.loading import Models


@runtime_checkable
class MethodProtocol(Protocol):
    """Protocol of a registered decoding method; the class `Method` implements it."""

    @property
    def name(self) -> str:
        """Return the name of the method in the registry."""
        ...

    @property
    def title(self) -> str:
        """Return the display name of the method."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the requirements (besides the target) of the method with default parameters, such as a draft model."""
        ...

    @property
    def params(self) -> Mapping[str, ParamSpec]:
        """Return the parameters of the method by name."""
        ...

    @property
    def head(self) -> Head | None:
        """Return the kind of trained head that the method's drafter uses, or None."""
        ...

    def with_params(self, **values: Any) -> ConfiguredMethodProtocol:
        """Return the method with values for its parameters, which are checked against their ranges."""
        ...


@runtime_checkable
class ConfiguredMethodProtocol(Protocol):
    """Protocol of a decoding method with values for all parameters; the class `ConfiguredMethod` implements it.

    The types of drafter, tree builder, verifier and policy are in `decoders/draft_verify/parts.py`; the type of decoder
    parameters is in `decoders/decoder_params.py`.
    """

    @property
    def method(self) -> MethodProtocol:
        """Return the registered method to which these parameter values belong."""
        ...

    @property
    def name(self) -> str:
        """Return the name of the method in the registry."""
        ...

    @property
    def values(self) -> Mapping[str, Any]:
        """Return the values of all parameters of the method, by name."""
        ...

    @property
    def promise(self) -> Enum:
        """Return the method's guarantee about its output, a `Promise` (such as lossless)."""
        ...

    @property
    def simulates(self) -> bool:
        """Return whether the method uses information that is unavailable in practice (an oracle)."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the requirements of the method besides the target, such as a draft model."""
        ...

    @property
    def is_speculative(self) -> bool:
        """Return whether each round of the method drafts and verifies, one after the other or in parallel."""
        ...

    @property
    def is_unbounded(self) -> bool:
        """Return whether prompt and generated text together may be longer than the target's context."""
        ...

    @property
    def decoder_kind(self) -> type:
        """Return the kind of decoder that the method needs; an engine has one decoder of each kind."""
        ...

    def decoder(self, context: EngineContext) -> Decoder:
        """Return a new decoder for this method, of kind `decoder_kind`."""
        ...

    @property
    def keeps_greedy(self) -> bool:
        """Return whether the method's greedy output equals the target's own greedy output."""
        ...

    def make_ready(self, models: Models) -> None:
        """Do the method's slow preparation for given models, once, before a run is queued or changed.

        Any thread may call this.
        """
        ...

    def notice(self) -> str:
        """Return a notice about the method that the user needs before a run starts; "" if there is none."""
        ...

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states of the target the method needs from prefill."""
        ...

    def missing_requirements(self, models: Models) -> str:
        """Return the method's requirements that the given models do not meet, as text; "" if they meet all.

        For a missing head, the text has the command that trains it.
        """
        ...

    def unsupported_reason(self, sequence: Sequence, models: Models, sampling: SamplingParams) -> str:
        """Return why the method cannot decode a sequence with the given models and sampling; "" if it can."""
        ...

    @property
    def drafter(self) -> Any:
        """Return the drafter that the method uses."""
        ...

    @property
    def verifier(self) -> Any:
        """Return the verifier that the method uses."""
        ...

    @property
    def policy(self) -> Any:
        """Return the draft policy that the method uses."""
        ...

    @property
    def tree_builder(self) -> Any:
        """Return the tree builder that the method uses, or None."""
        ...

    @property
    def decoder_params(self) -> Any:
        """Return the parameters of a method with another decoder than `DraftVerify`; None for other methods."""
        ...

    def with_changes(self, **values: Any) -> ConfiguredMethodProtocol:
        """Return the same method with some parameter values changed."""
        ...

    def captured_layers(self, models: Models) -> set[int]:
        """Return the indices of the target layers whose hidden states the drafter or another component reads."""
        ...
