"""Requests and answers in the format of OpenAI's completions and chat completions, without HTTP.

Reference: https://platform.openai.com/docs/api-reference; for the supported fields see `workbench.server.fields`. Our
additions: `speculation` = `{"method", "params", "drafter"}` in a request, and `usage.speculation` in an answer, which
has acceptance rate, rounds and other measurements of the run.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.client import Client, wire
from workbench.client.requests import Generation
from workbench.core.errors import (
    CapacityError,
    ModelError,
    OverdueError,
    ParameterError,
    TokenizerMismatchError,
    UnknownNameError,
    WorkbenchError,
)
from workbench.methods import method_info
from workbench.server import fields, logprobs
from workbench.server.guard import TooLargeError
from workbench.trace.events import Trace
from workbench.trace.metrics import summary

COMPLETION_TOKENS, CHAT_TOKENS = 16, 256
"""Default numbers of new tokens for completions and for chat completions. 16 is OpenAI's default."""
FIGURES = ("rounds", "drafted", "tested", "accepted", "tau", "acceptance_rate", "draft_utilisation", "target_forwards",
           "draft_forwards", "tokens_per_second", "prefill_seconds", "draft_seconds", "verify_seconds",
           "overhead_share")  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Request for completions or chat completions that has been checked.

    Attributes:
        start_options: keyword arguments of `Workbench.start`, one dict per answer; the `n` answers to the first prompt
            come first.
        stop: strings that end the text.
        model: name of the model from the request.
        chat: whether the request is for a chat completion.
        stream: whether the answer is streamed.
        include_usage: whether a stream ends with a usage chunk.
        echo: whether the answer starts with the prompt.
        n: number of answers per prompt.
        id: id of the answer.
        created: Unix time of the request, in seconds.
    """

    start_options: list[dict[str, Any]]
    stop: tuple[str, ...]
    model: str
    chat: bool
    stream: bool
    include_usage: bool
    echo: bool = False
    n: int = 1
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))


def parse_request(client: Client, body: Any, chat: bool) -> CompletionRequest:
    """Check the body of a request for completions or chat completions.

    Args:
        client: a `Workbench`.
        body: JSON body of the request.
        chat: whether the request came to `/v1/chat/completions`.

    Raises:
        WorkbenchError: a field is invalid or not supported.
    """
    if not isinstance(body, dict):
        raise ParameterError("The request is not a JSON object.", "Send a JSON object.")
    present = {name: value for name, value in body.items() if value is not None}
    fields.check_names(present, chat)
    parsed = fields.read(present, chat)
    extras = parsed.extras()
    if parsed.stream and parsed.prompt_logprobs is not None:
        raise fields.field_error("prompt_logprobs", "prompt_logprobs cannot be streamed.", "Leave out stream.")
    include_usage = fields.flag("include_usage", parsed.stream_options.get("include_usage", False))
    sampling = {name: present.get(name, default) for name, default in fields.SAMPLING.items()}
    params = wire.check_params(parsed.speculation.get("params")) | sampling
    defaults = {"max_new_tokens": CHAT_TOKENS if chat else COMPLETION_TOKENS, "seed": secrets.randbelow(2**31)}
    options = Generation.options(client, {"prompt": "", **defaults, **parsed.start_options(), "params": params})
    prompts = _prompts(parsed.prompt) if isinstance(parsed, fields.Completion) else [None]
    if isinstance(parsed, fields.Chat):
        messages = wire.check_messages(parsed.messages)
        prompts = [client.chat_prompt(messages, options["target"])]
        if pictures := wire.images_of(messages):
            options["images"] = pictures
            for name in ("prompt_logprobs", "truncate_prompt_tokens"):
                if name in present:
                    raise fields.field_error(
                        name, f"{name} is not supported for a prompt with images.", "Leave out this field."
                    )
    n = parsed.n * len(prompts)
    if n > fields.CHOICES:
        raise fields.field_error(
            "n", f"{n} answers per request are too many.", f"Request at most {fields.CHOICES} answers."
        )
    if extras != type(extras)():
        options["extras"] = extras
    starts = [
        options | {"prompt": wire.check_prompt(prompt), "seed": (options["seed"] + i) % wire.INTEGERS}
        for prompt in prompts
        for i in range(parsed.n)
    ]
    model = str(parsed.model or "")
    return CompletionRequest(starts, options["stop"], model, chat, parsed.stream, include_usage, parsed.echo, parsed.n)


def _prompts(value: Any) -> list[Any]:
    """Return a list of prompts: OpenAI accepts a string, token ids, or a list of either."""
    is_list_of_prompts = isinstance(value, list) and bool(value) and all(isinstance(item, str | list) for item in value)
    return value if is_list_of_prompts else [value]


# -- answers ----------------------------------------------------------------------------------------------------------


def full_answer(request: CompletionRequest, runs: Sequence[Any]) -> dict[str, Any]:
    """Return the complete answer to a request without streaming, from its ended runs."""
    kind = "chat.completion" if request.chat else "text_completion"
    choices, top_level = [], {}
    for i, run in enumerate(runs):
        trace, scores = run.trace, LogprobStream(request, run)
        prompt = scores.prompt()
        extra = {} if prompt is None else {"prompt_logprobs": logprobs.of_prompt(prompt)}
        choice: dict[str, Any] = {"index": i}
        if request.chat:
            choice["message"] = {"role": "assistant", "content": trace.text}
            top_level |= extra
        else:
            choice["text"] = echo_text(request, trace) + trace.text
            choice |= extra
        choice |= {"logprobs": scores.more(), "finish_reason": finish_reason(trace)}
        choices.append(choice)
    traces = [run.trace for run in runs]
    return _envelope(request, traces[0], kind) | {"choices": choices, "usage": usage(traces, request.n)} | top_level


def echo_text(request: CompletionRequest, trace: Trace) -> str:
    """Return the text to send before the generated text: the prompt if the field `echo` is set, else ""."""
    return trace.header.prompt if request.echo else ""


class LogprobStream:
    """Log-probabilities of one streamed answer, in chunks.

    Each token is converted only once, so the time is linear in the answer's length.

    Args:
        request: the request, which determines the format of the log-probabilities.
        run: a run that has finished prefill.
    """

    def __init__(self, request: CompletionRequest, run: Any) -> None:
        self._request: Any = getattr(run, "request", None)
        self._extras = getattr(self._request, "options", None)
        self._n = 0
        before = (run.trace.header.prompt_text[0], self.prompt() or []) if request.echo else None
        self._shape = (
            logprobs.of_chat
            if request.chat
            else logprobs.CompletionLogprobs(before, echo_text(request, run.trace)).more
        )

    def prompt(self) -> list[Any] | None:
        """Return the log-probabilities of the prompt; None if the client did not request them."""
        is_requested = self._extras is not None and self._extras.prompt_logprobs is not None
        return list(self._request.prompt_logprobs) if is_requested else None

    def more(self) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens since the last call.

        With the field `echo`, the first call also returns those of the prompt.
        """
        if self._extras is None or self._extras.logprobs is None:
            return None
        new = self._request.logprobs[self._n :]
        self._n += len(new)
        return self._shape(new)


