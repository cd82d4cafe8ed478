"""What may be asked of a backend from outside, as models: checks, Gradio's endpoints and their words follow from them.

A field that is missing or null has its default. What is wrong is said in the workbench's own words, by `wire`. The
order of the fields is that of an endpoint's arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationInfo

from workbench.client import wire
from workbench.core.errors import ParameterError, PromptError
from workbench.methods.choice import choose

if TYPE_CHECKING:
    from workbench.client.protocol import Client

ACTIONS = ("pause", "resume", "step", "cancel")
"""What can be done with a run besides changing it: methods of `RunHandle`."""


def _by(check: Callable[..., Any], *more: Any) -> PlainValidator:
    return PlainValidator(lambda value: check(value, *more))


def named(check: Callable[..., Any], *more: Any) -> PlainValidator:
    """A check that is told the field's name."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        return check(info.field_name, value, *more)

    return PlainValidator(checked)


def _model(value: Any, info: ValidationInfo) -> str | None:
    if value is None or value == "":
        return None
    assert info.context is not None, "models are asked for by `Request.options`"
    return wire.model_name(str(info.field_name), value, *info.context())


def _prompts(value: Any) -> list[Any]:
    given = value if isinstance(value, list) else [value]
    if not 0 < len(given) <= wire.ITEMS:
        raise PromptError("prompts is not a list of prompts.", f"Give 1 to {wire.ITEMS}.")
    return given


def _lanes(value: Any) -> list[Any]:
    if not isinstance(value, list) or not 0 < len(value) <= wire.ITEMS:
        raise ParameterError("lanes is not a list of lanes.", 'For example: ["draft-model", "prompt-lookup:depth=5"].')
    return value


def _pace(value: Any) -> float:
    """Whether a number is a pace the backend says; what is none is refused here."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ParameterError("pace is not a number.", "Give tokens a second; 0 holds nothing back.")
    return value


def _action(value: Any) -> str:
    if value not in ACTIONS:
        raise ParameterError("There is no such action.", f"Use one of {', '.join(ACTIONS)}.")
    return value


TARGET = "name of a target; empty: the default one"
DRAFTER = 'name of a draft model; empty: the one that belongs to the target; "none": none'
IMAGES = "pictures as data-URLs, for a target that reads them"
Anything = Annotated[Any, _by(lambda value: value)]
Model = Annotated[str | None, PlainValidator(_model)]
Name = Annotated[str, named(wire.text)]
Values = Annotated[dict[str, Any] | None, _by(wire.params)]
Stops = Annotated[list[str] | None, _by(wire.stops)]
Pictures = Annotated[list[str] | None, _by(wire.images)]
From0 = Annotated[int, named(wire.whole)]
From1 = Annotated[int, named(wire.whole, 1)]


class Request(BaseModel):
    """What is asked for. Defaults are checked, too, so that what comes out is of one form.

    Attributes:
        first: names of fields that an endpoint asks for although they have a default elsewhere.
    """

    model_config = ConfigDict(validate_default=True, extra="ignore")
    first: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def options(cls, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        """A request, checked: keywords of the call that answers it.

        Args:
            client: lists the models that may be named.
            asked: fields by name; what is missing or None has its default, what else stands there is left alone.

        Raises:
            WorkbenchError: something in it is wrong.
        """

        @functools.cache
        def models() -> tuple[list[str], bool]:
            entries = (*client.targets(), *client.drafters())
            return ["auto", "none", *(entry["name"] for entry in entries)], client.hub_only

        given = {
            name: asked.get(name)
            for name, field in cls.model_fields.items()
            if asked.get(name) is not None or field.is_required()
        }
        return cls.model_validate(given, context=models).understood(client)

    @classmethod
    def arguments(cls, **given: Any) -> list[Any]:
        """The arguments of an endpoint that takes all fields, as JSON; what is not given has its default there."""
        if unknown := set(given) - set(cls.model_fields):
            raise TypeError(f"unexpected keyword argument {', '.join(map(repr, sorted(unknown)))}")
        values = [given.get(name, field.default) for name, field in cls.model_fields.items()]
        return [list(value) if isinstance(value, tuple) else value for value in values]

    def understood(self, client: Client) -> dict[str, Any]:
        """The fields, in the form in which the call takes them."""
        return dict(self)


class Target(Request):
    """A target."""

    target: Model = Field(None, description=TARGET)


class Models(Target):
    """A target and a draft model."""

    drafter: Model = Field(None, description=DRAFTER)


class Loaded(Request):
    """A target that is in memory."""

    target: Annotated[str, PlainValidator(_model)] = Field(description="name of a loaded target")


class Conditions(Request):
    """A lane whose conditions are asked for."""

    lane: Anything = Field(
        description='a line like "draft-model:depth=3", or an object with method, params and drafter'
    )
    target: Model = Field(None, description=TARGET)

    def understood(self, client: Client) -> dict[str, Any]:
        """With the lane as plain data."""
        return dict(self) | {"lane": lane(client, self.lane)}


class Conversation(Request):
    """A conversation."""

    messages: Annotated[list[dict[str, Any]], _by(wire.messages)] = Field(
        description='each with role ("system", "user" or "assistant") and content'
    )
    target: Model = Field(None, description=TARGET)


class OfRun(Request):
    """A run."""

    run: Name = Field(description="id of the run")


class News(OfRun):
    """What is new of a run."""

    number: From0 = Field(0, description="the first round wanted")


class Control(OfRun):
    """What is done with a run."""

    action: Annotated[str, _by(_action)] = Field(description="pause, resume, step or cancel")


class Changing(OfRun):
    """A change of a run."""

    method: Annotated[str | None, named(lambda name, value: wire.text(name, value) if value else None)] = Field(
        None, description="a name that `methods` lists; empty: as it is"
    )
    params: Values = Field(None, description="parameters of the method and of sampling by name; what is missing stays")
    drafter: Model = Field(None, description="name of a draft model; empty: as it is")
    images: Pictures = Field(
        None, description="other pictures as data-URLs, as many as the prompt has; empty: as they are"
    )
    sees: Name = Field("both", description='who sees them, "both" or "drafter"')
    pace: Annotated[float | None, _by(lambda value: value)] = Field(
        None, description="tokens a second at which rounds are held back from now on; empty: as it is"
    )

    def understood(self, client: Client) -> dict[str, Any]:
        """The run's id, and keywords of `RunHandle.change`."""
        return {name: value for name, value in self if name != "pace" or value is not None}


