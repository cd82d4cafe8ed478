"""Client of a running app, through the endpoints that `workbench.ui.api` adds to it.

Calls go through `gradio_client`. Each run has its own event stream. The server notices at once when a stream is closed,
and frees the run's slot in the batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from workbench.client.answers import check_answer, unreachable
from workbench.client.calls import Call, declaration_of
from workbench.client.connection import Connection
from workbench.client.protocol import Client
from workbench.client.remoterun import RemoteRun
from workbench.client.requests import ComparisonRequest, Generation, RecommendationRequest
from workbench.core.errors import MethodUnavailableError
from workbench.service.users import LOCAL

if TYPE_CHECKING:
    from workbench.bench.advice import Advice
    from workbench.bench.pairing import Pairs
    from workbench.bench.steps import Step
    from workbench.engine.request_options import RequestOptions

USE_V1 = "Use the app's /v1/completions instead."


class RemoteBackend(Connection, Client):
    """Client for the backend of a running app, in another process or on another machine.

    Args:
        url: address of the app, or name of a Space.
        key: API key of the app; None: the key that `workbench.client.keys.key_for` chooses.

    Raises:
        WorkbenchError: the server cannot be reached, or is not a workbench.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        super().__init__(url, key)
        self._runs: list[RemoteRun] = []

    def _dispatch(self, call: Call, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Answer a call of the interface `Client` that this class does not implement, through the app's endpoint."""
        return call.call_endpoint(self.call, args, named)

    # -- calls that differ in a remote client --------------------------------------------------------------------

    def unavailable_actions(self) -> dict[str, str]:
        """Return an empty dict: an app that does not support an action on a run refuses it when it is called."""
        return {}

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset({"recommending"})

    @property
    def ready(self) -> bool:
        return True

    @property
    def hub_only(self) -> bool:
        """Return True: an unlisted model name is read only as a Hub id, never as a folder on the server."""
        return True

    def admit_request(self, user: str, counted: bool = True) -> None:
        """Do nothing: the app counts the requests of its users itself."""

    def charge_call(self, user: str, seconds: float = 0.0) -> None:
        """Do nothing: the app counts the CPU time of calls from its pages itself."""

    def metrics_text(self) -> str:
        answer = httpx.get(f"{self.app.src}metrics", headers=self.app.headers, timeout=30)
        answer.raise_for_status()
        return answer.text

    def preload(self, extra_targets: Sequence[str] = ()) -> None:
        """Do nothing: a running app has already loaded its models."""

    def conditions(self, *args: Any, **named: Any) -> dict[str, Any] | None:
        """Return the conditions of a measurement in the app; None if the app is too old for this call."""
        return self._dispatch(declaration_of(Client.conditions), args, named) if self.has("conditions") else None

    def estimate(self, request: dict[str, Any]) -> str:
        return ""

    # -- runs ----------------------------------------------------------------------------------------------------

    def start(self, *args: Any, extras: RequestOptions | None = None, **named: Any) -> RemoteRun:
        """Start and follow a generation in the app. It ends with this process, even without a lease (`lease_s`)."""
        if extras is not None:
            raise MethodUnavailableError(
                "Penalties, stop conditions other than stop strings, and log-probabilities are not available "
                "through this client.",
                USE_V1,
            )
        return self._follow("stream", Generation.arguments(*args, **named))

    def run(self, run_id: str) -> RemoteRun:
        """Follow a run that another client started. The run continues when this process ends."""
        return self._follow("follow", [run_id])

    def stream_comparison(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = LOCAL,
        **settings: Any,
    ) -> Iterator[Step]:
        """Compare methods in the app, and yield the steps of the comparison. The app sets `user` itself.

        Closing the iterator, Ctrl-C and a true result of `stopped()` end the comparison in the app, too. After Ctrl-C
        or `stopped()`, the last step has the results so far.
        """
        from workbench.bench.compare import Plan, prepare
        from workbench.bench.steps import Step, StepDecoder

        comparison = prepare([prompts] if isinstance(prompts, str) else prompts, lanes, Plan(**settings))
        decoder, last = StepDecoder(comparison), Step(0, 0, "")
        lanes = [measured.lane for measured in comparison.lanes if not measured.added]
        arguments = ComparisonRequest.arguments(comparison.prompts, lanes, **settings)
        try:
            with contextlib.closing(self._messages("comparing", arguments, stopped)) as messages:
                for message in messages:
                    last = decoder.step(message)
                    if not last.last:
                        yield last
        except KeyboardInterrupt:
            pass
        yield dataclasses.replace(last, text=last.text if last.last else "stopped", comparison=comparison, last=True)

    def stream_recommendation(
        self, *args: Any, stopped: Callable[[], bool] = lambda: False, **options: Any
    ) -> Iterator[Advice]:
        """Measure in the app which method is fastest, and yield the steps; closing the iterator ends this."""
        return self._recommending(RecommendationRequest.arguments(*args, **options), stopped)

    def _recommending(self, arguments: list[Any], stopped: Callable[[], bool]) -> Iterator[Advice]:
        from workbench.bench.advice import Advice

        last = None
        with contextlib.closing(self._messages("recommending", arguments, stopped)) as messages:
            for message in messages:
                last = Advice(**message)
                if not last.last:
                    yield last
        if last is not None:
            result = last.found if last.last or last.found is None else {**last.found, "complete": False}
            yield dataclasses.replace(last, text=last.text if last.last else "stopped", found=result, last=True)

    def _messages(self, endpoint: str, arguments: list[Any], stopped: Callable[[], bool]) -> Generator[dict[str, Any]]:
        """Yield the messages of a measurement in the app, up to the last one or until it is stopped."""
        try:
            with contextlib.closing(self.events(endpoint, arguments)) as messages:
                for message in messages:
                    yield check_answer(message)
                    if message["last"] or stopped():
                        return
        except httpx.HTTPError as problem:
            raise unreachable(self.url, problem) from problem

    def stream_pairs(
        self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any
    ) -> Iterator[Pairs]:
        """Raise MethodUnavailableError: pairs of runs (with and without a method) need the models in this process."""
        raise MethodUnavailableError(
            "A speed-up can be measured in pairs of runs only in the process that has loaded the models.",
            "Use `compare`.",
        )

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Raise MethodUnavailableError: heads can be chosen only on the server's machine."""
        raise MethodUnavailableError(
            "The folder of trained heads can be chosen only on the server's machine.",
            "Start the server with --head FOLDER.",
        )

    def close(self) -> None:
        """End the runs that this client started, and stop its threads."""
        for run in self._runs:
            run.leave()
        self.close_connection()

    def _follow(self, name: str, arguments: Sequence[Any]) -> RemoteRun:
        run = RemoteRun(self, self.events(name, arguments))
        self._runs = [other for other in self._runs if not other.ended] + [run]
        return run
