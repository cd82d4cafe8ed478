"""Pydantic models of the requests to a backend; the checks, Gradio's endpoints and their texts are derived from them.

A missing or null field takes its default. Functions of `wire` check the values and write the error messages. The order
of the fields is the order of an endpoint's arguments.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from workbench.bench.bounds import LONGEST_S, SHORTEST_S
from workbench.client import wire
from workbench.client.values import (
    DRAFTER,
    IMAGES,
    MAX_SAFE_INTEGER,
    TARGET,
    Anything,
    Base64File,
    From0,
    Images,
    Limits,
    Model,
    Name,
    Names,
    Repeats,
    Seed,
    Stops,
    Tokens,
    Values,
    Whole,
    action_of,
    lanes_of,
    memory_action_of,
    model_of,
    named_validator,
    pace_of,
    prompts_of,
    unchecked,
    validator,
)
from workbench.core.errors import ParameterError, PromptError
from workbench.core.params import ParamSpec
from workbench.engine.pacing import FASTEST
from workbench.methods.choice import choose
from workbench.trace.type_checks import is_object

if TYPE_CHECKING:
    from workbench.client.protocol import Client


def _text_or_none(name: str, value: Any) -> str | None:
    return wire.check_text(name, value) if value else None


def _is_true(value: Any) -> bool:
    return value is True


class Request(BaseModel):
    """Base class of requests. Defaults are validated too, so that every value has the validated form.

    Attributes:
        first: names of fields that are required arguments of an endpoint, although they have a default elsewhere.
    """

    model_config = ConfigDict(validate_default=True, extra="ignore")
    first: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def options(cls, client: Client, values: dict[str, Any]) -> dict[str, Any]:
        """Check a request and return the keyword arguments for the call that answers it.

        Args:
            client: client that lists the allowed models.
            values: fields by name; a missing or None field takes its default, unknown fields are ignored.

        Raises:
            WorkbenchError: a field is invalid.
        """

        @functools.cache
        def models() -> tuple[list[str], bool]:
            entries = (*client.targets(), *client.drafters())
            return ["auto", "none", *(entry["name"] for entry in entries)], client.hub_only

        fields = {
            name: values.get(name)
            for name, field in cls.model_fields.items()
            if values.get(name) is not None or field.is_required()
        }
        return cls.model_validate(fields, context=models).keyword_arguments(client)

    @classmethod
    def arguments(cls, **fields: Any) -> list[Any]:
        """Return the arguments of an endpoint that takes all fields, as JSON; missing fields take their defaults."""
        if unknown := set(fields) - set(cls.model_fields):
            raise TypeError(f"unexpected keyword argument {', '.join(map(repr, sorted(unknown)))}")
        values = [fields.get(name, field.default) for name, field in cls.model_fields.items()]
        return [list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value for value in values]

    @classmethod
    def numbers(cls) -> dict[str, dict[str, Any]]:
        """Return the number fields of a form, by name, with their limits and initial values."""
        specs = {
            name: ParamSpec(
                name, "int", field.default, limit.ge, min(limit.le, MAX_SAFE_INTEGER), doc=field.description or ""
            )
            for name, field in cls.model_fields.items()
            for limit in field.metadata
            if isinstance(limit, Limits)
        }
        return {name: spec.to_wire() for name, spec in specs.items()}

    def keyword_arguments(self, client: Client) -> dict[str, Any]:
        """Return the fields as keyword arguments of the call."""
        return dict(self)


class Target(Request):
    """Request that names a target."""

    target: Model = Field(None, description=TARGET)


class Models(Target):
    """Request that names a target and a draft model."""

    drafter: Model = Field(None, description=DRAFTER)


class LoadedTargetRequest(Request):
    """Request that names a loaded target."""

    target: Annotated[str, PlainValidator(model_of)] = Field(description="name of a loaded target")


class Conditions(Request):
    """Request for the measuring conditions of a lane."""

    lane: Anything = Field(
        description='a string like "draft-model:depth=3", or an object with method, params and drafter'
    )
    target: Model = Field(None, description=TARGET)

    def keyword_arguments(self, client: Client) -> dict[str, Any]:
        """Return the fields, with the lane as plain data."""
        return dict(self) | {"lane": lane(client, self.lane)}


class Conversation(Request):
    """Request to format a conversation as a prompt."""

    messages: Annotated[list[dict[str, Any]], validator(wire.check_messages)] = Field(
        description='each with role ("system", "user" or "assistant") and content'
    )
    target: Model = Field(None, description=TARGET)


class RunRequest(Request):
    """Request that names a run."""

    run: Name = Field(description="id of the run")


class UpdateRequest(RunRequest):
    """Request for the new rounds of a run."""

    number: From0 = Field(0, description="number of the first round to return, from 0")


class Control(RunRequest):
    """Request to pause, resume, step or cancel a run."""

    action: Annotated[str, validator(action_of)] = Field(description="pause, resume, step or cancel")


class DrafterStateRequest(RunRequest):
    """Request to inspect, save, load or reset the state of a run's drafter."""

    action: Annotated[str, validator(memory_action_of)] = Field("look", description="look, save, load or reset")
    data: Base64File = Field(None, description="for load: a file saved by `memory`, in base64")


