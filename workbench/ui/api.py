"""API of the app: calls of `workbench.client.Workbench` as Gradio endpoints, for `Workbench(url)`, curl and MCP.

Every endpoint answers with a JSON object; the answer to a failed call is `{"error": {"kind", "message", "remedy"}}`.
The docstrings of `Client`, `RunHandle` and `Endpoints` are the text of the API page and of the MCP tools. Simple calls,
whose answer is the result itself, have no code here: `workbench.client.protocol` declares them.
"""

# Gradio reads the annotations of the endpoints at run time, hence no `from __future__ import annotations` here.

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import gradio as gr
from gradio.context import Context

from workbench.client import Client, RunHandle, wire
from workbench.client.calls import declaration_of
from workbench.client.follow import KEEP_ALIVE_S, UPDATES_PER_SECOND, follow
from workbench.client.requests import (
    ChangeRequest,
    ComparisonRequest,
    Control,
    DrafterStateRequest,
    Generation,
    RecommendationRequest,
    RunRequest,
    UpdateRequest,
)
from workbench.core.errors import WorkbenchError
from workbench.server.access_control import is_from_here, is_user_scope
from workbench.trace.events import Trace
from workbench.trace.metrics import summary
from workbench.ui.connected_work import while_connected
from workbench.ui.endpoint import Answer, EndpointBase, json_endpoint, streaming_endpoint, user_key
from workbench.ui.jobs import end

LEASE_S = 10.0
"""Time in seconds after which a run from the endpoint `start` is ended if no request asks for its rounds.

A stream notices sooner that its client has disconnected.
"""


def add(client: Client, kind: type[EndpointBase] | None = None) -> None:
    """Register the endpoints of the app's API. Call this inside the app's `gr.Blocks`.

    Args:
        client: a `workbench.client.Workbench`, or anything with the same methods.
        kind: class that defines the endpoints; None: `Endpoints`.
    """
    endpoints = (kind or Endpoints)(client)
    for name in endpoints.names:
        gr.api(getattr(endpoints, name), api_name=name, concurrency_limit=None)  # pyright: ignore[reportPrivateImportUsage]
    if Context.root_block is not None:
        Context.root_block.api_open = False  # everything through the queue, which answers invalid calls with an error


def scope_of(request: gr.Request) -> dict[str, Any]:
    """Return the client address and the headers of a request, even one from Gradio's queue, as an ASGI scope."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
    return {"client": (request.client.host, 0) if request.client else None, "headers": headers}


def is_user_request(request: gr.Request) -> bool:
    """Return whether a request may come from the user of this machine, even if it came through Gradio's queue."""
    original = getattr(request, "request", None)
    return is_user_scope(getattr(original, "scope", {}))


