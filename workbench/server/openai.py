"""OpenAI's completions and chat completions: what is asked for, and what is answered. No HTTP here.

Reference: https://platform.openai.com/docs/api-reference; which fields there are, `workbench.server.fields` says. Ours:
`speculation` = `{"method", "params", "drafter"}`; `usage.speculation` has the figures.
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
from workbench.methods import known
from workbench.server import fields, logprobs
from workbench.server.guard import TooLargeError
from workbench.trace.events import Trace
from workbench.trace.metrics import summary

COMPLETION_TOKENS, CHAT_TOKENS = 16, 256
"""New tokens where nothing is said. 16 is OpenAI's own."""
FIGURES = ("rounds", "drafted", "tested", "accepted", "tau", "acceptance_rate", "draft_utilisation", "target_forwards",
           "draft_forwards", "tokens_per_second", "prefill_seconds", "draft_seconds", "verify_seconds",
           "overhead_share")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, understood.

    Attributes:
        starts: for each answer, keywords of `Workbench.start`; `n` answers of the first prompt come first.
        stop: strings that end the text.
        model: as the client named it; a folder by its name.
        chat: whether the answer is a message.
        stream: whether the answer is streamed.
        include_usage: whether a stream ends with its usage.
        echo: whether the prompt is repeated in front.
        n: answers to each prompt.
        id: of the answer.
        created: Unix time.
    """

    starts: list[dict[str, Any]]
    stop: tuple[str, ...]
    model: str
    chat: bool
    stream: bool
    include_usage: bool
    echo: bool = False
    n: int = 1
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))


def understand(client: Client, body: Any, chat: bool) -> Wanted:
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
    fields.check_names(asked, chat)
    found = fields.read(asked, chat)
    wishes = found.extras()
    if found.stream and found.prompt_logprobs is not None:
        raise fields.wrong("prompt_logprobs", "prompt_logprobs are not streamed.", "Leave stream out.")
    told = fields.flag("include_usage", found.stream_options.get("include_usage", False))
    sampling = {name: asked.get(name, default) for name, default in fields.SAMPLING.items()}
    usual = CHAT_TOKENS if chat else COMPLETION_TOKENS
    n_new = next((n for n in (found.max_completion_tokens, found.max_tokens) if n is not None), usual)
    options = Generation.options(client, found.speculation | {
        "params": wire.params(found.speculation.get("params")) | sampling,
        "target": found.model,
        "max_new_tokens": n_new,
        "seed": secrets.randbelow(2**31) if found.seed is None else found.seed,
        "stop": found.stop,
    })  # fmt: skip
    prompts = _prompts(found.prompt) if isinstance(found, fields.Completion) else [None]
    if isinstance(found, fields.Chat):
        messages = wire.messages(found.messages)
        prompts = [client.chat_prompt(messages, options["target"])]
        if pictures := wire.images_of(messages):
            options["images"] = pictures
            for name in ("prompt_logprobs", "truncate_prompt_tokens"):
                if name in asked:
                    raise fields.wrong(name, f"{name} is not to be had of a prompt with pictures.", "Leave it out.")
    n = found.n * len(prompts)
    if n > fields.CHOICES:
        raise fields.wrong("n", f"{n} answers are too many.", f"Ask for {fields.CHOICES} at most.")
    if wishes != type(wishes)():
        options["extras"] = wishes
    starts = [
        options | {"prompt": wire.prompt(prompt), "seed": (options["seed"] + i) % wire.INTEGERS}
        for prompt in prompts
        for i in range(found.n)
    ]
    return Wanted(starts, options["stop"], str(found.model or ""), chat, found.stream, told, found.echo, found.n)


def _prompts(value: Any) -> list[Any]:
    """One prompt, or several: OpenAI takes a string, token ids, or a list of either."""
    several = isinstance(value, list) and bool(value) and all(isinstance(one, str | list) for one in value)
    return value if several else [value]


# -- answers ----------------------------------------------------------------------------------------------------------


def whole(wanted: Wanted, runs: Sequence[Any]) -> dict[str, Any]:
    """The answer of a request that is not streamed, from runs that have ended."""
    kind = "chat.completion" if wanted.chat else "text_completion"
    choices, more = [], {}
    for i, run in enumerate(runs):
        trace, teller = run.trace, Teller(wanted, run)
        prompt = teller.prompt()
        told = {} if prompt is None else {"prompt_logprobs": logprobs.of_prompt(prompt)}
        choice: dict[str, Any] = {"index": i}
        if wanted.chat:
            choice["message"] = {"role": "assistant", "content": trace.text}
            more |= told
        else:
            choice["text"] = echoed(wanted, trace) + trace.text
            choice |= told
        choice |= {"logprobs": teller.more(), "finish_reason": finish_reason(trace)}
        choices.append(choice)
    traces = [run.trace for run in runs]
    return _envelope(wanted, traces[0], kind) | {"choices": choices, "usage": usage(traces, wanted.n)} | more


def echoed(wanted: Wanted, trace: Trace) -> str:
    """What stands before the generated text."""
    return trace.header.prompt if wanted.echo else ""


class Teller:
    """Log-probabilities of one answer, piece by piece: of each token once, so that a long stream costs no more.

    Args:
        wanted: says in which shape.
        run: its prompt was read.
    """

    def __init__(self, wanted: Wanted, run: Any) -> None:
        self._request: Any = getattr(run, "request", None)
        self._wishes = getattr(self._request, "extras", None)
        self._n = 0
        before = (run.trace.header.prompt_text[0], self.prompt() or []) if wanted.echo else None
        self._shape = logprobs.of_chat if wanted.chat else logprobs.OfCompletion(before, echoed(wanted, run.trace)).more

    def prompt(self) -> list[Any] | None:
        """Those of the prompt; None where none were asked for."""
        asked = self._wishes is not None and self._wishes.prompt_logprobs is not None
        return list(self._request.prompt_scores) if asked else None

    def more(self) -> dict[str, Any] | None:
        """Those of the tokens that came since the last call, the prompt's before the first where it is repeated."""
        if self._wishes is None or self._wishes.logprobs is None:
            return None
        new = self._request.scores[self._n :]
        self._n += len(new)
        return self._shape(new)