class Generation(Request):
    """A generation."""

    first = ("prompt",)
    prompt: Annotated[str | list[int], _by(wire.prompt)] = Field(
        "", description="text to continue, or a list of token ids"
    )
    method: Name = Field("draft-model", description="a name that `methods` lists")
    params: Values = Field(
        None, description="parameters of the method and of sampling by name; what is missing has its default"
    )
    target: Model = Field(None, description=TARGET)
    drafter: Model = Field(None, description=DRAFTER)
    max_new_tokens: From0 = Field(128, description="end after so many tokens")
    seed: From0 = Field(0, description="decides every random number of the run")
    stop: Stops = Field(None, description="strings that end the text")
    paused: Annotated[bool, _by(lambda value: value is True)] = Field(
        False, description="wait for `control` before the first round"
    )
    images: Pictures = Field(None, description=IMAGES)
    pace: Annotated[float, _by(_pace)] = Field(
        0.0, description="tokens a second at which rounds are held back so that people can follow; 0: they are not"
    )

    def understood(self, client: Client) -> dict[str, Any]:
        """Keywords of `Workbench.start`. Where no method is named, one that runs: see `workbench.methods.choice`."""
        found = {name: value for name, value in self if value or name not in ("images", "pace")}
        if "method" not in self.model_fields_set:
            reasons = {method["name"]: method["reason"] for method in client.methods(self.target, self.drafter)}
            found["method"] = choose(lambda name: reasons.get(name, f"There is no {name}."))[0]
        return found


class Comparing(Request):
    """A comparison."""

    first = ("prompts", "lanes")
    prompts: Annotated[list[str], _by(_prompts)] = Field([""], description="texts to continue")
    lanes: Annotated[list[Any], _by(_lanes)] = Field(
        [],
        description='one to four, each a line like "draft-model:depth=3", or an object with method, params and drafter',
    )
    target: Model = Field(None, description=TARGET)
    max_new_tokens: From1 = Field(64, description="end each run after so many tokens")
    seed: From0 = Field(0, description="decides every random number of the runs")
    sampling: Values = Field(None, description="temperature and filters by name, the same for all")
    stop: Stops = Field(None, description="strings that end a text")
    repeats: From1 = Field(3, description="repetitions of each lane and prompt")
    images: Pictures = Field(None, description=f"{IMAGES}; the prompts are then questions about them")

    def understood(self, client: Client) -> dict[str, Any]:
        """Keywords of `Workbench.comparing`."""
        found = dict(self) | {
            "prompts": [_named_prompt(prompt, i) for i, prompt in enumerate(self.prompts)],
            "lanes": [lane(client, each) for each in self.lanes],
        }
        pictures = found.pop("images")
        return found | ({"images": tuple(pictures)} if pictures else {})


def lane(client: Client, value: Any) -> dict[str, Any]:
    """A lane as plain data; its draft model is one that the server lists, or a Hub id.

    Raises:
        WorkbenchError: something in it is wrong.
    """
    from workbench.bench.lanes import Lane  # brings PyTorch

    found = Lane.of(wire.text("A lane", value, wire.MESSAGE_CHARS) if isinstance(value, str) else value)
    wire.params(found.params)
    return found.to_wire() | {"drafter": Models.options(client, {"drafter": found.drafter})["drafter"]}


def _named_prompt(value: Any, index: int) -> Any:
    """A text, or an object with text and perhaps name, group and chat, as a `workbench.bench.prompts.BenchPrompt`."""
    from workbench.bench.prompts import BenchPrompt

    given = value if isinstance(value, dict) else {"text": value}
    try:
        name, group = (
            wire.text(field, given.get(field) or default)
            for field, default in (("name", f"prompt {index + 1}"), ("group", "all"))
        )
        return BenchPrompt(name, wire.text("A prompt", given.get("text"), None), group, given.get("chat") is True)
    except ParameterError as error:
        raise PromptError(error.message, error.remedy) from None
