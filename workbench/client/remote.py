"""A backend in another process: the same calls, through the endpoints that `workbench.ui.api` adds to the app.

Calls go through `gradio_client`. A run is followed over an event stream of its own: the server notices at once when
the stream ends, and gives the run's row to somebody else.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from workbench.client import wire
from workbench.client.answers import checked, unreachable
from workbench.client.connection import Connection
from workbench.client.remoterun import RemoteRun
from workbench.client.requests import Comparing, Generation, Recommending
from workbench.core.errors import MethodUnavailableError, PromptError
from workbench.service.limits import Limits
from workbench.service.users import LOCAL

if TYPE_CHECKING:
    from workbench.bench.advice import Advice
    from workbench.bench.pairing import Pairs
    from workbench.bench.steps import Step
    from workbench.engine.extras import Extras

BY_V1 = "Ask the app's /v1/completions for them."


class Remote(Connection):
    """The backend of a running app.

    Args:
        url: address of the app, or name of a Space.
        key: the key that it asks for; None: see `workbench.client.keys.key_for`.

    Raises:
        WorkbenchError: nobody answers there, or it is something else than a workbench.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        super().__init__(url, key)
        self._runs: list[RemoteRun] = []

    # -- what there is: see `workbench.client.protocol.Client` ---------------------------------------------------------

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

    def barred(self) -> dict[str, str]:
        """What an app of ZeroGPU cannot do with a run, it says when it is asked to."""
        return {}

    offers: frozenset[str] = frozenset({"recommending"})
    ready = True
    hub_only = True
    """A name that is not listed there is no folder of this machine."""

    @property
    def limits(self) -> Limits:
        known = {field.name for field in dataclasses.fields(Limits)}
        return Limits(**{name: value for name, value in self.call("limits")["limits"].items() if name in known})

    def let_in(self, user: str, counted: bool = True) -> None:
        """The app counts who asks it."""

    def let_call(self, user: str, seconds: float = 0.0) -> None:
        """The app counts who asks it."""

    def health(self) -> dict[str, Any]:
        return self.call("health")["health"]

    def metrics_text(self) -> str:
        answer = httpx.get(f"{self.app.src}metrics", headers=self.app.headers, timeout=30)
        answer.raise_for_status()
        return answer.text

    def preload(self, also: Sequence[str] = ()) -> None:
        """A running app has its models loaded."""

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        self.call("load", target, drafter)

    def unload(self, target: str) -> None:
        self.call("unload", target)

    def loaded(self) -> list[dict[str, Any]]:
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
        extras: Extras | None = None,
        memory: bytes | None = None,
        **options: Any,
    ) -> RemoteRun:
        """Start a generation there and follow it. It ends there when this process goes away, whatever its lease."""
        if extras is not None:
            raise MethodUnavailableError("Penalties, other ends and log-probabilities are not to be had here.", BY_V1)
        pictures = [wire.data_url(image) for image in images]
        options |= {} if memory is None else {"memory": wire.base64_of(memory)}
        return self._follow("stream", Generation.arguments(prompt=prompt, method=method, images=pictures, **options))

    def run(self, run_id: str) -> RemoteRun:
        """Follow a run that somebody else started. It goes on when this process goes away."""
        return self._follow("follow", [run_id])

    def comparing(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = LOCAL,
        **settings: Any,
    ) -> Iterator[Step]:
        """The steps of a comparison there, which ends when nobody listens. `user` is decided by the server.

        Ctrl-C, or `stopped`, ends it there; what was measured until then is in the last step here.
        """
        from workbench.bench.compare import Plan, prepare
        from workbench.bench.steps import Hearing, Step

        plan = Plan(**settings)
        planned = prepare([prompts] if isinstance(prompts, str) else prompts, lanes, plan)
        texts = [{"text": p.prompt, "name": p.name, "group": p.group, "chat": p.chat} for p in planned.prompts]
        wanted = [measured.lane.to_wire() for measured in planned.lanes if not measured.added]
        given = {name: getattr(plan, name) for name in Comparing.model_fields if hasattr(plan, name)}
        asked, heard = Comparing.arguments(prompts=texts, lanes=wanted, **given), Hearing(planned)
        last = Step(0, 0, "")
        try:
            with contextlib.closing(self.events("comparing", asked)) as messages:
                for message in messages:
                    last = heard.step(checked(message))
                    if last.last:
                        break
                    yield last
                    if stopped():
                        break
        except KeyboardInterrupt:
            pass
        except httpx.HTTPError as problem:
            raise unreachable(self.url, problem) from problem
        yield dataclasses.replace(last, text=last.text if last.last else "stopped", comparison=planned, last=True)

    def estimate(self, request: dict[str, Any]) -> str:
        return ""

    def pairing(self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any) -> Iterator[Pairs]:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("A speed-up is measured pair by pair where the models are.", "Use `compare`.")

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Not over the network: raises MethodUnavailableError."""
        raise MethodUnavailableError("Heads are chosen where the models are.", "Start the server with --head FOLDER.")

    def recommending(
        self, prompts: Sequence[Any], *, user: str = LOCAL, stopped: Callable[[], bool] = lambda: False, **asked: Any
    ) -> Iterator[Advice]:
        """The steps of a recommendation there, which ends when nobody listens. `user` is decided by the server."""
        if any(isinstance(p, tuple) for p in prompts):
            raise PromptError("An app is given texts, not token ids.", "Give the prompts as texts.")
        given = [p if isinstance(p, str) else {"text": p.prompt, "name": p.name, "chat": p.chat} for p in prompts]
        return self._recommending(Recommending.arguments(prompts=given, **asked), stopped)

    def _recommending(self, asked: list[Any], stopped: Callable[[], bool]) -> Iterator[Advice]:
        from workbench.bench.advice import Advice

        last = None
        try:
            with contextlib.closing(self.events("recommending", asked)) as messages:
                for message in messages:
                    last = Advice(**checked(message))
                    if last.last:
                        break
                    yield last
                    if stopped():
                        break
        except httpx.HTTPError as problem:
            raise unreachable(self.url, problem) from problem
        if last is not None:
            found = last.found if last.last or last.found is None else {**last.found, "complete": False}
            yield dataclasses.replace(last, text=last.text if last.last else "stopped", found=found, last=True)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """What decides a measurement there; None where that app is too old to say."""
        from workbench.bench.lanes import Lane

        if "/conditions" not in self.endpoints():
            return None
        return self.call("conditions", Lane.of(lane).to_wire(), target)["conditions"]

    def close(self) -> None:
        """End the runs that were started here, and the threads."""
        for run in self._runs:
            run.leave()
        self.hang_up()

    def _follow(self, name: str, arguments: Sequence[Any]) -> RemoteRun:
        run = RemoteRun(self, self.events(name, arguments))
        self._runs = [other for other in self._runs if not other.ended] + [run]
        return run