class ChangeRequest(RunRequest):
    """Request to change a run from its next round on."""

    method: Annotated[str | None, named_validator(_text_or_none)] = Field(
        None, description="a name that `methods` lists; empty: no change"
    )
    params: Values = Field(
        None, description="parameters of the method and of sampling by name; missing ones stay as they are"
    )
    drafter: Model = Field(None, description="name of a draft model; empty: no change")
    images: Images = Field(None, description="new images as data-URLs, as many as the prompt has; empty: no change")
    sees: Name = Field("both", description='models that get the new images: "both" or "drafter"')
    pace: Annotated[float | None, validator(unchecked)] = Field(
        None, description="display rate in tokens per second from now on; 0: no delay; empty: no change"
    )

    def keyword_arguments(self, client: Client) -> dict[str, Any]:
        """Return the run's id and the keyword arguments of `RunHandle.change`."""
        return {name: value for name, value in self if name != "pace" or value is not None}


class Generation(Request):
    """Request to start a generation."""

    first = ("prompt",)
    prompt: Annotated[str | list[int], validator(wire.check_prompt)] = Field(
        "", description="text to continue, or a list of token ids"
    )
    method: Name = Field("draft-model", description="a name that `methods` lists")
    params: Values = Field(
        None, description="parameters of the method and of sampling by name; missing ones take their defaults"
    )
    target: Model = Field(None, description=TARGET)
    drafter: Model = Field(None, description=DRAFTER)
    max_new_tokens: Annotated[int, Whole(1, 10**6)] = Field(128, description="maximum number of new tokens")
    seed: Seed = Field(0, description="seed of all random numbers of the run")
    stop: Stops = Field(None, description="strings that end the text")
    paused: Annotated[bool, validator(_is_true)] = Field(False, description="wait for `control` before the first round")
    images: Images = Field(None, description=IMAGES)
    pace: Annotated[float, validator(pace_of), Limits(0, FASTEST)] = Field(
        0.0, description="display rate in tokens per second: rounds are delayed for viewers; 0: no delay"
    )
    memory: Base64File = Field(None, description="initial state of the drafter: a file saved by `memory`, in base64")
    keeps: Annotated[bool, validator(_is_true)] = Field(
        False, description="keep the drafter's state after the run, so that `memory` can save it"
    )

    def keyword_arguments(self, client: Client) -> dict[str, Any]:
        """Return the keyword arguments of `Workbench.start`.

        Without a method, one that can run is chosen: see `workbench.methods.choice`.
        """
        optional = ("images", "pace", "memory", "keeps")  # an empty file is kept: it is damaged
        named_values = {name: value for name, value in self if value or value == b"" or name not in optional}
        if "method" not in self.model_fields_set:
            reasons = {method["name"]: method["reason"] for method in client.methods(self.target, self.drafter)}
            named_values["method"] = choose(lambda name: reasons.get(name, f"There is no {name}."))[0]
        return named_values


