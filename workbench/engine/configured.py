"""Protocols through which a request and its sequence see the method that they run.

Parts depend on sequences, methods on parts, and sequences run methods. These protocols avoid the import cycle;
`engine/method.py` has the classes that implement them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from workbench.core.params import ParamSpec

if TYPE_CHECKING:
    from workbench.engine.declarations import Head
    from workbench.models.loading import Models


@runtime_checkable
class Choice(Protocol):
    """A method that can be chosen; implemented by `Method`."""

    @property
    def name(self) -> str:
        """Registry name."""
        ...

    @property
    def title(self) -> str:
        """Display name."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Requirements besides the target, with default parameters."""
        ...

    @property
    def params(self) -> Mapping[str, ParamSpec]:
        """Parameters by name."""
        ...

    @property
    def head(self) -> Head | None:
        """Trained head that its drafter uses, or None."""
        ...

    def with_params(self, **values: Any) -> Chosen:
        """Return the method with some parameters set, checked against their ranges."""
        ...


@runtime_checkable
class Chosen(Protocol):
    """A method with all parameters set; implemented by `Configured`.

    `engine/parts.py` and `engine/decoder.py` define the types of its parts: `Drafter`, `Grower` (tree builder),
    `Verifier`, `Policy`, `OwnRounds`.
    """

    @property
    def method(self) -> Choice:
        """Method that the parameters belong to."""
        ...

    @property
    def name(self) -> str:
        """Registry name of the method."""
        ...

    @property
    def values(self) -> Mapping[str, Any]:
        """Values of all parameters."""
        ...

    @property
    def promise(self) -> Enum:
        """Guarantee about the output, a `Promise`."""
        ...

    @property
    def simulates(self) -> bool:
        """Whether a part uses information that no real decoder has."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Requirements of its parts besides the target."""
        ...

    @property
    def drafts(self) -> bool:
        """Whether it drafts and verifies in rounds."""
        ...

    @property
    def drafter(self) -> Any:
        """Drafter in force."""
        ...

    @property
    def verifier(self) -> Any:
        """Verifier in force."""
        ...

    @property
    def policy(self) -> Any:
        """Policy in force."""
        ...

    @property
    def grower(self) -> Any:
        """Tree builder in force, or None."""
        ...

    @property
    def rounds(self) -> Any:
        """Rounds of its own, or None."""
        ...

    def changed(self, **values: Any) -> Chosen:
        """Return the same method with other parameters."""
        ...

    def taps(self, models: Models) -> set[int]:
        """Return the indices of the target layers whose hidden states its parts read."""
        ...
