"""Field types of requests, which validate values from clients with the workbench's own error messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, PlainValidator, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from workbench.bench import bounds
from workbench.client import wire
from workbench.core.errors import ParameterError, PromptError
from workbench.engine.pacing import FASTEST
from workbench.trace.type_checks import is_list, is_object

if TYPE_CHECKING:
    from workbench.client.protocol import Client

ACTIONS = ("pause", "resume", "step", "cancel")
"""Actions on a run: the names of methods of `RunHandle` without arguments."""


MEMORY_ACTIONS = ("look", "save", "load", "reset")
"""Actions on the state of a run's drafter, which `RunHandle.memory` describes."""


def validator(check: Callable[[Any], Any]) -> PlainValidator:
    """Return a pydantic validator that calls a check function with the value."""
    return PlainValidator(lambda value: check(value))


def named_validator(check: Callable[..., Any], *more: Any) -> PlainValidator:
    """Return a pydantic validator that calls a check function with the field's name, the value and other arguments."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        return check(info.field_name, value, *more)

    return PlainValidator(checked)


ListedModels = Callable[[], tuple[list[str], bool]]
"""Function that returns the names of the models that requests may use, and whether other names can only be Hub ids."""


def listed_models(client: Client) -> ListedModels:
    """Return a function that lists a client's models at its first call, and returns the same list later."""

    @functools.cache
    def models() -> tuple[list[str], bool]:
        entries = (*client.targets(), *client.drafters())
        return ["auto", "none", *(entry["name"] for entry in entries)], client.hub_only

    return models


def model_of(value: Any, info: ValidationInfo) -> str | None:
    """Check that a value is the name of a listed model or a Hub id, and return it; None if it is empty."""
    return _model(str(info.field_name), value, info)


def _model(name: str, value: Any, info: ValidationInfo) -> str | None:
    if value is None or value == "":
        return None
    assert info.context is not None, "validate with `Request.options`, which lists the models"
    return wire.model_name(name, value, *info.context())


def lane_of(value: Any, info: ValidationInfo) -> dict[str, Any]:
    """Check a lane (a method with its settings) and return it as plain data.

    Its draft model must be one that the server lists, or a Hub id.

    Raises:
        WorkbenchError: the lane is invalid.
    """
    from workbench.bench.lanes import Lane  # imports PyTorch

    lane = Lane.of(wire.check_text("A lane", value, wire.MESSAGE_CHARS) if isinstance(value, str) else value)
    wire.check_params(lane.params)
    return lane.to_wire() | {"drafter": _model("drafter", lane.drafter, info)}


def lanes_of(value: Any, info: ValidationInfo) -> list[dict[str, Any]]:
    """Check the list of methods with settings (lanes) in a request for a comparison."""
    if not is_list(value) or not 0 < len(value) <= wire.ITEMS:
        raise ParameterError(
            "lanes is not a list of lanes (methods with their settings).",
            'Give a list such as ["draft-model", "prompt-lookup:depth=5"].',
        )
    return [lane_of(lane, info) for lane in value]


def _lane_to_json(lane: Any) -> dict[str, Any]:
    from workbench.bench.lanes import Lane  # imports PyTorch

    return Lane.of(lane).to_wire()


def prompts_of(value: Any) -> list[Any]:
    """Check one prompt or a list of prompts, and convert them to `workbench.bench.prompts.BenchPrompt`s."""
    prompts: list[Any] = value if is_list(value) else ["" if value is None else value]
    if not 0 < len(prompts) <= wire.ITEMS:
        raise PromptError("The value of prompts is not a list of prompts.", f"Give 1 to {wire.ITEMS} prompts.")
    return [_named_prompt(prompt, i) for i, prompt in enumerate(prompts)]


def messages_of(value: Any) -> list[Any]:
    """Check a list of user messages, and convert them to `workbench.bench.prompts.BenchPrompt`s."""
    prompts = value if is_list(value) else ["" if value is None else value]
    return prompts_of([prompt if is_object(prompt) else {"text": prompt, "chat": True} for prompt in prompts])


def _named_prompt(value: Any, index: int) -> Any:
    """Convert a text, or an object with text, name, group and chat, to a `workbench.bench.prompts.BenchPrompt`."""
    from workbench.bench.prompts import BenchPrompt

    fields: dict[Any, Any] = value if is_object(value) else {"text": value}
    try:
        name, group = (
            wire.check_text(field, fields.get(field) or default)
            for field, default in (("name", f"prompt {index + 1}"), ("group", "all"))
        )
        return BenchPrompt(
            name, wire.check_text("A prompt", fields.get("text"), None), group, fields.get("chat") is True
        )
    except ParameterError as error:
        raise PromptError(error.message, error.remedy) from None


