"""Base class of the backends that run models in this process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from workbench.core.errors import PromptError
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.engine.request import Request
from workbench.engine.request_options import RequestOptions
from workbench.methods import method_info, registry
from workbench.service import choices
from workbench.service.image_decoding import decode_all
from workbench.service.limits import Limits
from workbench.service.names import Pair
from workbench.service.params import check_pace, check_request
from workbench.service.presets import presets
from workbench.service.rate_limiter import SECONDS
from workbench.service.run import Run
from workbench.service.runregister import RunRegister
from workbench.service.telemetry import Telemetry
from workbench.service.users import LOCAL
from workbench.trace.events import Trace
from workbench.trace.metrics import DEFINITIONS

if TYPE_CHECKING:
    from workbench.bench.compare import Comparison
    from workbench.bench.steps import Step


class BaseBackend(ABC):
    """Base class of backends, which implements the calls of `workbench.client.Client` that are equal in all backends.

    Args:
        limits: limits per user and for all users, such as the number of runs.
    """

    capabilities: frozenset[str] = frozenset()
    ready = True

    def __init__(self, limits: Limits | None) -> None:
        self.limits = limits or Limits()
        self._runs, self._started_at = RunRegister(self.limits), time.monotonic()
        self._telemetry = Telemetry(self.health)

    # -- implemented by each backend -----------------------------------------------------------------------------

    @abstractmethod
    def targets(self) -> list[dict[str, Any]]:
        """Return the target models as {"name", "title", "kind", "detail"}, the default one first."""

    @abstractmethod
    def health(self) -> dict[str, Any]:
        """Return whether the backend works, with its load and memory, as a dict without names of users or models."""

    @abstractmethod
    def _start(
        self, request: Request, pair: Pair, user: str, lease_s: float | None, is_timed: bool, params: dict[str, Any]
    ) -> Run:
        """Start a generation whose request has passed all checks that need no models.

        `params` has the parameters of the method and of sampling, unchanged from the client's request.
        """

    @abstractmethod
    def _pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        """Resolve the names of a target and a draft model.

        Args:
            target: name of the target; None: the default.
            drafter: name of the draft model; None: the default draft model of the target; "none": no draft model.
            blind: whether to prefer a draft model that was trained without images.
        """

    @abstractmethod
    def _device_options(self) -> dict[str, Any]:
        """Return the device and the dtypes of the models as keyword arguments for `workbench.bench.conditions`."""

    def _reason(self, pair: Pair) -> Callable[[tuple[str, ...]], str]:
        """Return a function that checks whether a pair of models meets a method's requirements.

        The function maps the attribute `needs` of a method to the reason why not, as text; "" if the models meet them.
        """
        return choices.static_reasons(*pair)

    def _own_head_names(self, pair: Pair) -> dict[str, str]:
        """Return the names of the user's own heads for a target model, by kind of head (such as "medusa")."""
        return choices.own_head_names(pair[0])

    def _accepts_images(self, target: str) -> bool | None:
        return choices.accepts_images(target)

    # -- lists ---------------------------------------------------------------------------------------------------

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """Return a dict for each method, with its parameters, and the reason if it cannot run with the given models.

        Args:
            target: name of the target; None: the default.
            drafter: name of the draft model; None: the default draft model of the target.
        """
        reason, own_heads = self._reason(pair := self._pair(target, drafter)), self._own_head_names(pair)
        return [
            choices.describe(method_info.describe(method), reason(method.needs), own_heads)
            for method in registry.methods()
        ]

    def sampling_params(self) -> list[dict[str, Any]]:
        """Return the descriptions of the sampling parameters, which are equal for all methods."""
        return [spec.to_wire() for spec in params_of(SamplingParams()).values()]

    def presets(self) -> list[dict[str, Any]]:
        """Return the example prompts, each with name and title."""
        return presets([target["name"] for target in self.targets() if target.get("available", True)])

    def definitions(self) -> dict[str, dict[str, str]]:
        """Return title and formula of each measured quantity, such as the acceptance rate, by name."""
        return {name: {"title": title, "formula": formula} for name, (title, formula) in DEFINITIONS.items()}

    def unavailable_actions(self) -> dict[str, str]:
        """Return the actions on runs that the backend does not support: none, as an empty dict."""
        return {}

    def estimate(self, request: dict[str, Any]) -> str:
        """Return the expected GPU time of a run as text; "" on a backend without GPU quotas."""
        return ""

    def metrics_text(self) -> str:
        """Return all metrics of the backend in Prometheus' text format."""
        return self._telemetry.text()

    # -- runs ----------------------------------------------------------------------------------------------------

    def start(
        self,
        prompt: str | list[int],
        method: str = "draft-model",
        params: dict[str, Any] | None = None,
        target: str | None = None,
        drafter: str | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        stop: Sequence[str] = (),
        paused: bool = False,
        *,
        images: Sequence[Any] = (),
        pace: float = 0.0,
        user: str = LOCAL,
        lease_s: float | None = None,
        is_timed: bool = False,
        extras: RequestOptions | None = None,
        memory: bytes | None = None,
        keeps: bool = False,
    ) -> Run:
        """Start a generation, and return its run at once, without waiting for tokens.

        See `workbench.client.protocol.Client.start` for the arguments. The additional argument `is_timed` says whether
        the run's times are measured. While such a run is running, all other runs on the device are suspended.

        Raises:
            WorkbenchError: the request is wrong. An error that is found only after the models are loaded ends the run
                instead.
        """
        with self._telemetry.counting():
            if extras is not None and isinstance(prompt, list | tuple) and not images:
                prompt = extras.truncate(prompt)  # truncate before the tokens are counted
            configured, sampling = check_request(self.limits, prompt, method, params, max_new_tokens, seed, stop)
            if extras is not None:
                extras.check_length(max_new_tokens)
            pair = self._pair(target, drafter, configured.drafter.ignores_images)
            if not isinstance(images, list | tuple) or images:
                self._runs.check_room(user, is_timed)  # before images are decoded
            pictures = decode_all(images)
            if pictures and self._accepts_images(pair[0]) is False:
                raise PromptError(
                    f"The target {pair[0]} reads text only.", "Remove the images, or choose another target."
                )
            request = Request(
                prompt, configured, sampling, max_new_tokens, seed, tuple(stop), paused=paused,
                pace=check_pace(0.0 if is_timed else pace), pil_images=pictures, options=extras or RequestOptions(),
                stop_at_eos=extras is None or not extras.ignore_eos, drafter_state=memory, keep_drafter_state=keeps,
            )  # fmt: skip
            return self._start(request, pair, user, lease_s, is_timed, params or {})

    def generate(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> Trace:
        """Run a generation to its end and return its trace."""
        return self.start(prompt, method, **options).wait()

    def compare(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        progress: Callable[[Step], None] | None = None,
        **settings: Any,
    ) -> Comparison:
        """Compare methods with their settings (lanes), as `workbench.client.Workbench.compare` does."""
        from workbench.bench.compare import finish

        return finish(self.stream_comparison(prompts, lanes, **settings), progress)

    def run(self, run_id: str) -> Run:
        """Return the run (a generation in the backend) with the given id.

        Raises:
            UnknownNameError: there is no run with this id, or it ended long ago. The message names no other runs.
        """
        return self._runs.get(run_id)

    def drop_run(self, run: Run) -> None:
        """Free the memory of an ended run at once, instead of `Limits.kept_s` seconds after its end."""
        if run.ended:
            self._runs.remove(run)

    def admit_request(self, user: str, counted: bool = True) -> None:
        """Count a request that starts no run toward the rate limit; with counted=False only check the limit.

        Raises:
            CapacityError: the user's address has made too many requests within a minute.
        """
        self._runs.rate_limiter.admit_request(user, counted=counted)

    def charge_call(self, user: str, seconds: float = 0.0) -> None:
        """Charge a user's client address for the CPU time of a call from the page.

        Args:
            user: key of the user.
            seconds: CPU seconds of the call; 0: only check whether the address may make another call.
        """
        if seconds:
            self._runs.rate_limiter.charge(user, seconds, SECONDS)
        else:
            self._runs.rate_limiter.check(user, SECONDS)

    def stream_comparison(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = LOCAL,
        **settings: Any,
    ) -> Iterator[Step]:
        """Compare methods with their settings (lanes), one run at a time on the device, and yield the progress.

        See `workbench.bench.compare.measure` for arguments and results.
        """
        from workbench.bench.compare import measure  # imported late: few visits need statistics

        self.admit_request(user)
        decode_all(settings.get("images") or ())  # reports invalid images before the first step
        return measure(self, prompts, lanes, stopped=stopped, user=user, **settings)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """Return the conditions of a measurement besides its settings, such as machine and library versions.

        Args:
            lane: method with its settings.
            target: name of the target; None: the default one.

        Returns:
            The conditions, as from `workbench.bench.conditions`; None if the weights are not on this machine yet.

        Raises:
            WorkbenchError: the method or the model does not exist.
        """
        from workbench.bench.conditions import conditions
        from workbench.bench.lanes import Lane

        resolved = Lane.of(lane)
        pair = self._pair(target, resolved.drafter, resolved.configured.drafter.ignores_images)
        return conditions(resolved, *pair, **self._device_options())
