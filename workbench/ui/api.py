"""The app's API: the calls of `workbench.client.Workbench` as Gradio endpoints, for `Workbench(url)`, curl and MCP.

Every endpoint answers with an object. What cannot be done is answered with `{"error": {"kind", "message", "remedy"}}`.
The docstrings of `Endpoints` are the text of the API page and of the MCP tools.
"""

# Gradio reads the annotations of the endpoints at run time, hence no `from __future__ import annotations` here.
# ruff: noqa: D417 (`request` comes from Gradio, not from the caller whom the docstrings address)

import asyncio
import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr
from gradio.context import Context

from workbench.client import wire
from workbench.client.follow import SIGN_OF_LIFE_S, UPDATES_PER_SECOND, follow
from workbench.core.errors import WorkbenchError
from workbench.core.panics import no_panic
from workbench.server.door import is_from_here, marked
from workbench.trace.events import Trace
from workbench.trace.metrics import summary
from workbench.ui.heard import while_heard
from workbench.ui.jobs import end

LEASE_S = 10.0
"""A run of `start` that nobody asks after for so long is ended. That the reader of a stream left is noticed sooner."""
THREADS = 16
"""For calls that may wait for a file or a model, so that nothing else does."""


def add(client: Any) -> None:
    """Register the endpoints. Call inside the app's `gr.Blocks`.

    Args:
        client: a `workbench.client.Workbench`, or anything with the same methods.
    """
    endpoints = Endpoints(client)
    for name in NAMES:
        gr.api(getattr(endpoints, name), api_name=name, concurrency_limit=None)  # pyright: ignore[reportPrivateImportUsage]
    if Context.root_block is not None:
        Context.root_block.api_open = False  # everything through the queue, which answers wrong calls decently


def user_key(request: gr.Request | None) -> str:
    """Who asks, as an opaque key: address and session, or the name a client with several sessions gave itself."""
    if request is None:
        return wire.user_key()
    address = request.client.host if request.client else ""
    return wire.user_key(address, request.headers.get("x-workbench-user") or request.session_hash)


