"""Fields of OpenAI's requests and of vLLM's extensions: how each is used, or why it is refused.

An unsupported field is ignored if it has no effect on the text (`user`, `metadata`, …); otherwise it is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from workbench.client import wire
from workbench.client.requests import Generation
from workbench.client.values import named_validator
from workbench.core.errors import ParameterError
from workbench.methods import method_info

if TYPE_CHECKING:
    from workbench.engine.request_options import RequestOptions

TOP = 20
"""Maximum number of most likely tokens that a request may ask for per position: OpenAI's limit of `top_logprobs`."""
CHOICES = 16
"""Maximum number of answers per request, over all of its prompts; each answer is a separate run."""
IDS = 64
BIASED = 1024
SAMPLING = {name: spec.default for name, spec in method_info.sampling().items()} | {"temperature": 1.0}
"""Sampling parameters in OpenAI's requests, with their defaults; temperature 1 is OpenAI's default."""

SILENT = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "request_id", "cache_salt",
}  # fmt: skip
"""Request fields that have no effect on the generated text and are ignored."""
_GRAMMAR = "grammar-constrained decoding is not implemented"
_TOOLS = "tool calls are not implemented"
_SEARCH = "text found by beam search or best-of-n does not follow the target's distribution"
_TEXT = "the models generate only text"
UNSUPPORTED_FIELDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "guided_json": (_GRAMMAR, ()),
    "guided_regex": (_GRAMMAR, ()),
    "guided_choice": (_GRAMMAR, ()),
    "guided_grammar": (_GRAMMAR, ()),
    "guided_decoding_backend": (_GRAMMAR, ()),
    "guided_whitespace_pattern": (_GRAMMAR, ()),
    "structured_outputs": (_GRAMMAR, ({},)),
    "response_format": (_GRAMMAR, ({"type": "text"},)),
    "tools": (_TOOLS, ([],)),
    "functions": (_TOOLS, ([],)),
    "tool_choice": (_TOOLS, ("none", "auto")),
    "function_call": (_TOOLS, ("none", "auto")),
    "modalities": (_TEXT, (["text"],)),
    "audio": (_TEXT, ()),
    "web_search_options": (_TOOLS, ()),
    "best_of": (_SEARCH, (1,)),
    "use_beam_search": (_SEARCH, (False,)),
    "length_penalty": (_SEARCH, (1,)),
    "early_stopping": (_SEARCH, (False,)),
    "suffix": ("fill-in-the-middle is not implemented", ("",)),
    "prediction": ("drafts are chosen by speculation.method; prompt-lookup copies from the prompt", ()),
    "reasoning_effort": ("the models have no separate reasoning phase", ("none",)),
    "verbosity": ("the models have no setting for the length of answers", ("medium",)),
    "bad_words": ("words of several tokens cannot be excluded; use logit_bias to exclude single tokens", ([],)),
    "allowed_token_ids": ("use logit_bias to make tokens more or less likely", ([],)),
    "include_stop_str_in_output": ("the returned text always ends before the stop string", (False,)),
    "skip_special_tokens": ("special tokens never appear in the returned text", (True,)),
    "spaces_between_special_tokens": ("special tokens never appear in the returned text", (True,)),
    "return_tokens_as_token_ids": ("tokens are always returned as text and bytes", (False,)),
    "add_generation_prompt": ("the chat template's generation prompt is always added", (True,)),
    "continue_final_message": ("the chat template's generation prompt is always added", (False,)),
    "add_special_tokens": ("the target's tokenizer decides which special tokens a prompt gets", (True,)),
    "chat_template": ("the target's own chat template is used", ()),
    "chat_template_kwargs": ("the target's own chat template is used", ({},)),
    "priority": ("requests of different users are served in turn", (0,)),
    "logits_processors": ("code from clients is never run", ([],)),
    "echo": ("chat completions do not repeat the conversation; /v1/completions has echo", (False,)),
    "top_logprobs": ("in /v1/completions, the field logprobs gives the number of most likely tokens", (0,)),
    "messages": ("only /v1/chat/completions has this field", ()),
    "prompt": ("only /v1/completions has this field", ()),
}
"""Unsupported request fields. For each: why it is unsupported, and the values without effect, which are accepted."""


def field_error(name: str, message: str, remedy: str) -> ParameterError:
    """Return the error for a wrong request field, with the field's name in the attribute `option`."""
    problem = ParameterError(message, remedy)
    problem.option = name
    return problem


