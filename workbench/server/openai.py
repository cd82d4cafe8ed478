"""OpenAI's completions and chat completions: what is asked for, and what is answered. No HTTP here.

Reference: https://platform.openai.com/docs/api-reference. Fields of OpenAI that would change the text and that are not
supported are refused, not ignored. Ours: `speculation` = `{"method", "params", "drafter"}`, `top_k`, `min_p`,
`repetition_penalty`; `usage.speculation` has the figures.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from workbench.client import wire
from workbench.core.errors import (
    CapacityError,
    ModelError,
    OverdueError,
    ParameterError,
    TokenizerMismatchError,
    WorkbenchError,
)
from workbench.server.guard import TooLargeError
from workbench.trace.events import Trace
from workbench.trace.metrics import summary

COMPLETION_TOKENS, CHAT_TOKENS = 16, 256
"""New tokens where nothing is said. 16 is OpenAI's own."""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Fields that are understood only where they ask for nothing."""
FIGURES = ("rounds", "drafted", "tested", "accepted", "tau", "acceptance_rate", "draft_utilisation", "target_forwards",
           "draft_forwards", "tokens_per_second", "prefill_seconds", "draft_seconds", "verify_seconds",
           "overhead_share")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, understood.

    Attributes:
        options: keywords of `Workbench.start`.
        model: as the client named it.
        chat: whether the answer is a message.
        stream: whether the answer is streamed.
        include_usage: whether a stream ends with its usage.
        id: of the answer.
        created: Unix time.
    """

    options: dict[str, Any]
    model: str
    chat: bool
    stream: bool
    include_usage: bool
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))


def understand(client: Any, body: Any, chat: bool) -> Wanted:
    """Check a request.

    Args:
        client: a `Workbench`.
        body: the request's JSON.
        chat: whether it came to `/v1/chat/completions`.

    Raises:
        WorkbenchError: something in it is wrong or not supported.
    """
    if not isinstance(body, dict):
        raise ParameterError("The request is not an object.", "Send a JSON object.")
    asked = {name: value for name, value in body.items() if value is not None}
    for name, neutral in NEUTRAL.items():
        if name in asked and asked[name] not in neutral:
            raise ParameterError(f"{name} is not supported.", "Leave it out.")
    stream = _flag(asked, "stream")
    usage = asked.get("stream_options", {})
    if not isinstance(usage, dict):
        raise ParameterError("stream_options is not an object.", 'For example: {"include_usage": true}.')
    speculation = asked.get("speculation", {})
    if not isinstance(speculation, dict) or not set(speculation) <= {"method", "params", "drafter"}:
        raise ParameterError("speculation is not understood.", "It is an object with method, params and drafter.")
    model = asked.get("model")
    sampling = {name: asked.get(name, default) for name, default in SAMPLING.items()}
    given = "max_completion_tokens" if "max_completion_tokens" in asked else "max_tokens"
    options = wire.start_options(client, {
        "prompt": asked.get("prompt", "") if not chat else None,
        "method": speculation.get("method"),
        "params": wire.params(speculation.get("params")) | sampling,
        "target": model,
        "drafter": speculation.get("drafter"),
        "max_new_tokens": asked.get(given, CHAT_TOKENS if chat else COMPLETION_TOKENS),
        "seed": asked.get("seed", secrets.randbelow(2**31)),
        "stop": asked.get("stop"),
    })  # fmt: skip
    if chat:
        messages = wire.messages(asked.get("messages"))
        options["prompt"] = client.chat_prompt(messages, options["target"])
        if pictures := wire.images_of(messages):
            options["images"] = pictures
    return Wanted(options, str(model or ""), chat, stream, _flag(usage, "include_usage"))


def _flag(asked: dict[str, Any], name: str) -> bool:
    value = asked.get(name, False)
    if not isinstance(value, bool):
        raise ParameterError(f"{name} is not true or false.", "Use one of them.")
    return value


# -- answers ----------------------------------------------------------------------------------------------------------


def whole(wanted: Wanted, trace: Trace) -> dict[str, Any]:
    """The answer of a request that is not streamed."""
    content = {"message": {"role": "assistant", "content": trace.text}} if wanted.chat else {"text": trace.text}
    kind = "chat.completion" if wanted.chat else "text_completion"
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason(trace)}
    return _envelope(wanted, trace, kind) | {"choices": [choice], "usage": usage(trace)}


def piece(wanted: Wanted, trace: Trace, text: str, first: bool = False, last: bool = False) -> dict[str, Any]:
    """A part of a streamed answer."""
    if wanted.chat:
        delta = ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})
        content: dict[str, Any] = {"delta": delta}
    else:
        content = {"text": text}
    kind = "chat.completion.chunk" if wanted.chat else "text_completion"
    reason = finish_reason(trace) if last else None
    choices = [{"index": 0, **content, "logprobs": None, "finish_reason": reason}]
    return _envelope(wanted, trace, kind) | {"choices": choices} | ({"usage": None} if wanted.include_usage else {})


def accounts(wanted: Wanted, trace: Trace) -> dict[str, Any]:
    """The last part of a streamed answer whose usage was asked for."""
    kind = "chat.completion.chunk" if wanted.chat else "text_completion"
    return _envelope(wanted, trace, kind) | {"choices": [], "usage": usage(trace)}


def _envelope(wanted: Wanted, trace: Trace, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if wanted.chat else "cmpl"
    return {
        "id": f"{prefix}-{wanted.id}",
        "object": kind,
        "created": wanted.created,
        "model": wanted.model or trace.header.target,
        "system_fingerprint": f"workbench-{trace.header.workbench}",
    }


def finish_reason(trace: Trace) -> str:
    """OpenAI's word for the end of a text."""
    return "length" if trace.footer.reason == "length" else "stop"


