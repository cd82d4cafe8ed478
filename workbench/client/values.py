"""What may stand in a field of a request: types that check what comes from outside, in the workbench's own words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from workbench.bench import bounds
from workbench.client import wire
from workbench.core.errors import ParameterError, PromptError
from workbench.trace.kinds import is_list

ACTIONS = ("pause", "resume", "step", "cancel")
"""What can be done with a run besides changing it: methods of `RunHandle`."""


DEEDS = ("look", "save", "load", "reset")
"""What can be done with the state of a run's drafter: see `RunHandle.memory`."""


def by(check: Callable[[Any], Any]) -> PlainValidator:
    """A check that is given the value alone."""
    return PlainValidator(lambda value: check(value))


def as_it_is(value: Any) -> Any:
    """No check: whoever takes the value looks at it."""
    return value


def named(check: Callable[..., Any], *more: Any) -> PlainValidator:
    """A check that is told the field's name."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        return check(info.field_name, value, *more)

    return PlainValidator(checked)


def model_of(value: Any, info: ValidationInfo) -> str | None:
    """The name of a model that is listed, or a Hub id."""
    if value is None or value == "":
        return None
    assert info.context is not None, "models are asked for by `Request.options`"
    return wire.model_name(str(info.field_name), value, *info.context())


def prompts_of(value: Any) -> list[Any]:
    """One prompt, or a list of them."""
    given: list[Any] = value if is_list(value) else [value]
    if not 0 < len(given) <= wire.ITEMS:
        raise PromptError("prompts is not a list of prompts.", f"Give 1 to {wire.ITEMS}.")
    return given


def lanes_of(value: Any) -> list[Any]:
    """A list of lanes, each as it was sent."""
    if not is_list(value) or not 0 < len(value) <= wire.ITEMS:
        raise ParameterError("lanes is not a list of lanes.", 'For example: ["draft-model", "prompt-lookup:depth=5"].')
    return value


def names_or_none(name: str, value: Any) -> list[str] | None:
    """A list of names; nothing: all of them."""
    return wire.names(name, value) if value else None


def pace_of(value: Any) -> float:
    """Whether a number is a pace the backend says; what is none is refused here."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ParameterError("pace is not a number.", "Give tokens a second; 0 holds nothing back.")
    return value


def action_of(value: Any) -> str:
    """One of `ACTIONS`."""
    if value not in ACTIONS:
        raise ParameterError("There is no such action.", f"Use one of {', '.join(ACTIONS)}.")
    return value


def deed_of(value: Any) -> str:
    """One of `DEEDS`."""
    if value not in DEEDS:
        raise ParameterError("There is no such action.", f"Use one of {', '.join(DEEDS)}.")
    return value


TARGET = "name of a target; empty: the default one"
DRAFTER = 'name of a draft model; empty: the one that belongs to the target; "none": none'
IMAGES = "pictures as data-URLs, for a target that reads them"
Anything = Annotated[Any, by(as_it_is)]
Model = Annotated[str | None, PlainValidator(model_of)]
Name = Annotated[str, named(wire.text)]
Names = Annotated[list[str] | None, named(names_or_none)]
Values = Annotated[dict[str, Any] | None, by(wire.params)]
Stops = Annotated[list[str] | None, by(wire.stops)]
Pictures = Annotated[list[str] | None, by(wire.images)]
Packed = Annotated[str | None, named(wire.packed)]
From0 = Annotated[int, named(wire.whole)]
PAGES = 2**53 - 1
"""The largest whole number that a page has: JavaScript's. A seed may be larger where no page is asked."""


@dataclass(frozen=True)
class Limits:
    """What a form's field for a number takes: see `Request.numbers`."""

    ge: int
    le: int = wire.INTEGERS - 1


@dataclass(frozen=True)
class Whole(Limits):
    """A whole number from `ge` to `le`, checked."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Checked as everything from outside, in the workbench's own words."""

        def checked(value: Any, info: ValidationInfo) -> int:
            return wire.whole(str(info.field_name), value, self.ge, self.le)

        return core_schema.with_info_plain_validator_function(checked)


Seed = Annotated[int, Whole(0)]
Repeats = Annotated[int, Whole(1, bounds.REPEATS)]
Tokens = Annotated[int, Whole(1, bounds.TOKENS)]
