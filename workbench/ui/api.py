"""The app's API: the calls of `workbench.client.Workbench` as Gradio endpoints, for `Workbench(url)`, curl and MCP.

Every endpoint answers with an object. What cannot be done is answered with `{"error": {"kind", "message", "remedy"}}`.
The docstrings of `Endpoints` are the text of the API page and of the MCP tools.
"""

# Gradio reads the annotations of the endpoints at run time, hence no `from __future__ import annotations` here.

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import gradio as gr
from gradio.context import Context

from workbench.client import Client, RunHandle, wire
from workbench.client.follow import SIGN_OF_LIFE_S, UPDATES_PER_SECOND, follow
from workbench.client.requests import (
    Changing,
    Comparing,
    Conditions,
    Control,
    Conversation,
    Generation,
    Loaded,
    Models,
    News,
    OfRun,
    Recommending,
    Remembering,
    Request,
    Target,
)
from workbench.core.errors import WorkbenchError
from workbench.server.door import is_from_here, marked
from workbench.trace.events import Trace
from workbench.trace.metrics import summary
from workbench.ui.endpoint import Answer, Host, answers, streams, user_key
from workbench.ui.heard import while_heard
from workbench.ui.jobs import end

LEASE_S = 10.0
"""A run of `start` that nobody asks after for so long is ended. That the reader of a stream left is noticed sooner."""


def add(client: Client) -> None:
    """Register the endpoints. Call inside the app's `gr.Blocks`.

    Args:
        client: a `workbench.client.Workbench`, or anything with the same methods.
    """
    endpoints = Endpoints(client)
    for name in NAMES:
        gr.api(getattr(endpoints, name), api_name=name, concurrency_limit=None)  # pyright: ignore[reportPrivateImportUsage]
    if Context.root_block is not None:
        Context.root_block.api_open = False  # everything through the queue, which answers wrong calls decently