class ComparisonRequest(Request):
    """Request for a comparison of methods."""

    first = ("prompts", "lanes")
    prompts: Annotated[list[str], validator(prompts_of)] = Field([""], description="texts to continue")
    lanes: Annotated[list[Any], validator(lanes_of)] = Field(
        [],
        description='one to four: strings like "draft-model:depth=3", or objects with method, params and drafter',
    )
    target: Model = Field(None, description=TARGET)
    max_new_tokens: Tokens = Field(64, description="maximum number of new tokens per run")
    seed: Seed = Field(0, description="seed of all random numbers of the runs")
    sampling: Values = Field(None, description="sampling parameters of all lanes by name, such as temperature")
    stop: Stops = Field(None, description="strings that end a text")
    repeats: Repeats = Field(3, description="repetitions of each lane and prompt")
    images: Images = Field(None, description=f"{IMAGES}; they belong to every prompt")

    def keyword_arguments(self, client: Client) -> dict[str, Any]:
        """Return the keyword arguments of `Workbench.stream_comparison`."""
        named_values = dict(self) | {
            "prompts": [_named_prompt(prompt, i) for i, prompt in enumerate(self.prompts)],
            "lanes": [lane(client, value) for value in self.lanes],
        }
        pictures = named_values.pop("images")
        return named_values | ({"images": tuple(pictures)} if pictures else {})


class RecommendationRequest(Request):
    """Request for a recommendation of a method, measured on prompts."""

    first = ("prompts",)
    prompts: Annotated[list[Any], validator(prompts_of)] = Field(
        [""], description="user messages, each a text or an object with text, name and chat"
    )
    seconds: Annotated[int, Whole(SHORTEST_S, LONGEST_S)] = Field(
        60, description="measuring time; waiting for other runs is not counted"
    )
    target: Model = Field(None, description=TARGET)
    drafter: Model = Field(None, description=DRAFTER)
    max_new_tokens: Tokens = Field(64, description="maximum number of new tokens per run")
    methods: Names = Field(None, description="names of methods; empty: all exact methods that can run")

    def keyword_arguments(self, client: Client) -> dict[str, Any]:
        """Return the keyword arguments of `Workbench.stream_recommendation`."""
        prompts = [p if is_object(p) else {"text": p, "chat": True} for p in self.prompts]
        return dict(self) | {
            "prompts": [_named_prompt(prompt, i) for i, prompt in enumerate(prompts)],
            "methods": tuple(self.methods or ()),
        }


class SweepRequest(Request):
    """Numbers of a sweep that apply to every cell unless an axis varies them."""

    limit: Annotated[int, Whole(1, 12)] = Field(2, description="prompts of each group")
    max_new_tokens: Tokens = Field(48, description="maximum number of new tokens per run")
    seed: Seed = Field(0, description="seed of all random numbers of the runs")
    repeats: Repeats = Field(2, description="repetitions of each cell and prompt")


def lane(client: Client, value: Any) -> dict[str, Any]:
    """Check a lane and return it as plain data; its draft model is one that the server lists, or a Hub id.

    Raises:
        WorkbenchError: the lane is invalid.
    """
    from workbench.bench.lanes import Lane  # imports PyTorch

    parsed = Lane.of(wire.check_text("A lane", value, wire.MESSAGE_CHARS) if isinstance(value, str) else value)
    wire.check_params(parsed.params)
    return parsed.to_wire() | {"drafter": Models.options(client, {"drafter": parsed.drafter})["drafter"]}


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
