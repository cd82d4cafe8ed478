"""Declare parameters of methods as dataclass fields with a range, a default and a help sentence.

The app's sliders, the command-line options, the rows of the method catalogue and the test cases are generated from the
declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from workbench.core.errors import ParameterError, UnknownNameError

_KEY = "workbench.param"


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """Declaration of one parameter of a method: type, range, default and help.

    Attributes:
        name: name of the dataclass field, also used in the app, on the command line and in traces.
        kind: "int", "float", "bool" or "choice".
        default: value if none is given.
        ge: smallest allowed value, or None.
        le: largest allowed value, or None.
        choices: allowed values of a choice.
        doc: help in one sentence, with the unit.
        when: condition under which the parameter has an effect, such as "policy = confidence or planned" or
            "temperature > 0"; "" if it always has an effect. Forms evaluate the condition; the parameter may be set
            even if the condition does not hold.
    """

    name: str
    kind: str
    default: Any
    ge: float | None = None
    le: float | None = None
    choices: tuple[str, ...] = ()
    doc: str = ""
    when: str = ""

    def has_effect(self, values: Mapping[str, Any]) -> bool:
        """Return whether the parameter has an effect, given the values of the other parameters (condition `when`).

        Example:
            >>> ParamSpec("top_k", "int", 0, when="temperature > 0").has_effect({"temperature": 0.0})
            False
        """
        name, sign, operand = (*self.when.split(" ", 2), "", "")[:3]
        if name not in values:
            return True
        return values[name] > float(operand) if sign == ">" else str(values[name]) in operand.split(" or ")

    def parse(self, value: Any) -> Any:
        """Check `value` (a Python value or its text) and return it in the parameter's type.

        Raises:
            ParameterError: `value` has the wrong type, is not a choice, or is outside [ge, le].
        """
        try:
            parsed = self._cast(value)
        except (TypeError, ValueError, OverflowError):
            raise ParameterError(f"{self.name}={value!r} is not {self._article()}.", self._allowed()) from None
        if self.kind == "choice" and parsed not in self.choices:
            raise ParameterError(f"{self.name}={value!r} is not an allowed choice.", self._allowed())
        too_low = self.ge is not None and parsed < self.ge
        too_high = self.le is not None and parsed > self.le
        if self.kind in ("int", "float") and (parsed != parsed or too_low or too_high):
            raise ParameterError(f"{self.name}={value!r} is outside its range.", self._allowed())
        return parsed

    def _cast(self, value: Any) -> Any:
        if self.kind == "bool":
            if isinstance(value, bool):
                return value
            words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False}
            return words[str(value).lower()] if str(value).lower() in words else _fail()
        if self.kind == "int":
            number = float(value)
            return int(number) if number == int(number) and not isinstance(value, bool) else _fail()
        if self.kind == "float":
            return float(value) if not isinstance(value, bool) else _fail()
        return str(value)

    def _article(self) -> str:
        return {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(self.kind, "a choice")

    def _allowed(self) -> str:
        if self.kind == "choice":
            return f"Choose one of: {', '.join(self.choices)}."
        if self.kind == "bool":
            return "Use true or false."
        return f"Use {self._article()} from {self.ge} to {self.le} (default {self.default})."

    def to_wire(self) -> dict[str, Any]:
        """Return the declaration of a parameter as JSON data, for the app's forms and the method catalogue."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"choices": list(self.choices)}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ParamSpec:
        """Create the declaration of a parameter from the output of `to_wire`.

        Unknown keys are ignored. A missing key, or the value None, gives a field its default value.
        """
        values: dict[str, Any] = {f.name: wire[f.name] for f in dataclasses.fields(cls) if wire.get(f.name) is not None}
        values["choices"] = tuple(values.get("choices", ()))
        return cls(**values)


def _fail() -> Any:
    raise ValueError


def param(
    default: Any,
    *,
    ge: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] = (),
    doc: str,
    when: str = "",
) -> Any:
    """Declare a parameter as a field of a dataclass.

    Args:
        default: default value.
        ge: smallest allowed value; None: no limit.
        le: largest allowed value; None: no limit.
        choices: allowed values of a parameter of kind "choice"; if empty, the type of `default` determines the kind.
        doc: help in one sentence, with the unit.
        when: condition under which the parameter has an effect (`ParamSpec.when`).
    """
    kind = "choice" if choices else {bool: "bool", int: "int", float: "float"}[type(default)]
    spec = ParamSpec("", kind, default, ge, le, choices, doc, when)
    return dataclasses.field(default=default, metadata={_KEY: spec})


def params_of(part: Any) -> dict[str, ParamSpec]:
    """Return the parameters that a dataclass instance declares, by name. The instance's values are their defaults."""
    specs: dict[str, ParamSpec] = {}
    for field in dataclasses.fields(part):
        spec = field.metadata.get(_KEY)
        if spec is not None:
            specs[field.name] = dataclasses.replace(spec, name=field.name, default=getattr(part, field.name))
    return specs


def split_values(
    kind: str, own: Mapping[str, ParamSpec], shared: Mapping[str, ParamSpec], values: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split parameter values into those for `own` and those for `shared` parameters, converted to their types.

    Args:
        kind: noun for the error message about an unknown name, such as "parameter of medusa".
        own: parameters by name.
        shared: parameters by name; a name in both dicts belongs to `shared`.
        values: values by name, as text or in their types.

    Raises:
        UnknownNameError: a name is in neither dict.
        ParameterError: `values` is not a dict, or a value has the wrong type or is out of range.
    """
    by_name = cast("Mapping[Any, Any]", values)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in by_name):
        raise ParameterError(
            "The parameters are not a dict of parameter names and values.", 'Give a dict such as {"depth": 4}.'
        )
    for name in by_name:
        if name not in own and name not in shared:
            raise UnknownNameError.of(kind, name, [*own, *shared])
    own_values = {name: own[name].parse(value) for name, value in by_name.items() if name not in shared}
    return own_values, {name: shared[name].parse(value) for name, value in by_name.items() if name in shared}