def _prompts_to_json(prompts: Any) -> list[Any]:
    """Convert texts and `workbench.bench.prompts.BenchPrompt`s to JSON data."""
    if any(isinstance(prompt, tuple) for prompt in prompts):
        raise PromptError("A running app takes prompts as text, not as token ids.", "Give the prompts as texts.")
    return [
        p if isinstance(p, str) else {"text": p.prompt, "name": p.name, "group": p.group, "chat": p.chat}
        for p in ([prompts] if isinstance(prompts, str) else prompts)
    ]


def names_of(name: str, value: Any) -> tuple[str, ...]:
    """Check a list of method names in a request; an empty list means all methods."""
    return tuple(wire.check_names(name, value)) if value else ()


def pace_of(value: Any) -> float:
    """Check that a display rate is a number; the backend checks its range."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ParameterError("pace is not a number.", "Give tokens per second; 0 means no delay.")
    return value


def one_of(actions: Sequence[str]) -> PlainValidator:
    """Return a pydantic validator that accepts only the given actions."""

    def check(value: Any) -> str:
        if value not in actions:
            raise ParameterError("The requested action does not exist.", f"Use one of {', '.join(actions)}.")
        return value

    return validator(check)


def _text_or_none(name: str, value: Any) -> str | None:
    return wire.check_text(name, value) if value else None


def _to_json(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Json:
    """Representation of a request field as JSON.

    Attributes:
        type: JSON type of the field, which Gradio and MCP show.
        encode: function from a Python value to JSON data.
    """

    type: Any
    encode: Callable[[Any], Any] = _to_json


MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer that JavaScript, and so a page, represents exactly. Clients in Python may send larger seeds."""


@dataclass(frozen=True)
class Limits:
    """Smallest and largest value of a number field in a form."""

    ge: int
    le: int = wire.INTEGERS - 1


@dataclass(frozen=True)
class Whole(Limits):
    """Annotation of an integer field that accepts values from `ge` to `le`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Return a pydantic schema that validates with `wire.check_integer`, for the workbench's error messages."""

        def checked(value: Any, info: ValidationInfo) -> int:
            return wire.check_integer(str(info.field_name), value, self.ge, self.le)

        return core_schema.with_info_plain_validator_function(checked)


Prompt = Annotated[str | list[int], validator(lambda value: wire.check_prompt("" if value is None else value))]
Prompts = Annotated[str | Sequence[Any], validator(prompts_of), Json(list[str], _prompts_to_json)]
UserMessages = Annotated[Sequence[Any], validator(messages_of), Json(list[Any], _prompts_to_json)]
Conversation = Annotated[
    list[dict[str, Any]],
    validator(wire.check_messages),
    Field(description='messages of a conversation, each with role ("system", "user" or "assistant") and content'),
]
ListedModel = Annotated[str, PlainValidator(model_of)]
Model = Annotated[str | None, PlainValidator(model_of)]
Target = Annotated[Model, Field(description="name of a target model; empty: the default target")]
Drafter = Annotated[
    Model,
    Field(description='name of a draft model; empty: the draft model bundled for the target; "none": no draft model'),
]
Lane = Annotated[
    Any,
    PlainValidator(lane_of),
    Json(Any, _lane_to_json),
    Field(
        description='a method with its settings: a string like "draft-model:depth=3", or an object with method, params '
        "and drafter"
    ),
]
Lanes = Annotated[
    Sequence[Any], PlainValidator(lanes_of), Json(list[Any], lambda lanes: [_lane_to_json(lane) for lane in lanes])
]
Name = Annotated[str, named_validator(wire.check_text)]
NameOrNone = Annotated[str | None, named_validator(_text_or_none)]
Names = Annotated[Sequence[str], named_validator(names_of), Json(list[str] | None)]
Values = Annotated[dict[str, Any] | None, validator(wire.check_params)]
Stops = Annotated[Sequence[str], validator(wire.check_stops), Json(list[str] | None)]
Images = Annotated[
    Sequence[Any],
    validator(lambda value: tuple(wire.check_images(value))),
    Json(list[str] | None, lambda images: [wire.data_url(image) for image in images]),
]
File = Annotated[
    bytes | None,
    named_validator(wire.decode_base64),
    Json(str | None, lambda data: None if data is None else wire.base64_of(data)),
]
Flag = Annotated[bool, validator(lambda value: value is True)]
From0 = Annotated[int, named_validator(wire.check_integer)]
Action = Annotated[str, one_of(ACTIONS)]
StateAction = Annotated[str, one_of(MEMORY_ACTIONS)]
Pace = Annotated[float, validator(pace_of), Limits(0, FASTEST)]
PaceOrNone = Annotated[float | None, validator(lambda value: value)]
"""Field type of a run's display rate, or None (no change). The run checks the value."""
Seconds = Annotated[float, Whole(bounds.SHORTEST_S, bounds.LONGEST_S), Json(int)]
NewTokens = Annotated[int, Whole(1, 10**6)]
Seed = Annotated[int, Whole(0)]
Repeats = Annotated[int, Whole(1, bounds.REPEATS)]
Tokens = Annotated[int, Whole(1, bounds.TOKENS)]
