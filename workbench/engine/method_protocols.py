"""Protocols of methods for requests and sequences.

Parts import sequences, methods import parts, and sequences run methods. These protocols avoid the import cycle;
`decoders/method.py` has the classes that implement them.
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
    """A method that can be chosen; implemented by `Method`."""

    @property
    def name(self) -> str:
        """Return the registry name."""
        ...

    @property
    def title(self) -> str:
        """Return the display name."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the requirements of the method with default parameters, besides the target."""
        ...

    @property
    def params(self) -> Mapping[str, ParamSpec]:
        """Return the parameters by name."""
        ...

    @property
    def head(self) -> Head | None:
        """Return the trained head that the drafter uses, or None."""
        ...

    def with_params(self, **values: Any) -> ConfiguredMethodProtocol:
        """Return the method with some parameters set, checked against their ranges."""
        ...


@runtime_checkable
class ConfiguredMethodProtocol(Protocol):
    """A method with all parameters set; implemented by `ConfiguredMethod`.

    The types of the parts are in `decoders/draft_verify/parts.py` (`Drafter`, `TreeBuilder`, `Verifier`, `Policy`) and
    `decoders/decoder_params.py` (`DecoderParams`).
    """

    @property
    def method(self) -> MethodProtocol:
        """Return the method that the parameters belong to."""
        ...

    @property
    def name(self) -> str:
        """Return the method's registry name."""
        ...

    @property
    def values(self) -> Mapping[str, Any]:
        """Return the values of all parameters."""
        ...

    @property
    def promise(self) -> Enum:
        """Return the guarantee about the output, a `Promise`."""
        ...

    @property
    def simulates(self) -> bool:
        """Return whether a part of the method uses information that is unavailable in practice (an oracle)."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the requirements of the method's parts, besides the target."""
        ...

    @property
    def is_speculative(self) -> bool:
        """Return whether the method's rounds draft and verify."""
        ...

    @property
    def is_unbounded(self) -> bool:
        """Return whether prompt and text may be longer than the target's context."""
        ...

    @property
    def decoder_kind(self) -> type:
        """Return the kind of decoder that the method needs; an engine has one decoder of each kind."""
        ...

    def decoder(self, context: EngineContext) -> Decoder:
        """Return a new decoder of kind `decoder_kind`."""
        ...

    @property
    def keeps_greedy(self) -> bool:
        """Return whether the method's greedy output equals the target's own greedy output."""
        ...

    def make_ready(self, models: Models) -> None:
        """Do slow one-time preparation for these models, before a run is queued or changed, in any thread."""
        ...

    def notice(self) -> str:
        """Return information that the user needs before a run starts; "" if none."""
        ...

    def captures(self, models: Models) -> CaptureSelection:
        """Return which of the target's hidden states the method needs from prefill."""
        ...

    def missing_requirements(self, models: Models) -> str:
        """Return the requirements that these models lack, with the command that trains a missing head; "" if none."""
        ...

    def unsupported_reason(self, sequence: Sequence, models: Models, sampling: SamplingParams) -> str:
        """Return why the method cannot run for a sequence with these models and sampling; "" if it can."""
        ...

    @property
    def drafter(self) -> Any:
        """Return the drafter in use."""
        ...

    @property
    def verifier(self) -> Any:
        """Return the verifier in use."""
        ...

    @property
    def policy(self) -> Any:
        """Return the policy in use."""
        ...

    @property
    def tree_builder(self) -> Any:
        """Return the tree builder in use, or None."""
        ...

    @property
    def decoder_params(self) -> Any:
        """Return the parameters of the method's own decoder (`DecoderParams`), or None."""
        ...

    def with_changes(self, **values: Any) -> ConfiguredMethodProtocol:
        """Return the same method with other parameters."""
        ...

    def captured_layers(self, models: Models) -> set[int]:
        """Return the indices of the target layers whose hidden states the parts read."""
        ...