def stream_chunk(
    request: CompletionRequest,
    index: int,
    trace: Trace,
    text: str,
    first: bool = False,
    last: bool = False,
    token_logprobs: Any = None,
) -> dict[str, Any]:
    """Return a chunk of a streamed answer in OpenAI's format, with the log-probabilities `token_logprobs`."""
    if request.chat:
        delta = ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})
        content: dict[str, Any] = {"delta": delta}
    else:
        content = {"text": text}
    kind = "chat.completion.chunk" if request.chat else "text_completion"
    reason = finish_reason(trace) if last else None
    choices = [{"index": index, **content, "logprobs": token_logprobs, "finish_reason": reason}]
    return _envelope(request, trace, kind) | {"choices": choices} | ({"usage": None} if request.include_usage else {})


def usage_chunk(request: CompletionRequest, traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the last chunk of a streamed answer, which has the usage, for a request with `include_usage`."""
    kind = "chat.completion.chunk" if request.chat else "text_completion"
    return _envelope(request, traces[0], kind) | {"choices": [], "usage": usage(traces, request.n)}


def _envelope(request: CompletionRequest, trace: Trace, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if request.chat else "cmpl"
    return {
        "id": f"{prefix}-{request.id}",
        "object": kind,
        "created": request.created,
        "model": request.model or trace.header.target,
        "system_fingerprint": f"workbench-{trace.header.workbench}",
    }


def finish_reason(trace: Trace) -> str:
    """Return the finish reason of a run in OpenAI's terms: "stop" or "length"."""
    return "length" if trace.footer.reason == "length" else "stop"


def usage(traces: Sequence[Trace], n: int = 1) -> dict[str, Any]:
    """Return the usage of a request: numbers of tokens, and measurements of speculative decoding.

    "Prediction tokens" are OpenAI's name for drafted tokens. Tokens are summed over the answers. A prompt's tokens
    count once for all of its answers, and equal prompts count separately. The measurements of a single answer are in
    `speculation`; those of several answers are in the list `speculation.runs`.

    Args:
        traces: traces of the answers, grouped by prompt.
        n: number of answers per prompt.
    """
    figures = [summary(trace) for trace in traces]
    n_prompt = sum(len(trace.header.prompt_tokens) for trace in traces[::n])
    n_new = sum(figures_of_answer["tokens"] for figures_of_answer in figures)
    speculation = [
        _speculation(trace, figures_of_answer) for trace, figures_of_answer in zip(traces, figures, strict=True)
    ]
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(figures_of_answer["accepted"] for figures_of_answer in figures),
            "rejected_prediction_tokens": sum(
                figures_of_answer["tested"] - figures_of_answer["accepted"] for figures_of_answer in figures
            ),
        },
        "speculation": speculation[0] if len(speculation) == 1 else {"runs": speculation},
    }