def scope_of(request: gr.Request) -> dict[str, Any]:
    """Who asks and with which headers, as `workbench.server.door` reads them; also from Gradio's queue."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
    return {"client": (request.client.host, 0) if request.client else None, "headers": headers}


def is_users(request: gr.Request) -> bool:
    """Whether a request may come from this machine's user, also from Gradio's queue."""
    asked = getattr(request, "request", None)
    return marked(getattr(asked, "scope", {}))


def answered(function: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[dict[str, Any]]]:
    """An endpoint whose errors are answers."""

    @functools.wraps(function)
    async def wrapped(*args: Any, **named: Any) -> dict[str, Any]:
        try:
            with no_panic():
                return await function(*args, **named)
        except Exception as problem:
            return {"error": wire.error_to_wire(problem)}

    return wrapped


class Endpoints:
    """The endpoints over a client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="workbench-api")

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Do something in a thread: the client may still be in the making, or have to look at files."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # -- what there is -------------------------------------------------------------------------------------------

    @answered
    async def targets(self) -> dict[str, Any]:
        """List the models that can be verified against."""
        return {"targets": await self._do(lambda: self._client.targets())}

    @answered
    async def drafters(self, target: str | None = None) -> dict[str, Any]:
        """List the draft models, and for each whether it fits the target and why not.

        Args:
            target: name of a target; empty: the default one
        """

        def work() -> Any:
            return self._client.drafters(wire.models(self._client, target, None)[0])

        return {"drafters": await self._do(work)}

    @answered
    async def methods(self, target: str | None = None, drafter: str | None = None) -> dict[str, Any]:
        """List the methods: title, promise, paper, parameters, and whether each can run with these models and why not.

        Args:
            target: name of a target; empty: the default one
            drafter: name of a draft model; empty: the one that belongs to the target; "none": none
        """

        def work() -> Any:
            return self._client.methods(*wire.models(self._client, target, drafter))

        return {"methods": await self._do(work)}

    @answered
    async def sampling_params(self) -> dict[str, Any]:
        """List the parameters of sampling, which every method shares: range, default, meaning."""
        return {"sampling_params": await self._do(lambda: self._client.sampling_params())}

    @answered
    async def presets(self) -> dict[str, Any]:
        """List prompts to start with, one for each kind of text that a drafter likes or dislikes."""
        return {"presets": await self._do(lambda: self._client.presets())}

    @answered
    async def definitions(self) -> dict[str, Any]:
        """Say what every figure divides by what, in words and as a definition."""
        return {"definitions": await self._do(lambda: self._client.definitions())}

    @answered
    async def device_label(self) -> dict[str, Any]:
        """Name the device and the number format."""
        return {"device_label": await self._do(lambda: self._client.device_label())}

    @answered
    async def limits(self) -> dict[str, Any]:
        """Say what one user may ask for: runs at once, new tokens, length of a prompt."""
        return {"limits": await self._do(lambda: dataclasses.asdict(self._client.limits))}

    @answered
    async def health(self) -> dict[str, Any]:
        """Say whether the backend works, and how busy it is."""
        return {"health": await self._do(lambda: self._client.health())}

    # -- models --------------------------------------------------------------------------------------------------

    @answered
    async def load(self, target: str | None = None, drafter: str | None = None) -> dict[str, Any]:
        """Load models and wait for them. A run loads what it needs by itself.

        Args:
            target: name of a target; empty: the default one
            drafter: name of a draft model; empty: the one that belongs to the target; "none": none
        """

        def work() -> Any:
            self._client.load(*wire.models(self._client, target, drafter))
            return self._client.loaded()

        return {"loaded": await self._do(work)}

    @answered
    async def unload(self, target: str, request: gr.Request) -> dict[str, Any]:
        """Give a target's memory back. Only from the machine the app runs on.

        Args:
            target: name of a loaded target
        """
        if not (is_from_here(scope_of(request)) and is_users(request)):
            raise WorkbenchError(
                "Models are unloaded on the machine the app runs on only.", "Idle ones go by themselves."
            )

        def work() -> Any:
            self._client.unload(wire.models(self._client, target, None)[0])
            return self._client.loaded()

        return {"loaded": await self._do(work)}

    @answered
    async def loaded(self) -> dict[str, Any]:
        """List the models in memory: role, bytes, number format, device, runs, seconds of idleness."""
        return {"loaded": await self._do(lambda: self._client.loaded())}

    @answered
    async def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any]:
        """Say all that decides what a measurement of a lane gives here, besides its settings.

        Args:
            lane: a line like "draft-model:depth=3", or an object with method, params and drafter
            target: name of a target; empty: the default one
        """

        def work() -> Any:
            name = wire.models(self._client, target, None)[0]
            return self._client.conditions(wire.lane(self._client, lane), name)

        return {"conditions": await self._do(work)}

    @answered
    async def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> dict[str, Any]:
        """Put a conversation into a target's chat format, ready for the assistant's answer: a list of token ids.

        Args:
            messages: each with role ("system", "user" or "assistant") and content
            target: name of a target; empty: the default one
        """

        def work() -> Any:
            name = wire.models(self._client, target, None)[0]
            return self._client.chat_prompt(wire.messages(messages), name)

        return {"chat_prompt": await self._do(work)}

    # -- runs ----------------------------------------------------------------------------------------------------

    @answered
    async def start(
        self,
        prompt: str | list[int],
        request: gr.Request,
        method: str = "draft-model",
        params: dict[str, Any] | None = None,
        target: str | None = None,
        drafter: str | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        stop: list[str] | None = None,
        paused: bool = False,
        images: list[str] | None = None,
        pace: float = 0.0,
    ) -> dict[str, Any]:
        """Start a generation and return the id of its run. Ask `since` for its rounds; it ends when nobody asks.

        Args:
            prompt: text to continue, or a list of token ids
            method: a name that `methods` lists
            params: parameters of the method and of sampling by name; what is missing has its default
            target: name of a target; empty: the default one
            drafter: name of a draft model; empty: the one that belongs to the target; "none": none
            max_new_tokens: end after so many tokens
            seed: decides every random number of the run
            stop: strings that end the text
            paused: wait for `control` before the first round
            images: pictures as data-URLs, for a target that reads them
            pace: tokens a second at which rounds are held back so that people can follow; 0: they are not
        """
        run = await self._start(_asked(locals()), request, LEASE_S)
        return {"run": run.id, "lease_s": LEASE_S}

    @answered
    async def since(self, run: str, number: int = 0) -> dict[str, Any]:
        """Everything a run recorded from a round on: its state, header, rounds, and footer once it has ended.

        Args:
            run: id of the run
            number: the first round wanted
        """

        def work() -> Any:
            return wire.news(self._run(run).since(wire.whole("number", number)))

        return await self._do(work)

    @answered
    async def trace(self, run: str) -> dict[str, Any]:
        """The whole trace of a run, so far: header, rounds, footer, and its figures.

        Args:
            run: id of the run
        """
        return await self._do(lambda: _whole(self._run(run)))

    @answered
    async def change(
        self,
        run: str,
        method: str | None = None,
        params: dict[str, Any] | None = None,
        drafter: str | None = None,
        images: list[str] | None = None,
        sees: str = "both",
        pace: float | None = None,
    ) -> dict[str, Any]:
        """Switch the method, parameters, the draft model or the pictures of a run from its next round on.

        Args:
            run: id of the run
            method: a name that `methods` lists; empty: as it is
            params: parameters of the method and of sampling by name; what is missing stays
            drafter: name of a draft model; empty: as it is
            images: other pictures as data-URLs, as many as the prompt has; empty: as they are
            sees: who sees them, "both" or "drafter"
            pace: tokens a second at which rounds are held back from now on; empty: as it is
        """

        def work() -> Any:
            found = self._run(run)
            found.change(**wire.change_options(self._client, method, params, drafter, images, sees, pace))
            return {"run": found.id, "state": found.state}

        return await self._do(work)

    async def explain(self, run: str) -> AsyncIterator[dict[str, Any]]:
        """Say on which parts of its pictures the text of a run leans, token by token, and what it owes to them.

        While it is worked out, how far it is is streamed (`done`, from 0 to 1); the last answer holds it. It is broken
        off when nobody listens.

        Args:
            run: id of the run
        """
        try:
            found = await self._do(lambda: self._run(run))
            said = while_heard(
                lambda: {"attribution": found.explain()},
                lambda: {"run": found.id, "state": found.state, "done": getattr(found, "explained", None)},
                self._do,
            )
            async with contextlib.aclosing(said):
                async for message in said:
                    yield message
        except Exception as problem:
            yield {"error": wire.error_to_wire(problem)}

    @answered
    async def control(self, run: str, action: str) -> dict[str, Any]:
        """Pause, resume, step (one round) or cancel a run.

        Args:
            run: id of the run
            action: pause, resume, step or cancel
        """

        def work() -> Any:
            found = self._run(run)
            getattr(found, wire.action(action))()
            return {"run": found.id, "state": found.state}

        return await self._do(work)

    async def generate(
        self,
        prompt: str | list[int],
        request: gr.Request,
        method: str = "draft-model",
        params: dict[str, Any] | None = None,
        target: str | None = None,
        drafter: str | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        stop: list[str] | None = None,
        images: list[str] | None = None,
        pace: float = 0.0,
    ) -> AsyncIterator[dict[str, Any]]:
        """Generate a text and return the whole trace: every token drafted, accepted or rejected, and the figures.

        While it runs, its state is streamed; the last answer is the trace. It is cancelled when nobody listens.

        Args:
            prompt: text to continue, or a list of token ids
            method: a name that `methods` lists
            params: parameters of the method and of sampling by name; what is missing has its default
            target: name of a target; empty: the default one
            drafter: name of a draft model; empty: the one that belongs to the target; "none": none
            max_new_tokens: end after so many tokens
            seed: decides every random number of the run
            stop: strings that end the text
            images: pictures as data-URLs, for a target that reads them
            pace: tokens a second at which rounds are held back so that people can follow; 0: they are not
        """
        try:
            run = await self._start(_asked(locals()), request)
        except Exception as problem:
            yield {"error": wire.error_to_wire(problem)}
            return
        try:
            spoken = 0.0
            while not run.ended:
                if time.monotonic() - spoken >= SIGN_OF_LIFE_S:
                    yield {"run": run.id, "state": run.state}
                    spoken = time.monotonic()
                await asyncio.sleep(1 / UPDATES_PER_SECOND)
            yield await self._do(lambda: _whole(run))
        except Exception as problem:
            yield {"error": wire.error_to_wire(problem)}
        finally:
            run.cancel()

    async def compare(
        self,
        prompts: list[str],
        lanes: list[Any],
        request: gr.Request,
        target: str | None = None,
        max_new_tokens: int = 64,
        seed: int = 0,
        sampling: dict[str, Any] | None = None,
        stop: list[str] | None = None,
        repeats: int = 3,
        images: list[str] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Compare methods side by side: each alone on the device, interleaved and repeated, beside plain decoding.

        While it runs, how far it is is streamed; the last answer holds the comparison: figures of each lane with their
        spread, costs of a token, break-even, when each token was there, and whether the texts are the same.

        Args:
            prompts: texts to continue
            lanes: one to four, each a line like "draft-model:depth=3", or an object with method, params and drafter
            target: name of a target; empty: the default one
            max_new_tokens: end each run after so many tokens
            seed: decides every random number of the runs
            sampling: temperature and filters by name, the same for all
            stop: strings that end a text
            repeats: repetitions of each lane and prompt
            images: pictures as data-URLs, for a target that reads them; the prompts are then questions about them
        """
        async for step in self._compare(_asked(locals()), request, lambda step: _scrubbed(step.to_wire())):
            yield step

    async def comparing(
        self,
        prompts: list[str],
        lanes: list[Any],
        request: gr.Request,
        target: str | None = None,
        max_new_tokens: int = 64,
        seed: int = 0,
        sampling: dict[str, Any] | None = None,
        stop: list[str] | None = None,
        repeats: int = 3,
        images: list[str] | None = None,
    ) -> AsyncIterator[str]:
        """The same as `compare` for programs: each message is a JSON text with the runs that ended since the last.

        Args:
            prompts: texts to continue
            lanes: one to four, each a line like "draft-model:depth=3", or an object with method, params and drafter
            target: name of a target; empty: the default one
            max_new_tokens: end each run after so many tokens
            seed: decides every random number of the runs
            sampling: temperature and filters by name, the same for all
            stop: strings that end a text
            repeats: repetitions of each lane and prompt
            images: pictures as data-URLs, for a target that reads them; the prompts are then questions about them
        """
        from workbench.bench.steps import Telling  # brings PyTorch

        telling = Telling()
        async for step in self._compare(_asked(locals()), request, lambda step: _scrubbed(telling.message(step))):
            yield json.dumps(step)

    async def _compare(
        self, asked: dict[str, Any], request: gr.Request, told: Callable[[Any], dict[str, Any]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The steps of a comparison as `told` tells them. When nobody listens any more, what runs is ended."""
        steps = None
        try:
            options = await self._do(lambda: wire.compare_options(self._client, asked))
            steps = await self._do(lambda: self._client.comparing(**options, user=user_key(request)))
            while (step := await self._do(lambda: next(steps, None))) is not None:
                yield await self._do(lambda step=step: told(step))
        except Exception as problem:
            yield {"error": wire.error_to_wire(problem)}
        finally:
            if steps is not None:
                threading.Thread(target=end, args=(steps,), daemon=True).start()

    async def stream(
        self,
        prompt: str | list[int],
        request: gr.Request,
        method: str = "draft-model",
        params: dict[str, Any] | None = None,
        target: str | None = None,
        drafter: str | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        stop: list[str] | None = None,
        paused: bool = False,
        images: list[str] | None = None,
        pace: float = 0.0,
    ) -> AsyncIterator[str]:
        """Start a generation and stream its rounds as they are made; it is cancelled when nobody listens.

        Each message is a JSON text: what `since` answers, with the rounds that are new; `{}` is a sign of life.

        Args:
            prompt: text to continue, or a list of token ids
            method: a name that `methods` lists
            params: parameters of the method and of sampling by name; what is missing has its default
            target: name of a target; empty: the default one
            drafter: name of a draft model; empty: the one that belongs to the target; "none": none
            max_new_tokens: end after so many tokens
            seed: decides every random number of the run
            stop: strings that end the text
            paused: wait for `control` before the first round
            images: pictures as data-URLs, for a target that reads them
            pace: tokens a second at which rounds are held back so that people can follow; 0: they are not
        """
        run = None
        try:
            run = await self._start(_asked(locals(), "run"), request)
            async for message in _messages(run):
                yield message
        except Exception as problem:
            yield json.dumps({"error": wire.error_to_wire(problem)})
        finally:
            if run is not None:
                run.cancel()

    async def follow(self, run: str) -> AsyncIterator[str]:
        """Stream the rounds of a run that somebody started, from its first one on; it goes on when nobody listens.

        Each message is a JSON text: what `since` answers, with the rounds that are new; `{}` is a sign of life.

        Args:
            run: id of the run
        """
        try:
            found = await self._do(lambda: self._run(run))
            async for message in _messages(found):
                yield message
        except Exception as problem:
            yield json.dumps({"error": wire.error_to_wire(problem)})

    async def _start(self, asked: dict[str, Any], request: gr.Request, lease_s: float | None = None) -> Any:
        def work() -> Any:
            options = wire.start_options(self._client, asked)
            return self._client.start(**options, user=user_key(request), lease_s=lease_s)

        return await self._do(work)

    def _run(self, run_id: Any) -> Any:
        return self._client.run(wire.text("run", run_id))


NAMES = tuple(name for name, value in vars(Endpoints).items() if callable(value) and not name.startswith("_"))
"""The endpoints, in the order of the API page."""


async def _messages(run: Any) -> AsyncGenerator[str, None]:
    """What is new about a run, as JSON. A string: Gradio then compares and sends it as a whole, not path by path."""
    async for news in follow(run):
        yield json.dumps(news)


def _asked(arguments: dict[str, Any], *others: str) -> dict[str, Any]:
    """The arguments of an endpoint that are the request."""
    return {name: value for name, value in arguments.items() if name not in ("self", "request", *others)}


def _scrubbed(step: dict[str, Any]) -> dict[str, Any]:
    """A step of a comparison with its messages made fit for strangers."""
    for lane in (step.get("comparison") or {}).get("lanes", ()):
        lane["error"] = wire.scrub(lane["error"])
    if news := step.get("news"):
        news["errors"] = [wire.scrub(error) for error in news["errors"]]
    return step | {"waiting": wire.scrub(step["waiting"])}


def _figures(trace: Trace) -> dict[str, Any]:
    found = trace.to_wire()
    found["footer"] |= {"error": wire.scrub(trace.footer.error)}
    return found | {"text": trace.text, "metrics": summary(trace)}


def _whole(run: Any) -> dict[str, Any]:
    """The trace of a run with its figures; what went wrong where there is none."""
    if run.trace is None:
        if run.ended:
            run.wait()  # raises what went wrong
        raise WorkbenchError("Nothing has been recorded yet.", "Ask again in a moment.")
    return {"run": run.id, "state": run.state, "trace": _figures(run.trace)}
