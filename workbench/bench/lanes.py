"""Lanes of a comparison: a method with its parameters and its draft model, as plain data and as one line of text."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ParameterError
from workbench.methods import method_info

if TYPE_CHECKING:
    from workbench.decoders import ConfiguredMethod

BASELINE = "autoregressive"


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane of a comparison: a method with its parameters and its draft model.

    Attributes:
        method: registry name of the method.
        params: non-default parameters of the method.
        drafter: name of the draft model; None: the draft model that belongs to the target.
    """

    method: str
    params: dict[str, Any] = field(default_factory=dict)
    drafter: str | None = None

    @classmethod
    def parse(cls, text: str) -> Lane:
        """Parse `METHOD`, or `METHOD:NAME=VALUE,…`; `drafter` is the draft model's name.

        Raises:
            WorkbenchError: the text has another format, or the registry has no such method, parameter or value.

        Example:
            >>> Lane.parse("draft-model:depth=3").params
            {'depth': 3}
        """
        method, _, rest = text.strip().partition(":")
        pairs = shlex.shlex(rest, posix=True)
        pairs.whitespace, pairs.whitespace_split, pairs.commenters = ",", True, ""
        values: dict[str, Any] = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals:
                raise ParameterError(
                    f"{pair!r} is not NAME=VALUE.", "Write a lane as in draft-model:depth=3,drafter=x."
                )
            values[name.strip()] = value.strip()
        drafter = values.pop("drafter", None)
        return cls(method.strip(), values, drafter).checked()

    @classmethod
    def of(cls, value: object) -> Lane:
        """Convert a method with settings, as a line of text or plain data, to a `Lane`; return a `Lane` unchanged.

        Raises:
            WorkbenchError: the argument is something else, or invalid.
        """
        if isinstance(value, Lane):
            return value.checked()
        if isinstance(value, str):
            return cls.parse(value)
        if not isinstance(value, dict) or not isinstance(value.get("method"), str):
            raise ParameterError(
                "A lane of the comparison names no method.",
                'Write a lane as in {"method": "draft-model"}, or draft-model:depth=3.',
            )
        params, drafter = value.get("params") or {}, value.get("drafter") or None
        if not isinstance(params, dict) or not (drafter is None or isinstance(drafter, str)):
            raise ParameterError(
                "The parameters of a lane are not an object of names and values.", 'For example: {"depth": 4}.'
            )
        return cls(value["method"], params, drafter).checked()

    def checked(self) -> Lane:
        """Return this method with its values converted to the right types, and without values at their defaults.

        Raises:
            WorkbenchError: the registry has no such method, parameter or value.
        """
        method = method_info.get(self.method)
        values, specs = method.check_params(self.params), method.params
        return Lane(self.method, {n: v for n, v in values.items() if v != specs[n].default}, self.drafter)

    @property
    def configured(self) -> ConfiguredMethod:
        """Return the lane's method with values for all of its parameters; this imports PyTorch."""
        from workbench.methods import registry

        return registry.get(self.method).with_params(**self.params)

    @property
    def is_plain(self) -> bool:
        """Return whether this lane (method with settings) is plain decoding."""
        return self.method == BASELINE

    @property
    def title(self) -> str:
        """Return the lane's title for display: the method's title and non-default settings."""
        parts = [f"{name.replace('_', ' ')} {value}" for name, value in self.params.items()]
        parts += [self.drafter] if self.drafter else []
        title = method_info.get(self.method).title
        return f"{title} ({', '.join(parts)})" if parts else title

    def __str__(self) -> str:
        """Return the method with its settings as a line of text that `parse` reads, such as "draft-model:depth=3"."""
        pairs = self.params | ({"drafter": self.drafter} if self.drafter else {})
        return self.method + (":" if pairs else "") + ",".join(f"{n}={shlex.quote(str(v))}" for n, v in pairs.items())

    def to_wire(self) -> dict[str, Any]:
        """Return the lane (method with settings) as plain JSON."""
        return {"method": self.method, "params": self.params, "drafter": self.drafter}
