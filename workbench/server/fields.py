"""The fields of OpenAI's requests, and of vLLM's beside them: honoured, refused by name with the reason, or unknown.

A field that is not honoured is never ignored, unless it says nothing about the text (`user`, `metadata`, …).
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from workbench.client import wire
from workbench.core.errors import ParameterError

if TYPE_CHECKING:
    from workbench.engine.extras import Extras

TOP = 20
"""Likeliest tokens that may be asked for at a place: OpenAI's limit of `top_logprobs`."""
CHOICES = 16
"""Answers of one request, all prompts together; each is a run."""
IDS = 64
BIASED = 1024

HONOURED = {
    "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "seed", "stop", "n", "temperature",
    "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs",
    "prompt_logprobs", "min_tokens", "stop_token_ids", "ignore_eos", "truncate_prompt_tokens", "speculation",
}  # fmt: skip
OF_COMPLETIONS = {"prompt", "echo"}
OF_CHATS = {"messages", "top_logprobs"}
SILENT = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "request_id", "cache_salt",
}  # fmt: skip
"""They say nothing about the text."""
_GRAMMAR = "decoding is not held to a grammar here"
_TOOLS = "the models here call no tools"
_SEARCH = "what is found by search does not follow the target's law"
_TEXT = "text is the only answer there is"
NOT_HONOURED: dict[str, tuple[str, tuple[Any, ...]]] = {
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
    "suffix": ("the models here continue a text, they do not fill gaps", ("",)),
    "prediction": ("drafts are chosen by speculation.method; prompt-lookup copies from the prompt", ()),
    "reasoning_effort": ("the models here do not reason before they answer", ("none",)),
    "verbosity": ("the models here have no such setting", ("medium",)),
    "bad_words": ("words of several tokens cannot be barred; logit_bias bars tokens", ([],)),
    "allowed_token_ids": ("logit_bias raises and lowers tokens", ([],)),
    "include_stop_str_in_output": ("the text ends before what stopped it", (False,)),
    "skip_special_tokens": ("special tokens have no text", (True,)),
    "spaces_between_special_tokens": ("special tokens have no text", (True,)),
    "return_tokens_as_token_ids": ("tokens are told as text and bytes", (False,)),
    "add_generation_prompt": ("a conversation always ends where the answer begins", (True,)),
    "continue_final_message": ("a conversation always ends where the answer begins", (False,)),
    "add_special_tokens": ("a prompt is read as the target's tokenizer reads it", (True,)),
    "chat_template": ("the target's own template is used", ()),
    "chat_template_kwargs": ("the target's own template is used", ({},)),
    "priority": ("requests take turns", (0,)),
    "logits_processors": ("code of a caller does not run here", ([],)),
    "echo": ("a conversation is not repeated; /v1/completions has echo", (False,)),
    "top_logprobs": ("completions give the number in logprobs", (0,)),
    "messages": ("they belong to /v1/chat/completions", ()),
    "prompt": ("it belongs to /v1/completions", ()),
}
"""Why a field is not honoured, and with which values it asks for nothing."""


def wrong(name: str, message: str, remedy: str) -> ParameterError:
    """The error of a field, with its name apart."""
    problem = ParameterError(message, remedy)
    problem.option = name
    return problem


def check_names(asked: dict[str, Any], chat: bool) -> None:
    """Refuse fields that nobody knows, and those that would be ignored.

    Raises:
        ParameterError: with the nearest known name, or the reason.
    """
    honoured = HONOURED | (OF_CHATS if chat else OF_COMPLETIONS)
    for name, value in asked.items():
        if name in honoured or name in SILENT:
            continue
        reason, neutral = NOT_HONOURED.get(name, ("", ()))
        if not reason:
            near = difflib.get_close_matches(name, honoured, n=1, cutoff=0.6)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(honoured))}."
            raise wrong(name[: wire.NAME_CHARS], f"There is no field {name[: wire.NAME_CHARS]!r}.", hint)
        if value not in neutral:
            raise wrong(name, f"{name} is not supported: {reason}.", "Leave it out.")


def extras(asked: dict[str, Any], chat: bool) -> Extras:
    """What is asked of a run beyond its sampling.

    Raises:
        ParameterError: a value that cannot be.
    """
    from workbench.engine.extras import Extras  # brings PyTorch

    n_top = asked.get("logprobs")
    if chat:
        tops = number(asked, "top_logprobs", 0, TOP, whole=True)
        n_top = int(tops or 0) if flag(asked, "logprobs") else None
        if tops and n_top is None:
            raise wrong("top_logprobs", "top_logprobs needs logprobs.", 'Send "logprobs": true as well.')
    elif isinstance(n_top, bool):
        n_top = 0 if n_top else None
    else:
        n_top = number(asked, "logprobs", 0, TOP, whole=True)
    prompt_top = number(asked, "prompt_logprobs", 0, TOP, whole=True)
    if not chat and flag(asked, "echo") and n_top is not None and prompt_top is None:
        prompt_top = n_top
    return Extras(
        min_tokens=int(number(asked, "min_tokens", 0, wire.INTEGERS - 1, whole=True) or 0),
        stop_tokens=_ids(asked),
        ignore_eos=flag(asked, "ignore_eos"),
        logit_bias=_bias(asked),
        presence_penalty=number(asked, "presence_penalty", -2, 2) or 0.0,
        frequency_penalty=number(asked, "frequency_penalty", -2, 2) or 0.0,
        logprobs=None if n_top is None else int(n_top),
        prompt_logprobs=None if prompt_top is None else int(prompt_top),
        truncate_prompt=_optional(number(asked, "truncate_prompt_tokens", 1, wire.INTEGERS - 1, whole=True)),
    )


def number(asked: dict[str, Any], name: str, least: float, most: float, whole: bool = False) -> float | None:
    """A number in a range, or None where it is not given.

    Raises:
        ParameterError: something else.
    """
    value = asked.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        upto = f" to {most:g}" if most < wire.INTEGERS - 1 else ""
        raise wrong(name, f"{name} is not a {kind} from {least:g}{upto}.", "Give one, or leave it out.")
    return value


def flag(asked: dict[str, Any], name: str) -> bool:
    """True or false; false where it is not given.

    Raises:
        ParameterError: neither.
    """
    value = asked.get(name, False)
    if not isinstance(value, bool):
        raise wrong(name, f"{name} is not true or false.", "Use one of them.")
    return value


def _optional(value: float | None) -> int | None:
    return None if value is None else int(value)


def _ids(asked: dict[str, Any]) -> tuple[int, ...]:
    ids = asked.get("stop_token_ids", [])
    if not isinstance(ids, list) or len(ids) > IDS or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise wrong("stop_token_ids", f"stop_token_ids is not a list of up to {IDS} token ids.", "Give one.")
    return tuple(ids)


def _bias(asked: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    problem = wrong(
        "logit_bias", f"logit_bias is not an object of up to {BIASED} token ids and numbers from -100 to 100.",
        'For example: {"50": -100}.',
    )  # fmt: skip
    value = asked.get("logit_bias", {})
    if not isinstance(value, dict) or len(value) > BIASED:
        raise problem
    for token, bias in value.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not token.isdecimal() or len(token) > 9 or not is_number or not -100 <= bias <= 100:
            raise problem
    return tuple((int(token), float(bias)) for token, bias in value.items())