def piece(
    wanted: Wanted, index: int, trace: Trace, text: str, first: bool = False, last: bool = False, told: Any = None
) -> dict[str, Any]:
    """A part of a streamed answer."""
    if wanted.chat:
        delta = ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})
        content: dict[str, Any] = {"delta": delta}
    else:
        content = {"text": text}
    kind = "chat.completion.chunk" if wanted.chat else "text_completion"
    reason = finish_reason(trace) if last else None
    choices = [{"index": index, **content, "logprobs": told, "finish_reason": reason}]
    return _envelope(wanted, trace, kind) | {"choices": choices} | ({"usage": None} if wanted.include_usage else {})


def accounts(wanted: Wanted, traces: Sequence[Trace]) -> dict[str, Any]:
    """The last part of a streamed answer whose usage was asked for."""
    kind = "chat.completion.chunk" if wanted.chat else "text_completion"
    return _envelope(wanted, traces[0], kind) | {"choices": [], "usage": usage(traces, wanted.n)}


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


def usage(traces: Sequence[Trace], n: int = 1) -> dict[str, Any]:
    """Tokens, and the figures of the speculation; "prediction tokens" are OpenAI's name for drafted ones.

    Tokens are summed over the answers, a prompt's counted once for all of its answers; two prompts that are equal are
    two prompts. The figures are those of the one answer; of several, a list of theirs is in `runs`.

    Args:
        traces: of the answers; those to one prompt stand together.
        n: answers to each prompt.
    """
    figures = [summary(trace) for trace in traces]
    n_prompt = sum(len(trace.header.prompt_tokens) for trace in traces[::n])
    n_new = sum(one["tokens"] for one in figures)
    told = [_speculation(trace, one) for trace, one in zip(traces, figures, strict=True)]
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(one["accepted"] for one in figures),
            "rejected_prediction_tokens": sum(one["tested"] - one["accepted"] for one in figures),
        },
        "speculation": told[0] if len(told) == 1 else {"runs": told},
    }


def _speculation(trace: Trace, figures: dict[str, Any]) -> dict[str, Any]:
    method = trace.rounds[-1].method if trace.rounds else trace.header.method
    return {
        "method": method,
        "promise": trace.header.promise,
        "drafter": trace.header.drafter,
        "params": _in_force(trace.header.method, trace.header.params),
        "seed": trace.header.seed,
    } | {name: figures[name] for name in FIGURES}


def _in_force(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that act: not those of policies, growers and verifiers that were not chosen."""
    try:
        specs = {**known.sampling(), **known.get(method).params}
    except UnknownNameError:  # a method of another process
        return params
    return {name: value for name, value in params.items() if name not in specs or specs[name].acts(params)}


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
    param = getattr(problem, "option", "") or None
    body = {"message": message, "type": kind, "param": param, "code": told["kind"], "remedy": told["remedy"]}
    return status, {"error": body}


def sayable(text: str, stops: tuple[str, ...], since: int = 0) -> str:
    r"""The beginning of a growing text that no stop string can take back any more.

    Args:
        text: so far.
        stops: what ends it.
        since: stop strings that end before so many characters do not count.

    Example:
        >>> sayable("one two\n", ("\n\n",)), sayable("one STOP two", ("STOP",))
        ('one two', 'one ')
    """
    ends = (text.find(stop, max(0, since - len(stop) + 1)) for stop in stops)
    text = text[: min((at for at in ends if at >= 0), default=len(text))]
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held]
