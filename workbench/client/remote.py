"""Client of a running app, through the endpoints that `workbench.ui.api` adds to it.

Calls go through `gradio_client`. Each run has an event stream of its own: the server notices at once when the stream
is closed, and frees the run's slot in the batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from workbench.client import wire
from workbench.client.answers import check_answer, unreachable
from workbench.client.connection import Connection
from workbench.client.remoterun import RemoteRun
from workbench.client.requests import ComparisonRequest, Generation, RecommendationRequest
from workbench.core.errors import MethodUnavailableError, PromptError
from workbench.service.limits import Limits
from workbench.service.users import LOCAL

if TYPE_CHECKING:
    from workbench.bench.advice import Advice
    from workbench.bench.pairing import Pairs
    from workbench.bench.steps import Step
    from workbench.engine.request_options import RequestOptions

USE_V1 = "Use the app's /v1/completions instead."


class RemoteBackend(Connection):
    """Backend of a running app; a `workbench.client.protocol.Client`.

    Args:
        url: address of the app, or name of a Space.
        key: API key of the app; None: see `workbench.client.keys.key_for`.

    Raises:
        WorkbenchError: the server cannot be reached, or is not a workbench.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        super().__init__(url, key)
        self._runs: list[RemoteRun] = []

    # -- models, methods and state: see `workbench.client.protocol.Client` ---------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        return self.call("targets")["targets"]

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        return self.call("drafters", target)["drafters"]

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        return self.call("methods", target, drafter)["methods"]

    def sampling_params(self) -> list[dict[str, Any]]:
        return self.call("sampling_params")["sampling_params"]

    def presets(self) -> list[dict[str, Any]]:
        return self.call("presets")["presets"]

    def definitions(self) -> dict[str, dict[str, str]]:
        return self.call("definitions")["definitions"]

    def device_label(self, target: str | None = None) -> str:
        return self.call("device_label", target)["device_label"]

    def unavailable_actions(self) -> dict[str, str]:
        """Return nothing: an app on ZeroGPU refuses missing actions when they are called."""
        return {}

    capabilities: frozenset[str] = frozenset({"recommending"})
    ready = True
    hub_only = True
    """Unlisted names are Hub ids, never folders on this machine."""

    @property
    def limits(self) -> Limits:
        field_names = {field.name for field in dataclasses.fields(Limits)}
        return Limits(**{name: value for name, value in self.call("limits")["limits"].items() if name in field_names})

    def admit_request(self, user: str, counted: bool = True) -> None:
        """Do nothing: the app counts requests itself."""

    def charge_call(self, user: str, seconds: float = 0.0) -> None:
        """Do nothing: the app counts calls itself."""

    def health(self) -> dict[str, Any]:
        return self.call("health")["health"]

    def metrics_text(self) -> str:
        answer = httpx.get(f"{self.app.src}metrics", headers=self.app.headers, timeout=30)
        answer.raise_for_status()
        return answer.text

    def preload(self, extra_targets: Sequence[str] = ()) -> None:
        """Do nothing: a running app has loaded its models."""

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        self.call("load", target, drafter)

    def unload(self, target: str) -> None:
        self.call("unload", target)

    def loaded_models(self) -> list[dict[str, Any]]:
        return self.call("loaded")["loaded"]

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        return self.call("chat_prompt", messages, target)["chat_prompt"]

    # -- runs ----------------------------------------------------------------------------------------------------

    def start(
        self,
        prompt: str | list[int],
        method: str = "draft-model",
        *,
        images: Sequence[Any] = (),
        user: str = LOCAL,
        lease_s: float | None = None,
        extras: RequestOptions | None = None,
        memory: bytes | None = None,
        **options: Any,
    ) -> RemoteRun:
        """Start a generation in the app and follow it. It ends when this process ends, even if it has no lease."""
        if extras is not None:
            raise MethodUnavailableError(
                "Penalties, further stop conditions and log-probabilities are not available through this client.",
                USE_V1,
            )
        pictures = [wire.data_url(image) for image in images]
        options |= {} if memory is None else {"memory": wire.base64_of(memory)}
        return self._follow("stream", Generation.arguments(prompt=prompt, method=method, images=pictures, **options))

    def run(self, run_id: str) -> RemoteRun:
        """Follow a run that another client started. It continues when this process ends."""
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
        """Yield the steps of a comparison in the app; closing the iterator ends it. The app sets `user` itself.

        Ctrl-C or `stopped` ends it in the app too; the last step has the results so far.
        """
        from workbench.bench.compare import Plan, prepare
        from workbench.bench.steps import Step, StepDecoder

        plan = Plan(**settings)
        comparison = prepare([prompts] if isinstance(prompts, str) else prompts, lanes, plan)
        texts = [{"text": p.prompt, "name": p.name, "group": p.group, "chat": p.chat} for p in comparison.prompts]
        lane_specs = [measured.lane.to_wire() for measured in comparison.lanes if not measured.added]
        common = {name: getattr(plan, name) for name in ComparisonRequest.model_fields if hasattr(plan, name)}
        arguments, decoder = (
            ComparisonRequest.arguments(prompts=texts, lanes=lane_specs, **common),
            StepDecoder(comparison),
        )
        last = Step(0, 0, "")
        try:
            with contextlib.closing(self.events("comparing", arguments)) as messages:
                for message in messages:
                    last = decoder.step(check_answer(message))
                    if last.last:
                        break
                    yield last
                    if stopped():
                        break
        except KeyboardInterrupt:
            pass
        except httpx.HTTPError as problem:
            raise unreachable(self.url, problem) from problem
        yield dataclasses.replace(last, text=last.text if last.last else "stopped", comparison=comparison, last=True)

    def estimate(self, request: dict[str, Any]) -> str:
        return ""

    def stream_pairs(
        self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any
    ) -> Iterator[Pairs]:
        """Raise MethodUnavailableError: pairs are measured only in the process that has the models."""
        raise MethodUnavailableError(
            "A speed-up can be measured in pairs only in the process that has the models.", "Use `compare`."
        )

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Raise MethodUnavailableError: heads can be chosen only on the server's machine."""
        raise MethodUnavailableError(
            "Heads can be chosen only on the server's machine.", "Start the server with --head FOLDER."
        )

    def stream_recommendation(
        self, prompts: Sequence[Any], *, user: str = LOCAL, stopped: Callable[[], bool] = lambda: False, **options: Any
    ) -> Iterator[Advice]:
        """Yield the steps of a recommendation in the app; closing the iterator ends it. The app sets `user` itself."""
        if any(isinstance(p, tuple) for p in prompts):
            raise PromptError("A running app takes prompts as text, not as token ids.", "Give the prompts as texts.")
        texts = [p if isinstance(p, str) else {"text": p.prompt, "name": p.name, "chat": p.chat} for p in prompts]
        return self._recommending(RecommendationRequest.arguments(prompts=texts, **options), stopped)

    def _recommending(self, arguments: list[Any], stopped: Callable[[], bool]) -> Iterator[Advice]:
        from workbench.bench.advice import Advice

        last = None
        try:
            with contextlib.closing(self.events("recommending", arguments)) as messages:
                for message in messages:
                    last = Advice(**check_answer(message))
                    if last.last:
                        break
                    yield last
                    if stopped():
                        break
        except httpx.HTTPError as problem:
            raise unreachable(self.url, problem) from problem
        if last is not None:
            result = last.found if last.last or last.found is None else {**last.found, "complete": False}
            yield dataclasses.replace(last, text=last.text if last.last else "stopped", found=result, last=True)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """Return the conditions of a measurement in the app; None if the app is too old for this call."""
        from workbench.bench.lanes import Lane

        if "/conditions" not in self.endpoints():
            return None
        return self.call("conditions", Lane.of(lane).to_wire(), target)["conditions"]

    def close(self) -> None:
        """End the runs that this client started, and stop its threads."""
        for run in self._runs:
            run.leave()
        self.close_connection()

    def _follow(self, name: str, arguments: Sequence[Any]) -> RemoteRun:
        run = RemoteRun(self, self.events(name, arguments))
        self._runs = [other for other in self._runs if not other.ended] + [run]
        return run