def number(name: str, value: Any, least: float, most: float = wire.INTEGERS - 1, whole: bool = False) -> float:
    """Check that the value of a request field is a number in a range.

    Raises:
        ParameterError: the value is not a number, or out of range.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        upto = f" to {most:g}" if most < wire.INTEGERS - 1 else ""
        raise field_error(
            name,
            f"{name} is not a {kind} from {least:g}{upto}.",
            "Send a number in this range, or leave out the field.",
        )
    return int(value) if whole else value


def flag(name: str, value: Any) -> bool:
    """Check that the value of a request field is a boolean.

    Raises:
        ParameterError: the value is not a boolean.
    """
    if not isinstance(value, bool):
        raise field_error(name, f"{name} is not a boolean.", "Use true or false.")
    return value


def _ids(name: str, ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, list) or len(ids) > IDS or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise field_error(name, f"{name} is not a list of up to {IDS} token ids.", "For example: [2, 50].")
    return tuple(ids)


def _bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    problem = field_error(
        name, f"{name} is not an object of up to {BIASED} token ids and numbers from -100 to 100.",
        'For example: {"50": -100}.',
    )  # fmt: skip
    if not isinstance(value, dict) or len(value) > BIASED:
        raise problem
    for token, bias in value.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not token.isdecimal() or len(token) > 9 or not is_number or not -100 <= bias <= 100:
            raise problem
    return tuple((int(token), float(bias)) for token, bias in value.items())


def _object(name: str, value: Any, names: tuple[str, ...], remedy: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not set(value) <= set(names):
        raise field_error(name, f"The value of {name} is not a valid object.", remedy)
    return value


def _tops(name: str, value: Any) -> int | None:
    """Return the number of most likely tokens to list per position.

    The value True means 0: only the generated token is listed.
    """
    if isinstance(value, bool):
        return 0 if value else None
    return int(number(name, value, 0, TOP, whole=True))


@dataclass(frozen=True)
class To:
    """Destination of a request field: it sets an argument of `Client.start` or an attribute of `RequestOptions`."""

    argument: str = ""
    option: str = ""


SPECULATION = ("method", "params", "drafter")
Flag = Annotated[bool, named_validator(flag)]
Top = Annotated[int | None, named_validator(number, 0, TOP, True)]
Penalty = Annotated[float, named_validator(number, -2, 2)]
Positive = Annotated[int | None, named_validator(number, 1, wire.INTEGERS - 1, True)]


class Fields(BaseModel):
    """Fields of both requests for completions and requests for chat completions, without sampling parameters.

    Fields of type `Any` are checked later, by `workbench.client.requests.Generation`. If several present fields have
    the same destination, the last one applies.
    """

    model_config = ConfigDict(extra="ignore")

    model: Annotated[Any, To("target")] = None
    stream: Flag = False
    stream_options: Annotated[
        dict[str, Any],
        named_validator(_object, ("include_usage", "include_obfuscation"), 'For example: {"include_usage": true}.'),
    ] = {}
    max_tokens: Annotated[Any, To("max_new_tokens")] = None
    max_completion_tokens: Annotated[Any, To("max_new_tokens")] = None
    seed: Annotated[Any, To("seed")] = None
    stop: Annotated[Any, To("stop")] = None
    n: Annotated[int, named_validator(number, 1, CHOICES, True)] = 1
    speculation: Annotated[
        dict[str, Any], named_validator(_object, SPECULATION, "Send an object with method, params and drafter.")
    ] = {}
    min_tokens: Annotated[int, named_validator(number, 0, wire.INTEGERS - 1, True), To(option="min_tokens")] = 0
    stop_token_ids: Annotated[tuple[int, ...], named_validator(_ids), To(option="stop_tokens")] = ()
    ignore_eos: Annotated[Flag, To(option="ignore_eos")] = False
    logit_bias: Annotated[tuple[tuple[int, float], ...], named_validator(_bias), To(option="logit_bias")] = ()
    presence_penalty: Annotated[Penalty, To(option="presence_penalty")] = 0.0
    frequency_penalty: Annotated[Penalty, To(option="frequency_penalty")] = 0.0
    prompt_logprobs: Top = None
    truncate_prompt_tokens: Annotated[Positive, To(option="truncate_prompt")] = None

    @classmethod
    def destinations(cls) -> dict[str, To]:
        """Return the destinations of the request fields by field name: what each field sets."""
        return {name: to for name, field in cls.model_fields.items() for to in field.metadata if isinstance(to, To)}

    def start_options(self) -> dict[str, Any]:
        """Return the arguments of `Client.start` that the request's fields set, except for sampling parameters."""
        values = [(to.argument, getattr(self, name)) for name, to in self.destinations().items() if to.argument]
        return self.speculation | {argument: value for argument, value in values if value is not None}

    def tops(self) -> tuple[int | None, int | None]:
        """Return how many most likely tokens to list per position, for the answer and for the prompt.

        None: no log-probabilities.
        """
        raise NotImplementedError

    def extras(self) -> RequestOptions:
        """Return the options of a generation besides its sampling parameters, such as stop tokens and penalties.

        Raises:
            ParameterError: a field is set, but another field that it requires is not.
        """
        from workbench.engine.request_options import RequestOptions  # imports PyTorch

        n_top, n_prompt = self.tops()
        options = {to.option: getattr(self, name) for name, to in self.destinations().items() if to.option}
        return RequestOptions(**options, logprobs=n_top, prompt_logprobs=n_prompt)


