"""What every backend of this process answers alike, whatever its models run on."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.core.errors import PromptError
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.engine.extras import Extras
from workbench.engine.method import Configured
from workbench.methods import known, registry
from workbench.service import choices
from workbench.service.limits import Limits
from workbench.service.meter import SECONDS
from workbench.service.names import Pair
from workbench.service.params import check_pace, check_request
from workbench.service.pictures import decode_all
from workbench.service.presets import presets
from workbench.service.run import Run
from workbench.service.runregister import RunRegister
from workbench.service.telemetry import Telemetry
from workbench.service.users import LOCAL
from workbench.trace.events import Trace
from workbench.trace.metrics import DEFINITIONS

if TYPE_CHECKING:
    from workbench.bench.compare import Comparison
    from workbench.bench.steps import Step


@dataclass(frozen=True, slots=True)
class Asked:
    """A generation as it was asked for, see `workbench.client.protocol.Client.start`, and what is meant by that.

    Attributes:
        configured: the method with its parameters.
        pictures: decoded.
        pair: the target and the draft model that are meant.
        params: of the method and of sampling, as they were given.
    """

    prompt: str | list[int]
    configured: Configured
    sampling: SamplingParams
    pictures: tuple[Any, ...]
    pair: Pair
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...]
    paused: bool
    pace: float
    user: str
    lease_s: float | None
    alone: bool
    extras: Extras | None
    memory: bytes | None
    keeps: bool
    params: dict[str, Any]


class BaseBackend(ABC):
    """The part of `workbench.client.Client` that does not depend on where models are: lists, runs, measurements.

    Args:
        limits: what users may ask for.
    """

    offers: frozenset[str] = frozenset()
    ready = True

    def __init__(self, limits: Limits | None) -> None:
        self.limits = limits or Limits()
        self._runs, self._born = RunRegister(self.limits), time.monotonic()
        self._telemetry = Telemetry(self.health)

    # -- what differs --------------------------------------------------------------------------------------------

    @abstractmethod
    def targets(self) -> list[dict[str, Any]]:
        """Targets, the default one first: name, title, kind, detail."""

    @abstractmethod
    def health(self) -> dict[str, Any]:
        """How the backend is doing, without names."""

    @abstractmethod
    def _start(self, asked: Asked) -> Run:
        """Start a generation that was checked as far as that goes without its models."""

    @abstractmethod
    def _pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        """The target and the draft model that are meant. `blind`: of those that belong to it, one without eyes."""

    @abstractmethod
    def _kinds(self) -> dict[str, Any]:
        """Device and dtypes, as `workbench.bench.conditions` takes them."""

    def _reason(self, pair: Pair) -> Callable[[tuple[str, ...]], str]:
        """Why a method with such needs cannot run with a pair; empty: it can."""
        return choices.static_reasons(*pair)

    def _owned(self, pair: Pair) -> dict[str, str]:
        """Names of the heads of one's own that draft for a target, by kind."""
        return choices.owned(pair[0])

    def _reads_pictures(self, target: str) -> bool | None:
        return choices.reads_pictures(target)

    # -- what there is -------------------------------------------------------------------------------------------

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """All methods with parameters, and whether each can run with these models."""
        reason, own = self._reason(pair := self._pair(target, drafter)), self._owned(pair)
        return [choices.describe(known.describe(method), reason(method.needs), own) for method in registry.methods()]

    def sampling_params(self) -> list[dict[str, Any]]:
        """Parameters of sampling, which every method shares."""
        return [spec.to_wire() for spec in params_of(SamplingParams()).values()]

    def presets(self) -> list[dict[str, Any]]:
        """Prompts to start with."""
        return presets([target["name"] for target in self.targets() if target.get("available", True)])

    def definitions(self) -> dict[str, dict[str, str]]:
        """What each figure means, by name: {"title", "formula"}."""
        return {name: {"title": title, "formula": formula} for name, (title, formula) in DEFINITIONS.items()}

    def barred(self) -> dict[str, str]:
        """What cannot be done with a run here, and why: nothing."""
        return {}

    def estimate(self, request: dict[str, Any]) -> str:
        """What a run is expected to cost, in words; empty where nothing is to be asked for beforehand."""
        return ""

    def metrics_text(self) -> str:
        """All figures in Prometheus' text format."""
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
        alone: bool = False,
        extras: Extras | None = None,
        memory: bytes | None = None,
        keeps: bool = False,
    ) -> Run:
        """Start a generation and return at once; see `workbench.client.protocol.Client.start`.

        Args beyond those:
            alone: it is timed: all other runs stand still while it has a row, if it does not have a device of its own.

        Raises:
            WorkbenchError: the request is wrong. What only shows when models are loaded ends the run with an error.
        """
        with self._telemetry.counting():
            if extras is not None and isinstance(prompt, list | tuple) and not images:
                prompt = extras.kept(prompt)  # before they are counted
            configured, sampling = check_request(self.limits, prompt, method, params, max_new_tokens, seed, stop)
            if extras is not None:
                extras.check_length(max_new_tokens)
            pair = self._pair(target, drafter, configured.drafter.blind)
            if not isinstance(images, list | tuple) or images:
                self._runs.check_room(user, alone)  # before they are decoded
            pictures = decode_all(images)
            if pictures and self._reads_pictures(pair[0]) is False:
                raise PromptError(f"{pair[0]} reads text only.", "Leave the pictures out, or choose another target.")
            held = check_pace(0.0 if alone else pace)
            return self._start(Asked(prompt, configured, sampling, pictures, pair, max_new_tokens, seed, tuple(stop),
                                     paused, held, user, lease_s, alone, extras, memory, keeps,
                                     params or {}))  # fmt: skip

    def generate(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> Trace:
        """Start a generation and wait for its end."""
        return self.start(prompt, method, **options).wait()

    def compare(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        progress: Callable[[Step], None] | None = None,
        **settings: Any,
    ) -> Comparison:
        """Compare lanes and wait for the end; see `workbench.client.Workbench.compare`."""
        from workbench.bench.compare import finish

        return finish(self.comparing(prompts, lanes, **settings), progress)

    def run(self, run_id: str) -> Run:
        """A run by its id.

        Raises:
            UnknownNameError: no such run, or it ended long ago. Other runs are not named.
        """
        return self._runs.get(run_id)

    def forget(self, run: Run) -> None:
        """Give an ended run's memory back at once, instead of keeping it for those who may ask."""
        if run.ended:
            self._runs.remove(run)

    def let_in(self, user: str, counted: bool = True) -> None:
        """Count a request that is no run, or only ask whether there is room for one.

        Raises:
            CapacityError: its address has made too many in a minute.
        """
        self._runs.meter.let_in(user, counted=counted)

    def let_call(self, user: str, seconds: float = 0.0) -> None:
        """Charge an address for a page's call, or (0 s) ask whether it may make one; see `client.protocol.Client`."""
        if seconds:
            self._runs.meter.charge(user, seconds, SECONDS)
        else:
            self._runs.meter.check(user, SECONDS)

    def comparing(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = LOCAL,
        **settings: Any,
    ) -> Iterator[Step]:
        """Compare lanes, each alone on its device; see `workbench.bench.compare.measure`."""
        from workbench.bench.compare import measure  # statistics, which few visits need

        self.let_in(user)
        decode_all(settings.get("images") or ())  # what is wrong with them is said before the first step
        return measure(self, prompts, lanes, stopped=stopped, user=user, **settings)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """All that decides what a measurement of a lane gives here, besides its settings: see `bench.conditions`.

        None: the weights are not here yet.

        Raises:
            WorkbenchError: there is no such lane or model.
        """
        from workbench.bench.conditions import conditions
        from workbench.bench.lanes import Lane

        found = Lane.of(lane)
        pair = self._pair(target, found.drafter, found.configured.drafter.blind)
        return conditions(found, *pair, **self._kinds())
