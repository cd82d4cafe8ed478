"""Field types of requests, which validate values from clients with the workbench's own error messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from workbench.bench import bounds
from workbench.client import wire
from workbench.core.errors import ParameterError, PromptError
from workbench.trace.type_checks import is_list

ACTIONS = ("pause", "resume", "step", "cancel")
"""Actions on a run: methods of `RunHandle` without arguments."""


MEMORY_ACTIONS = ("look", "save", "load", "reset")
"""Actions on the state of a run's drafter: see `RunHandle.memory`."""


def validator(check: Callable[[Any], Any]) -> PlainValidator:
    """Return a validator that calls a check with the value alone."""
    return PlainValidator(lambda value: check(value))


def unchecked(value: Any) -> Any:
    """Return the value unchecked; the called function validates it."""
    return value


def named_validator(check: Callable[..., Any], *more: Any) -> PlainValidator:
    """Return a validator that calls a check with the field's name, the value and further arguments."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        return check(info.field_name, value, *more)

    return PlainValidator(checked)


def model_of(value: Any, info: ValidationInfo) -> str | None:
    """Check the name of a model: a listed one, or a Hub id; None if empty."""
    if value is None or value == "":
        return None
    assert info.context is not None, "validate with `Request.options`, which lists the models"
    return wire.model_name(str(info.field_name), value, *info.context())


def prompts_of(value: Any) -> list[Any]:
    """Check one prompt or a list of prompts, and return a list."""
    prompts: list[Any] = value if is_list(value) else [value]
    if not 0 < len(prompts) <= wire.ITEMS:
        raise PromptError("prompts is not a list of prompts.", f"Give 1 to {wire.ITEMS} prompts.")
    return prompts


def lanes_of(value: Any) -> list[Any]:
    """Check that the value is a list of lanes; the lanes themselves are checked later."""
    if not is_list(value) or not 0 < len(value) <= wire.ITEMS:
        raise ParameterError("lanes is not a list of lanes.", 'For example: ["draft-model", "prompt-lookup:depth=5"].')
    return value


def names_or_none(name: str, value: Any) -> list[str] | None:
    """Check a list of names; None if empty, which means all names."""
    return wire.check_names(name, value) if value else None


def pace_of(value: Any) -> float:
    """Check that a pace is a number; the backend checks its range."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ParameterError("pace is not a number.", "Give tokens per second; 0 means no delay.")
    return value


def action_of(value: Any) -> str:
    """Check that the value is one of `ACTIONS`."""
    if value not in ACTIONS:
        raise ParameterError("There is no such action.", f"Use one of {', '.join(ACTIONS)}.")
    return value


def memory_action_of(value: Any) -> str:
    """Check that the value is one of `MEMORY_ACTIONS`."""
    if value not in MEMORY_ACTIONS:
        raise ParameterError("There is no such action.", f"Use one of {', '.join(MEMORY_ACTIONS)}.")
    return value


TARGET = "name of a target; empty: the default one"
DRAFTER = 'name of a draft model; empty: the target\'s own; "none": no draft model'
IMAGES = "images as data-URLs, for a vision target"
Anything = Annotated[Any, validator(unchecked)]
Model = Annotated[str | None, PlainValidator(model_of)]
Name = Annotated[str, named_validator(wire.check_text)]
Names = Annotated[list[str] | None, named_validator(names_or_none)]
Values = Annotated[dict[str, Any] | None, validator(wire.check_params)]
Stops = Annotated[list[str] | None, validator(wire.check_stops)]
Images = Annotated[list[str] | None, validator(wire.check_images)]
Base64File = Annotated[str | None, named_validator(wire.decode_base64)]
From0 = Annotated[int, named_validator(wire.check_integer)]
MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer that JavaScript, and so a page, represents exactly. Other clients may send larger seeds."""


@dataclass(frozen=True)
class Limits:
    """Limits of a number field in a form: see `Request.numbers`."""

    ge: int
    le: int = wire.INTEGERS - 1


@dataclass(frozen=True)
class Whole(Limits):
    """Validated integer from `ge` to `le`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Validate with `wire.check_integer`, for the workbench's own error messages."""

        def checked(value: Any, info: ValidationInfo) -> int:
            return wire.check_integer(str(info.field_name), value, self.ge, self.le)

        return core_schema.with_info_plain_validator_function(checked)


Seed = Annotated[int, Whole(0)]
Repeats = Annotated[int, Whole(1, bounds.REPEATS)]
Tokens = Annotated[int, Whole(1, bounds.TOKENS)]
