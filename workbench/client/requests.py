"""What may be asked of a backend from outside, as models: checks, Gradio's endpoints and their words follow from them.

A field that is missing or null has its default. What is wrong is said in the workbench's own words, by `wire`. The
order of the fields is that of an endpoint's arguments.
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
    PAGES,
    TARGET,
    Anything,
    From0,
    Limits,
    Model,
    Name,
    Names,
    Packed,
    Pictures,
    Repeats,
    Seed,
    Stops,
    Tokens,
    Values,
    Whole,
    action_of,
    as_it_is,
    by,
    deed_of,
    lanes_of,
    model_of,
    named,
    pace_of,
    prompts_of,
)
from workbench.core.errors import ParameterError, PromptError
from workbench.core.params import ParamSpec
from workbench.engine.pace import FASTEST
from workbench.methods.choice import choose
from workbench.trace.kinds import is_object

if TYPE_CHECKING:
    from workbench.client.protocol import Client


def _text_or_none(name: str, value: Any) -> str | None:
    return wire.text(name, value) if value else None


def _is_true(value: Any) -> bool:
    return value is True


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
        return [list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value for value in values]

    @classmethod
    def numbers(cls) -> dict[str, dict[str, Any]]:
        """The fields that are numbers in a form, by name: their limits there, and what stands in it at first."""
        found = {
            name: ParamSpec(name, "int", field.default, limit.ge, min(limit.le, PAGES), doc=field.description or "")
            for name, field in cls.model_fields.items()
            for limit in field.metadata
            if isinstance(limit, Limits)
        }
        return {name: spec.to_wire() for name, spec in found.items()}

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

    target: Annotated[str, PlainValidator(model_of)] = Field(description="name of a loaded target")


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

    messages: Annotated[list[dict[str, Any]], by(wire.messages)] = Field(
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

    action: Annotated[str, by(action_of)] = Field(description="pause, resume, step or cancel")


class Remembering(OfRun):
    """What is done with the state of a run's drafter."""

    action: Annotated[str, by(deed_of)] = Field("look", description="look, save, load or reset")
    data: Packed = Field(None, description="a file that `memory` saved, in base64, where it is loaded")


class Changing(OfRun):
    """A change of a run."""

    method: Annotated[str | None, named(_text_or_none)] = Field(
        None, description="a name that `methods` lists; empty: as it is"
    )
    params: Values = Field(None, description="parameters of the method and of sampling by name; what is missing stays")
    drafter: Model = Field(None, description="name of a draft model; empty: as it is")
    images: Pictures = Field(
        None, description="other pictures as data-URLs, as many as the prompt has; empty: as they are"
    )
    sees: Name = Field("both", description='who sees them, "both" or "drafter"')
    pace: Annotated[float | None, by(as_it_is)] = Field(
        None, description="tokens a second at which rounds are held back from now on; empty: as it is"
    )

    def understood(self, client: Client) -> dict[str, Any]:
        """The run's id, and keywords of `RunHandle.change`."""
        return {name: value for name, value in self if name != "pace" or value is not None}


class Generation(Request):
    """A generation."""

    first = ("prompt",)
    prompt: Annotated[str | list[int], by(wire.prompt)] = Field(
        "", description="text to continue, or a list of token ids"
    )
    method: Name = Field("draft-model", description="a name that `methods` lists")
    params: Values = Field(
        None, description="parameters of the method and of sampling by name; what is missing has its default"
    )
    target: Model = Field(None, description=TARGET)
    drafter: Model = Field(None, description=DRAFTER)
    max_new_tokens: Annotated[int, Whole(1, 10**6)] = Field(128, description="end after so many tokens")
    seed: Seed = Field(0, description="decides every random number of the run")
    stop: Stops = Field(None, description="strings that end the text")
    paused: Annotated[bool, by(_is_true)] = Field(False, description="wait for `control` before the first round")
    images: Pictures = Field(None, description=IMAGES)
    pace: Annotated[float, by(pace_of), Limits(0, FASTEST)] = Field(
        0.0, description="tokens a second at which rounds are held back so that people can follow; 0: they are not"
    )
    memory: Packed = Field(None, description="a file that `memory` saved, in base64: its drafter's state to begin with")
    keeps: Annotated[bool, by(_is_true)] = Field(
        False, description="leave the drafter's state behind, for `memory` to save once the run has ended"
    )

    def understood(self, client: Client) -> dict[str, Any]:
        """Keywords of `Workbench.start`. Where no method is named, one that runs: see `workbench.methods.choice`."""
        spared = ("images", "pace", "memory", "keeps")  # where they ask for nothing; an empty file is a broken one
        found = {name: value for name, value in self if value or value == b"" or name not in spared}
        if "method" not in self.model_fields_set:
            reasons = {method["name"]: method["reason"] for method in client.methods(self.target, self.drafter)}
            found["method"] = choose(lambda name: reasons.get(name, f"There is no {name}."))[0]
        return found