def usage(trace: Trace) -> dict[str, Any]:
    """Tokens, and the figures of the speculation; "prediction tokens" are OpenAI's name for drafted ones."""
    figures, n_prompt = summary(trace), len(trace.header.prompt_tokens)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": figures["tokens"],
        "total_tokens": n_prompt + figures["tokens"],
        "completion_tokens_details": {
            "accepted_prediction_tokens": figures["accepted"],
            "rejected_prediction_tokens": figures["tested"] - figures["accepted"],
        },
        "speculation": {
            "method": trace.rounds[-1].method if trace.rounds else trace.header.method,
            "promise": trace.header.promise,
            "drafter": trace.header.drafter,
            "params": trace.header.params,
            "seed": trace.header.seed,
        }
        | {name: figures[name] for name in FIGURES},
    }


def error(problem: BaseException) -> tuple[int, dict[str, Any]]:
    """Status and body of an error, in OpenAI's shape, with the remedy apart as well."""
    told = wire.error_to_wire(problem)
    status, kind = 400, "invalid_request_error"
    if isinstance(problem, CapacityError):
        status, kind = 429, "rate_limit_error"
    elif isinstance(problem, OverdueError):
        status, kind = 504, "timeout_error"
    elif isinstance(problem, TooLargeError):
        status = 413
    elif isinstance(problem, ModelError) and not isinstance(problem, TokenizerMismatchError):
        status = 404
    elif not isinstance(problem, WorkbenchError):
        status, kind = 500, "server_error"
    message = f"{told['message']} {told['remedy']}".strip()
    body = {"message": message, "type": kind, "param": None, "code": told["kind"], "remedy": told["remedy"]}
    return status, {"error": body}


def sayable(text: str, stops: tuple[str, ...]) -> str:
    r"""The beginning of a growing text that no stop string can take back any more.

    Example:
        >>> sayable("one two\n", ("\n\n",)), sayable("one STOP two", ("STOP",))
        ('one two', 'one ')
    """
    cut = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    text = text[:cut]
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held]
