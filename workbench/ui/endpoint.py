"""Gradio endpoints built from declared API calls, which define arguments, help texts and checks.

Errors become answers.
"""

# Gradio reads the annotations of the endpoints at run time, hence no `from __future__ import annotations` here.

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr

from workbench.client import Client, wire
from workbench.client.calls import Call, Request, calls_of, read_docstring
from workbench.core.panics import convert_panics
from workbench.server.pagecalls import CallCharges, CallLimiter, make_charge_call
from workbench.service import users
from workbench.service.request_context import measure_cpu_time

THREADS = 16
"""Number of threads for API calls, which may wait for files or models and must not block other requests."""

Answer = dict[str, Any]


def user_key(request: gr.Request | None) -> str:
    """Return an opaque key of the user of a request.

    The key is made from the client address, and the session or the user name in a header.
    """
    if request is None:
        return users.user_key()
    address = request.client.host if request.client else ""
    return users.user_key(address, request.headers.get("x-workbench-user") or request.session_hash)


class EndpointBase:
    """Base class for the endpoints of an API, with a `Client` and a thread pool for its calls.

    Calls through endpoints and calls from pages count toward the same limits. A subclass gets an endpoint for each call
    of its `protocol` class, unless it defines the endpoint itself.

    Attributes:
        names: names of the endpoints, in the order of the API page.
    """

    names: tuple[str, ...] = ()

    def __init_subclass__(cls, protocol: type | None = None) -> None:
        """Add an endpoint for each API call that `protocol` declares and the subclass does not define itself."""
        declared = {call.endpoint: call for call in calls_of(protocol) if call.endpoint} if protocol is not None else {}
        own = [name for name, value in vars(cls).items() if callable(value) and not name.startswith("_")]
        for name, call in declared.items():
            if not hasattr(cls, name):
                setattr(cls, name, _call_endpoint(call))
        cls.names = tuple(dict.fromkeys([*cls.names, *declared, *own]))

    def __init__(self, client: Client) -> None:
        self._client = client
        self._bill, self._limiter = CallCharges(make_charge_call(client)), CallLimiter()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="workbench-api")

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Run a blocking call in a thread, because the backend may still be starting or have to read files."""

        def call_without_panics() -> Any:
            with convert_panics(), measure_cpu_time():
                return work()

        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, call_without_panics)


def _call_endpoint(call: Call) -> Callable[..., Any]:
    """Return the Gradio endpoint of a declared API call."""

    def endpoint(self: EndpointBase, **options: Any) -> Any:
        return call.answer(self._client, options)

    endpoint.__name__ = call.endpoint
    return json_endpoint(call.request, call.key)(endpoint)


def json_endpoint(kind: type[Request], key: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that turns a method into a Gradio endpoint.

    The endpoint checks the arguments and calls the method in a thread.

    Args:
        kind: the request class. A method with a parameter `request` also gets Gradio's request. A method without a
            docstring gets the docstring of the request class.
        key: key of the method's result in the answer; None: the method's name; empty: the result itself is the answer.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Awaitable[Answer]]:
        name, takes_request = function.__name__ if key is None else key, _takes_request(function)

        async def endpoint(host: EndpointBase, asked: dict[str, Any], request: gr.Request | None) -> Answer:
            user, extra = user_key(request), {"request": request} if takes_request else {}
            try:
                async with host._bill.charge(user), host._limiter.hold(user):
                    result = await host._do(lambda: function(host, **extra, **kind.options(host._client, asked)))
            except Exception as problem:
                return {"error": wire.error_to_wire(problem)}
            return {name: result} if name else result

        signature = _signature(kind, (), Answer)

        async def wrapped(*args: Any, **named: Any) -> Answer:
            return await endpoint(*_split_arguments(signature, args, named))

        return _with_signature(wrapped, function, signature, kind)

    return decorate


def streaming_endpoint(
    kind: type[Request], *, without: Collection[str] = (), text: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that turns a generator method into a streaming Gradio endpoint with checked arguments.

    Args:
        kind: the request class, as for `json_endpoint`.
        without: fields of the request class that this endpoint does not have.
        text: whether to send each message as a JSON text, which Gradio compares and sends as a whole; it compares
            nested data value by value.
    """
    encode: Callable[[Answer], Any] = json.dumps if text else lambda message: message

    def decorate(function: Callable[..., AsyncGenerator[Answer, None]]) -> Callable[..., AsyncIterator[Any]]:
        takes_request = _takes_request(function)

        async def endpoint(
            host: EndpointBase, asked: dict[str, Any], request: gr.Request | None
        ) -> AsyncGenerator[Any, None]:
            extra = {"request": request} if takes_request else {}
            try:
                async with host._bill.charge(user_key(request)):
                    options = await host._do(lambda: kind.options(host._client, asked))
                async with contextlib.aclosing(function(host, **extra, **options)) as messages:
                    async for message in messages:
                        yield encode(message)
            except Exception as problem:
                yield encode({"error": wire.error_to_wire(problem)})

        signature = _signature(kind, without, AsyncIterator[str if text else Answer])

        async def wrapped(*args: Any, **named: Any) -> AsyncIterator[Any]:
            async with contextlib.aclosing(endpoint(*_split_arguments(signature, args, named))) as messages:
                async for message in messages:
                    yield message

        return _with_signature(wrapped, function, signature, kind)

    return decorate


def _takes_request(function: Callable[..., Any]) -> bool:
    """Return whether a method has a parameter for Gradio's request."""
    return "request" in inspect.signature(function).parameters


def _signature(kind: type[Request], without: Collection[str], returns: Any) -> inspect.Signature:
    """Return a signature with the fields of a request class as parameters.

    The parameter for Gradio's request comes after the required parameters.
    """
    required, optional = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)], []
    for name, field in kind.model_fields.items():
        if name not in without:
            default = inspect.Parameter.empty if field.is_required() else field.default
            parameter = inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind.json_form(name).type, default=default
            )
            (required if field.is_required() else optional).append(parameter)
    caller = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request, default=None)
    return inspect.Signature([*required, caller, *optional], return_annotation=returns)


def _split_arguments(
    signature: inspect.Signature, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, dict[str, Any], gr.Request | None]:
    """Split the arguments of an endpoint call into `self`, the request's fields by name, and Gradio's request."""
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    return arguments.pop("self"), arguments, arguments.pop("request")


def _with_signature(
    wrapped: Callable[..., Any], function: Callable[..., Any], signature: inspect.Signature, kind: type[Request]
) -> Callable[..., Any]:
    """Copy the name, signature and help text of `function` to `wrapped`, and return `wrapped`.

    Gradio, the API page and MCP show them.
    """
    functools.update_wrapper(wrapped, function)
    del wrapped.__wrapped__  # type: ignore[attr-defined]
    arguments = [name for name in signature.parameters if name not in ("self", "request")]
    help_lines = "\n".join(f"    {name}: {kind.model_fields[name].description}" for name in arguments)
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {name: p.annotation for name, p in signature.parameters.items() if name != "self"} | {
        "return": signature.return_annotation
    }
    summary, _ = read_docstring(function if function.__doc__ else kind)
    wrapped.__doc__ = f"{summary}\n\nArgs:\n{help_lines}\n" if help_lines else summary
    return wrapped