class Completion(Fields):
    """Fields of a request for completions (OpenAI's `/v1/completions`)."""

    prompt: Any = ""
    echo: Flag = False
    logprobs: Annotated[int | None, named_validator(_tops)] = None

    def tops(self) -> tuple[int | None, int | None]:
        """Return the numbers of most likely tokens to list per position, for the answer and for the prompt.

        With `echo`, the number for the prompt is by default the number for the answer.
        """
        return self.logprobs, self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs


class Chat(Fields):
    """Fields of a request for chat completions (OpenAI's `/v1/chat/completions`)."""

    messages: Any = None
    logprobs: Flag = False
    top_logprobs: Top = None
    echo: ClassVar[bool] = False

    def tops(self) -> tuple[int | None, int | None]:
        """Return the numbers of most likely tokens to list per position, for the answer and for the prompt.

        In chat completions, `top_logprobs` is the number for the answer.
        """
        if self.top_logprobs and not self.logprobs:
            raise field_error("top_logprobs", "top_logprobs needs logprobs.", 'Send "logprobs": true as well.')
        return self.top_logprobs or 0 if self.logprobs else None, self.prompt_logprobs


def check_names(sent: dict[str, Any], chat: bool) -> None:
    """Refuse a request with unknown or unsupported fields.

    Raises:
        ParameterError: a field is unknown or unsupported; the message suggests a known name, or says why.
    """
    supported = {*(Chat if chat else Completion).model_fields, *SAMPLING}
    for name, value in sent.items():
        if name in supported or name in SILENT:
            continue
        reason, neutral = UNSUPPORTED_FIELDS.get(name, ("", ()))
        if not reason:
            similar = difflib.get_close_matches(name, supported, n=1, cutoff=0.6)
            hint = f"Did you mean {similar[0]!r}?" if similar else f"Known fields: {', '.join(sorted(supported))}."
            raise field_error(
                name[: wire.NAME_CHARS], f"The request has the unknown field {name[: wire.NAME_CHARS]!r}.", hint
            )
        if value not in neutral:
            raise field_error(name, f"{name} is not supported: {reason}.", "Leave out this field.")


def read(sent: dict[str, Any], chat: bool) -> Completion | Chat:
    """Validate the fields of a request. A field with the value null counts as missing.

    Raises:
        ParameterError: a value is invalid.
    """
    present = {name: value for name, value in sent.items() if value is not None}
    return (Chat if chat else Completion).model_validate(present)


def reference() -> Iterator[tuple[str, str]]:
    """Yield the name and the effect of each request field, for the page `/docs`."""
    for name, spec in method_info.sampling().items():
        yield name, spec.doc
    destinations = {**Completion.destinations(), **Chat.destinations()}
    for name in {**Completion.model_fields, **Chat.model_fields}:
        to = destinations.get(name, To())
        argument = Generation.model_fields.get(to.argument)
        yield name, (argument.description if argument else None) or "supported"
    for name in sorted(SILENT):
        yield name, "accepted but ignored: has no effect on the generated text"
    for name, (reason, _) in UNSUPPORTED_FIELDS.items():
        if name not in Completion.model_fields and name not in Chat.model_fields:
            yield name, f"refused: {reason}"