class Comparing(Request):
    """A comparison."""

    first = ("prompts", "lanes")
    prompts: Annotated[list[str], by(prompts_of)] = Field([""], description="texts to continue")
    lanes: Annotated[list[Any], by(lanes_of)] = Field(
        [],
        description='one to four, each a line like "draft-model:depth=3", or an object with method, params and drafter',
    )
    target: Model = Field(None, description=TARGET)
    max_new_tokens: Tokens = Field(64, description="end each run after so many tokens")
    seed: Seed = Field(0, description="decides every random number of the runs")
    sampling: Values = Field(None, description="temperature and filters by name, the same for all")
    stop: Stops = Field(None, description="strings that end a text")
    repeats: Repeats = Field(3, description="repetitions of each lane and prompt")
    images: Pictures = Field(None, description=f"{IMAGES}; the prompts are then questions about them")

    def understood(self, client: Client) -> dict[str, Any]:
        """Keywords of `Workbench.comparing`."""
        found = dict(self) | {
            "prompts": [_named_prompt(prompt, i) for i, prompt in enumerate(self.prompts)],
            "lanes": [lane(client, each) for each in self.lanes],
        }
        pictures = found.pop("images")
        return found | ({"images": tuple(pictures)} if pictures else {})


class Recommending(Request):
    """What a recommendation is measured on."""

    first = ("prompts",)
    prompts: Annotated[list[Any], by(prompts_of)] = Field(
        [""], description="messages to the target, each a text or an object with text, name and chat"
    )
    seconds: Annotated[int, Whole(SHORTEST_S, LONGEST_S)] = Field(
        60, description="of measuring; waiting for others is not counted"
    )
    target: Model = Field(None, description=TARGET)
    drafter: Model = Field(None, description=DRAFTER)
    max_new_tokens: Tokens = Field(64, description="end each run after so many tokens")
    methods: Names = Field(None, description="names of methods; empty: all exact ones that run")

    def understood(self, client: Client) -> dict[str, Any]:
        """Keywords of `Workbench.recommending`."""
        asked = [p if is_object(p) else {"text": p, "chat": True} for p in self.prompts]
        return dict(self) | {
            "prompts": [_named_prompt(prompt, i) for i, prompt in enumerate(asked)],
            "methods": tuple(self.methods or ()),
        }


class Sweeping(Request):
    """The numbers of a sweep: what every cell has that no axis varies."""

    limit: Annotated[int, Whole(1, 12)] = Field(2, description="prompts of each kind")
    max_new_tokens: Tokens = Field(48, description="end each run after so many tokens")
    seed: Seed = Field(0, description="decides every random number of the runs")
    repeats: Repeats = Field(2, description="repetitions of each cell and prompt")


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

    given: dict[Any, Any] = value if is_object(value) else {"text": value}
    try:
        name, group = (
            wire.text(field, given.get(field) or default)
            for field, default in (("name", f"prompt {index + 1}"), ("group", "all"))
        )
        return BenchPrompt(name, wire.text("A prompt", given.get("text"), None), group, given.get("chat") is True)
    except ParameterError as error:
        raise PromptError(error.message, error.remedy) from None
