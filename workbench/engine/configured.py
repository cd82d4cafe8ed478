"""What a request and its row know of the method they run.

Parts are told of rows, methods are made of parts, and rows run methods. So that no file has to know what stands above
it, a row sees a method through these protocols; `engine/method.py` has what meets them.
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
    """A method that may be chosen: `Method`."""

    @property
    def name(self) -> str:
        """Its registry name."""
        ...

    @property
    def title(self) -> str:
        """Its name for people."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """What it takes besides the target with default parameters."""
        ...

    @property
    def params(self) -> dict[str, ParamSpec]:
        """Its parameters by name."""
        ...

    @property
    def head(self) -> Head | None:
        """The trained net that its drafter drafts with, where that needs one."""
        ...

    def with_params(self, **values: Any) -> Chosen:
        """It with some parameters set, checked against their ranges."""
        ...


@runtime_checkable
class Chosen(Protocol):
    """A method with all parameters decided: `Configured`.

    Its parts are as `engine/parts.py` and `engine/decoder.py` have them: `Drafter`, `Grower`, `Verifier`,
    `Policy`, `OwnRounds`.
    """

    @property
    def method(self) -> Choice:
        """The method whose parameters they are."""
        ...

    @property
    def name(self) -> str:
        """The method's registry name."""
        ...

    @property
    def values(self) -> Mapping[str, Any]:
        """All parameters."""
        ...

    @property
    def promise(self) -> Enum:
        """What it guarantees about its output, a `Promise`."""
        ...

    @property
    def simulates(self) -> bool:
        """Whether a part of it knows what no real one could."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """What its parts take besides the target."""
        ...

    @property
    def drafts(self) -> bool:
        """Whether its rounds draft and verify."""
        ...

    @property
    def drafter(self) -> Any:
        """The drafter in force."""
        ...

    @property
    def verifier(self) -> Any:
        """The verifier in force."""
        ...

    @property
    def policy(self) -> Any:
        """The policy in force."""
        ...

    @property
    def grower(self) -> Any:
        """The way of growing in force, or None."""
        ...

    @property
    def rounds(self) -> Any:
        """The rounds of its own, or None."""
        ...

    def changed(self, **values: Any) -> Chosen:
        """The same method with other parameters."""
        ...

    def taps(self, models: Models) -> set[int]:
        """Indices of the target's layers whose residual streams its parts read."""
        ...