def scope_of(request: gr.Request) -> dict[str, Any]:
    """Who asks and with which headers, as `workbench.server.door` reads them; also from Gradio's queue."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
    return {"client": (request.client.host, 0) if request.client else None, "headers": headers}


def is_users(request: gr.Request) -> bool:
    """Whether a request may come from this machine's user, also from Gradio's queue."""
    asked = getattr(request, "request", None)
    return marked(getattr(asked, "scope", {}))


class Endpoints(Host):
    """The endpoints over a client: what each takes, its request says."""

    # -- what there is -------------------------------------------------------------------------------------------

    @answers(Request)
    def targets(self) -> Any:
        """List the models that can be verified against."""
        return self._client.targets()

    @answers(Target)
    def drafters(self, target: str | None) -> Any:
        """List the draft models, and for each whether it fits the target and why not."""
        return self._client.drafters(target)

    @answers(Models)
    def methods(self, target: str | None, drafter: str | None) -> Any:
        """List the methods: title, promise, paper, parameters, and whether each can run with these models.

        Those that cannot say why not.
        """
        return self._client.methods(target, drafter)

    @answers(Request)
    def sampling_params(self) -> Any:
        """List the parameters of sampling, which every method shares: range, default, meaning."""
        return self._client.sampling_params()

    @answers(Request)
    def presets(self) -> Any:
        """List prompts to start with, one for each kind of text that a drafter likes or dislikes."""
        return self._client.presets()

    @answers(Request)
    def definitions(self) -> Any:
        """Say what every figure divides by what, in words and as a definition."""
        return self._client.definitions()

    @answers(Target)
    def device_label(self, target: str | None) -> Any:
        """Name the device and the number format of a target."""
        return self._client.device_label(target)

    @answers(Request)
    def limits(self) -> Any:
        """Say what one user may ask for: runs at once, new tokens, length of a prompt."""
        return dataclasses.asdict(self._client.limits)

    @answers(Request)
    def health(self) -> Any:
        """Say whether the backend works, and how busy it is."""
        return self._client.health()

    # -- models --------------------------------------------------------------------------------------------------

    @answers(Models, "loaded")
    def load(self, target: str | None, drafter: str | None) -> Any:
        """Load models and wait for them. A run loads what it needs by itself."""
        self._client.load(target, drafter)
        return self._client.loaded()

    @answers(Loaded, "loaded")
    def unload(self, target: str | None, request: gr.Request) -> Any:
        """Give a target's memory back. Only from the machine the app runs on."""
        if not (is_from_here(scope_of(request)) and is_users(request)):
            raise WorkbenchError(
                "Models are unloaded on the machine the app runs on only.", "Idle ones go by themselves."
            )
        self._client.unload(target or "")
        return self._client.loaded()

    @answers(Request)
    def loaded(self) -> Any:
        """List the models in memory: role, bytes, number format, device, runs, seconds of idleness."""
        return self._client.loaded()

    @answers(Conditions)
    def conditions(self, lane: dict[str, Any], target: str | None) -> Any:
        """Say all that decides what a measurement of a lane gives here, besides its settings."""
        return self._client.conditions(lane, target)

    @answers(Conversation)
    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None) -> Any:
        """Put a conversation into a target's chat format, ready for the assistant's answer: a list of token ids."""
        return self._client.chat_prompt(messages, target)

    # -- runs ----------------------------------------------------------------------------------------------------

    @answers(Generation, "")
    def start(self, request: gr.Request, **options: Any) -> Answer:
        """Start a generation and return the id of its run. Ask `since` for its rounds; it ends when nobody asks."""
        run = self._client.start(**options, user=user_key(request), lease_s=LEASE_S)
        return {"run": run.id, "lease_s": LEASE_S}

    @answers(News, "")
    def since(self, run: str, number: int) -> Answer:
        """Everything a run recorded from a round on: its state, header, rounds, and footer once it has ended."""
        return wire.news(self._client.run(run).since(number))

    @answers(OfRun, "")
    def trace(self, run: str) -> Answer:
        """The whole trace of a run, so far: header, rounds, footer, and its figures."""
        return _whole(self._client.run(run))

    @answers(Changing, "")
    def change(self, run: str, **options: Any) -> Answer:
        """Switch the method, parameters, the draft model or the pictures of a run from its next round on."""
        found = self._client.run(run)
        found.change(**options)
        return {"run": found.id, "state": found.state}

    @answers(Remembering, "")
    def memory(self, run: str, action: str, data: bytes | None) -> Answer:
        """Look at what a run's drafter remembers, save it as a file in base64, load such a file, or forget it all.

        Size against bound, hits, the top entries, and which entry made the latest draft.
        """
        return wire.remembered(self._client.run(run).memory(action, data))

    @streams(OfRun)
    async def explain(self, run: str) -> AsyncGenerator[Answer, None]:
        """Say on which parts of its pictures the text of a run leans, token by token, and what it owes to them.

        While it is worked out, how far it is is streamed (`done`, from 0 to 1); the last answer holds it. It is broken
        off when nobody listens.
        """
        found = await self._do(lambda: self._client.run(run))
        said = while_heard(
            lambda: {"attribution": found.explain()},
            lambda: {"run": found.id, "state": found.state, "done": found.explained},
            self._do,
        )
        async with contextlib.aclosing(said):
            async for message in said:
                yield message

    @answers(Control, "")
    def control(self, run: str, action: str) -> Answer:
        """Pause, resume, step (one round) or cancel a run."""
        found = self._client.run(run)
        getattr(found, action)()
        return {"run": found.id, "state": found.state}

    @streams(Generation, without=("paused",))
    async def generate(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Generate a text and return the whole trace: every token drafted, accepted or rejected, and the figures.

        While it runs, its state is streamed; the last answer is the trace. It is cancelled when nobody listens.
        """
        async with self._running(request, options) as run:
            spoken = 0.0
            while not run.ended:
                if time.monotonic() - spoken >= SIGN_OF_LIFE_S:
                    yield {"run": run.id, "state": run.state}
                    spoken = time.monotonic()
                await asyncio.sleep(1 / UPDATES_PER_SECOND)
            yield await self._do(lambda: _whole(run))

    @streams(Comparing)
    async def compare(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Compare methods side by side: each alone on the device, interleaved and repeated, beside plain decoding.

        While it runs, how far it is is streamed; the last answer holds the comparison: figures of each lane with their
        spread, costs of a token, break-even, when each token was there, and whether the texts are the same.
        """
        async with contextlib.aclosing(self._told(self._client.comparing, options, request, _plain)) as said:
            async for step in said:
                yield step

    @streams(Comparing, text=True)
    async def comparing(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """The same as `compare` for programs: each message is a JSON text with the runs that ended since the last."""
        from workbench.bench.steps import Telling  # brings PyTorch

        async with contextlib.aclosing(self._told(self._client.comparing, options, request, Telling().message)) as said:
            async for step in said:
                yield step

    @streams(Recommending, text=True)
    async def recommending(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Measure which method is fastest on these prompts, in the background: others' runs go first.

        Each message is a JSON text: how far it is, and in `found` the ranking so far, with its reason and the command.
        """
        async with contextlib.aclosing(self._told(self._client.recommending, options, request, _plain)) as said:
            async for step in said:
                yield step

    async def _told(
        self, begin: Callable[..., Any], options: dict[str, Any], request: gr.Request, told: Callable[[Any], Answer]
    ) -> AsyncGenerator[Answer, None]:
        """The steps of work that begins so, as `told` tells them. When nobody listens, what runs is ended."""
        steps = await self._do(lambda: begin(**options, user=user_key(request)))
        try:
            while (step := await self._do(lambda: next(steps, None))) is not None:
                yield await self._do(lambda step=step: _scrubbed(told(step)))
        finally:
            threading.Thread(target=end, args=(steps,), daemon=True).start()

    @streams(Generation, text=True)
    async def stream(self, request: gr.Request, **options: Any) -> AsyncGenerator[Answer, None]:
        """Start a generation and stream its rounds as they are made; it is cancelled when nobody listens.

        Each message is a JSON text: what `since` answers, with the rounds that are new; `{}` is a sign of life.
        """
        async with self._running(request, options) as run:
            async for news in follow(run):
                yield news

    @streams(OfRun, text=True)
    async def follow(self, run: str) -> AsyncGenerator[Answer, None]:
        """Stream the rounds of a run that somebody started, from its first one on; it goes on when nobody listens.

        Each message is a JSON text: what `since` answers, with the rounds that are new; `{}` is a sign of life.
        """
        found = await self._do(lambda: self._client.run(run))
        async for news in follow(found):
            yield news

    @contextlib.asynccontextmanager
    async def _running(self, request: gr.Request, options: dict[str, Any]) -> AsyncGenerator[RunHandle, None]:
        """A run that is cancelled when its reader leaves."""
        run = await self._do(lambda: self._client.start(**options, user=user_key(request)))
        try:
            yield run
        finally:
            run.cancel()


NAMES = tuple(name for name, value in vars(Endpoints).items() if callable(value) and not name.startswith("_"))
"""The endpoints, in the order of the API page."""


def _plain(step: Any) -> Answer:
    return step.to_wire()


def _scrubbed(step: dict[str, Any]) -> dict[str, Any]:
    """A step of a measurement with its messages made fit for strangers."""
    for lane in (step.get("comparison") or {}).get("lanes", ()):
        lane["error"] = wire.scrub(lane["error"])
    if news := step.get("news"):
        news["errors"] = [wire.scrub(error) for error in news["errors"]]
    if found := step.get("found"):
        step = step | {"found": found | {"failed": {name: wire.scrub(why) for name, why in found["failed"].items()}}}
    return step | {"waiting": wire.scrub(step["waiting"])}


def _figures(trace: Trace) -> dict[str, Any]:
    found = trace.to_wire()
    found["footer"] |= {"error": wire.scrub(trace.footer.error)}
    return found | {"text": trace.text, "metrics": summary(trace)}


def _whole(run: RunHandle) -> dict[str, Any]:
    """The trace of a run with its figures; what went wrong where there is none."""
    if run.trace is None:
        if run.ended:
            run.wait()  # raises what went wrong
        raise WorkbenchError("Nothing has been recorded yet.", "Ask again in a moment.")
    return {"run": run.id, "state": run.state, "trace": _figures(run.trace)}