def _speculation(trace: Trace, figures: dict[str, Any]) -> dict[str, Any]:
    method = trace.rounds[-1].method if trace.rounds else trace.header.method
    return {
        "method": method,
        "promise": trace.header.promise,
        "drafter": trace.header.drafter,
        "params": _effective_params(trace.header.method, trace.header.params),
        "seed": trace.header.seed,
    } | {name: figures[name] for name in FIGURES}


def _effective_params(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method that have an effect with the chosen draft policy, tree builder and verifier."""
    try:
        specs = {**method_info.sampling(), **method_info.get(method).params}
    except UnknownNameError:  # the method is registered only in another process
        return params
    return {name: value for name, value in params.items() if name not in specs or specs[name].has_effect(params)}


def error(problem: BaseException) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of an error in OpenAI's format.

    The remedy is part of the message, and also in a separate field.
    """
    entry = wire.error_to_wire(problem)
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
    message = f"{entry['message']} {entry['remedy']}".strip()
    param = getattr(problem, "option", "") or None
    body = {"message": message, "type": kind, "param": param, "code": entry["kind"], "remedy": entry["remedy"]}
    return status, {"error": body}


def stable_prefix(text: str, stops: tuple[str, ...], since: int = 0) -> str:
    r"""Return the prefix of a partly generated text that no stop string can remove any more.

    Args:
        text: text so far.
        stops: stop strings.
        since: number of characters at the start of the text, in which stop strings are ignored.

    Example:
        >>> stable_prefix("one two\n", ("\n\n",)), stable_prefix("one STOP two", ("STOP",))
        ('one two', 'one ')
    """
    ends = (text.find(stop, max(0, since - len(stop) + 1)) for stop in stops)
    text = text[: min((end for end in ends if end >= 0), default=len(text))]
    n_partial = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - n_partial]