class Endpoints(EndpointBase, protocol=Client):
    """Endpoints of the app's API: the calls of the interface `Client`, and the calls that this class defines."""

    @json_endpoint(declaration_of(Client.load).request, "loaded")
    def load(self, **options: Any) -> Any:
        self._client.load(**options)
        return self._client.loaded_models()

    @json_endpoint(declaration_of(Client.unload).request, "loaded")
    def unload(self, target: str | None, request: gr.Request) -> Any:
        if not (is_from_here(scope_of(request)) and is_user_request(request)):
            raise WorkbenchError(
                "Models can be unloaded only from the machine the app runs on.",
                "Idle models are unloaded automatically.",
            )
        self._client.unload(target or "")
        return self._client.loaded_models()

    # -- runs ----------------------------------------------------------------------------------------------------

    @json_endpoint(Generation, "")
    def start(self, request: gr.Request, **options: Any) -> Answer:
        """Start a generation and return the run's id. Poll `since` for its rounds; a run without polls is cancelled."""
        run = self._client.start(**options, user=user_key(request), lease_s=LEASE_S)
        return {"run": run.id, "lease_s": LEASE_S}

    @json_endpoint(UpdateRequest, "")
    def since(self, run: str, number: int) -> Answer:
        """Return a run's state, its trace header, its rounds from number `number` on, and after its end the footer."""
        return wire.scrub_update(self._client.run(run).since(number))

    @json_endpoint(RunRequest, "")
    def trace(self, run: str) -> Answer:
        """Return the whole trace of a run so far: header, rounds, footer, and measurements such as τ."""
        return _whole(self._client.run(run))

    @json_endpoint(ChangeRequest, "")
    def change(self, run: str, **options: Any) -> Answer:
        handle = self._client.run(run)
        handle.change(**options)
        return {"run": handle.id, "state": handle.state}

    @json_endpoint(DrafterStateRequest, "")
    def memory(self, run: str, action: str, data: bytes | None) -> Answer:
        return wire.state_to_wire(self._client.run(run).memory(action, data))

    @streaming_endpoint(RunRequest)
    async def explain(self, run: str) -> AsyncGenerator[Answer, None]:
        """Return the attribution of a run's text to its images, token by token.

        During the computation the progress is streamed (`done`, 0 to 1); the last answer has the result. The
        computation stops when the client disconnects.
        """
        handle = await self._do(lambda: self._client.run(run))
        messages = while_connected(
            lambda: {"attribution": handle.explain()},
            lambda: {"run": handle.id, "state": handle.state, "done": handle.explain_progress},
            self._do,
        )
        async with contextlib.aclosing(messages):
            async for message in messages:
                yield message

    @json_endpoint(Control, "")
    def control(self, run: str, action: str) -> Answer:
        """Pause a run, resume it, run a single round of it, or cancel it."""
        handle = self._client.run(run)
        getattr(handle, action)()
        return {"run": handle.id, "state": handle.state}

    @streaming_endpoint(Generation, without=("paused",))
    async def generate(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Generate a text and return the whole trace: every drafted, accepted or rejected token, and measurements.

        During the generation the run's state is streamed; the last answer is the trace. The run is cancelled when the
        client disconnects.
        """
        async with self._running(request, options) as run:
            last_message_s = 0.0
            while not run.ended:
                if time.monotonic() - last_message_s >= KEEP_ALIVE_S:
                    yield {"run": run.id, "state": run.state}
                    last_message_s = time.monotonic()
                await asyncio.sleep(1 / UPDATES_PER_SECOND)
            yield await self._do(lambda: _whole(run))

    @streaming_endpoint(ComparisonRequest)
    def compare(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Compare methods with plain decoding by timed runs: one at a time on the device, interleaved and repeated.

        During the comparison its progress is streamed. The last answer has the result for each compared method:
        measurements with confidence intervals, cost per token, break-even acceptance, emission times of the tokens, and
        whether the texts are equal.
        """
        return self._stream_steps(self._client.stream_comparison, options, request, _plain)

    @streaming_endpoint(ComparisonRequest, text=True)
    def comparing(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Compare methods with plain decoding; each message is a JSON text with the newly finished runs."""
        from workbench.bench.steps import StepEncoder  # imports PyTorch

        return self._stream_steps(self._client.stream_comparison, options, request, StepEncoder().message)

    @streaming_endpoint(RecommendationRequest, text=True)
    def recommending(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Measure in the background which method is fastest on the given prompts. Other runs have priority.

        Each message is a JSON text with the progress. Its key `found` has the ranking of the methods so far, the reason
        why the best method is fastest, and the command that uses this method.
        """
        return self._stream_steps(self._client.stream_recommendation, options, request, _plain)

    async def _stream_steps(
        self, begin: Callable[..., Any], options: dict[str, Any], request: gr.Request, encode: Callable[[Any], Answer]
    ) -> AsyncGenerator[Answer, None]:
        """Start a measurement and yield its steps, converted by `encode`. It ends when the client disconnects."""
        steps = await self._do(lambda: begin(**options, user=user_key(request)))
        try:
            while (step := await self._do(lambda: next(steps, None))) is not None:
                yield await self._do(lambda step=step: _scrubbed(encode(step)))
        finally:
            threading.Thread(target=end, args=(steps,), daemon=True).start()

    @streaming_endpoint(Generation, text=True)
    async def stream(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Start a generation and stream its rounds. The run is cancelled when the client disconnects.

        Each message is a JSON text with the new rounds, in the format of the endpoint `since`. `{}` is a keep-alive
        message.
        """
        async with self._running(request, options) as run:
            async for update in follow(run):
                yield update

    @streaming_endpoint(RunRequest, text=True)
    async def follow(self, run: str) -> AsyncGenerator[Answer, None]:
        """Stream all rounds of an existing run, from the first one on. The run continues when the client disconnects.

        Each message is a JSON text with the new rounds, in the format of the endpoint `since`. `{}` is a keep-alive
        message.
        """
        handle = await self._do(lambda: self._client.run(run))
        async for update in follow(handle):
            yield update

    @contextlib.asynccontextmanager
    async def _running(self, request: gr.Request, options: dict[str, Any]) -> AsyncGenerator[RunHandle, None]:
        """Context manager that starts a run, and cancels it when the client that reads its stream disconnects."""
        run = await self._do(lambda: self._client.start(**options, user=user_key(request)))
        try:
            yield run
        finally:
            run.cancel()


def _plain(step: Any) -> Answer:
    return step.to_wire()


def _scrubbed(step: dict[str, Any]) -> dict[str, Any]:
    """Remove paths and access tokens from the error messages in one step of a measurement."""
    for lane in (step.get("comparison") or {}).get("lanes", ()):
        lane["error"] = wire.scrub(lane["error"])
    if update := step.get("news"):
        update["errors"] = [wire.scrub(error) for error in update["errors"]]
    if ranking := step.get("found"):
        step = step | {
            "found": ranking | {"failed": {name: wire.scrub(reason) for name, reason in ranking["failed"].items()}}
        }
    return step | {"waiting": wire.scrub(step["waiting"])}


def _figures(trace: Trace) -> dict[str, Any]:
    wire_trace = trace.to_wire()
    wire_trace["footer"] |= {"error": wire.scrub(trace.footer.error)}
    return wire_trace | {"text": trace.text, "metrics": summary(trace)}


def _whole(run: RunHandle) -> dict[str, Any]:
    """Return the trace of a run with measurements such as τ; if there is no trace, raise the run's error."""
    if run.trace is None:
        if run.ended:
            run.wait()  # raises the run's error
        raise WorkbenchError("The run has no rounds yet.", "Try again after its first round.")
    return {"run": run.id, "state": run.state, "trace": _figures(run.trace)}
