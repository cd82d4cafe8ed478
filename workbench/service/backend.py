"""One process, one device, one engine thread: models are loaded once, and all users' runs share them.

The engine thread owns every engine and row. Other threads only put work into its inbox or set flags that it reads
between rounds. Models are loaded in a second thread, so that running generations never wait for a file.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from workbench.core.errors import CapacityError, MethodUnavailableError, PromptError, UnknownNameError, WorkbenchError
from workbench.core.params import ParamSpec, params_of
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Method, Models, Request, load_models
from workbench.engine.models import DEFAULT_DRAFTER, DEFAULT_TARGET, resolve_device, resolve_dtype
from workbench.engine.request import Row
from workbench.methods import registry
from workbench.service import catalogue
from workbench.service.presets import presets
from workbench.service.run import Run

log = logging.getLogger("workbench.service")

MAX_RUNS = 64
"""Runs that may wait or run at once in one backend."""
KEEP_ENDED_S = 900.0
"""Seconds an ended run can still be fetched."""


class Backend:
    """Loads models, runs generations, keeps their traces for a while.

    Args:
        target: default target.
        drafter: default draft model; "auto" is the bundled one for the bundled target.
        device: of all models.
        dtype: of targets; see `workbench.engine.models.resolve_dtype`.
        drafter_dtype: of draft models.
        max_rows: runs that share a target's rounds.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        drafter: str | None = "auto",
        device: str = "auto",
        dtype: str = "auto",
        drafter_dtype: str = "auto",
        max_rows: int = 16,
    ) -> None:
        self.default_target, self.default_drafter = target, drafter
        self._options: dict[str, Any] = {"device": device, "dtype": dtype, "drafter_dtype": drafter_dtype}
        self._max_rows = max_rows
        self._engines: dict[str, Engine] = {}
        self._models: dict[tuple[str, str | None], Models] = {}
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._closed = False
        self._loads: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._engine_thread, name="workbench-engine", daemon=True),
            threading.Thread(target=self._load_thread, name="workbench-loader", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- what there is -------------------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """Bundled targets, and those loaded from elsewhere."""
        return catalogue.targets(list(self._engines))

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Draft models with, for each, whether it fits the target and why not."""
        return catalogue.drafters(target or self.default_target)

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """All methods with parameters, and whether each can run with these models."""
        target, drafter = self._pair(target, drafter)
        models = self._models.get((target, drafter))
        reason = models.why_not if models is not None else catalogue.static_reasons(target, drafter)
        return [catalogue.describe(method, reason(method.needs)) for method in registry.methods()]

    def sampling_params(self) -> list[dict[str, Any]]:
        """Parameters of sampling, which every method shares."""
        return [spec.to_wire() for spec in params_of(SamplingParams()).values()]

    def presets(self) -> list[dict[str, Any]]:
        """Prompts to start with."""
        return presets()

    def device_label(self, target: str | None = None) -> str:
        """Device and dtype, as in "CPU · float32"."""
        device = resolve_device(self._options["device"])
        dtype = resolve_dtype(self._options["dtype"], device)
        return f"{device.type.upper()} · {str(dtype).removeprefix('torch.')}"

    # -- models --------------------------------------------------------------------------------------------------

    def load(self, target: str | None = None, drafter: str | None = None) -> Models:
        """Load models now and wait for them.

        Raises:
            WorkbenchError: they cannot be loaded.
        """
        pair = self._pair(target, drafter)
        done: queue.SimpleQueue[Models | WorkbenchError] = queue.SimpleQueue()
        self._loads.put(lambda: done.put(self._try_load(pair)))
        result = done.get()
        if isinstance(result, WorkbenchError):
            raise result
        return result

    def preload(self) -> None:
        """Start loading the default models in the background."""

        def load() -> None:
            self._try_load(self._pair(None, None))

        self._loads.put(load)

    def _pair(self, target: str | None, drafter: str | None) -> tuple[str, str | None]:
        target = target or self.default_target
        if drafter in (None, "", "auto"):
            drafter = self.default_drafter if target == self.default_target else None
        if drafter in ("auto", None):
            fits = target == DEFAULT_TARGET and any(d["name"] == DEFAULT_DRAFTER for d in catalogue.drafters(target))
            drafter = DEFAULT_DRAFTER if fits else None
        return target, None if drafter == "none" else drafter

    def _try_load(self, pair: tuple[str, str | None]) -> Models | WorkbenchError:
        try:
            return self._load(pair)
        except WorkbenchError as error:
            return error
        except Exception as error:
            log.exception("loading %s failed", pair)
            return WorkbenchError(f"Loading {pair[0]} failed: {error}", "See the log.")

    def _load(self, pair: tuple[str, str | None]) -> Models:
        """In the loader's thread only."""
        if pair in self._models:
            return self._models[pair]
        target, drafter = pair
        started = time.monotonic()
        if target not in self._engines:
            models = load_models(target, drafter, **self._options)
            self._engines[target] = Engine(models, self._max_rows)
        else:
            models = self._engines[target].models.with_drafter(drafter, self._options["drafter_dtype"])
        self._models[pair] = models
        log.info("loaded %s with %s in %.1f s", target, drafter, time.monotonic() - started)
        return models

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
        stop: tuple[str, ...] = (),
        paused: bool = False,
    ) -> Run:
        """Start a generation and return at once.

        Args:
            prompt: text, or token ids.
            method: registry name.
            params: of the method and of sampling, in one dict; what is missing has its default.
            target: by default the backend's.
            drafter: draft model; None: the one that belongs to the target; "none": none.
            max_new_tokens: end after this many.
            seed: decides every random number.
            stop: strings that end the text.
            paused: wait for `resume` or `step` before the first round.

        Raises:
            WorkbenchError: the request is wrong. What only shows when models are loaded ends the run with an error.
        """
        if not prompt:
            raise PromptError("The prompt is empty.", "Write at least one word for the model to continue.")
        chosen = registry.get(method)
        mine, sampling = split_params(chosen, params or {})
        configured = chosen.with_params(**mine)
        pair = self._pair(target, drafter)
        models = self._models.get(pair)
        reason = models.why_not(chosen.needs) if models is not None else ""
        if reason:
            raise MethodUnavailableError(f"{chosen.title} cannot run: {reason}", "See the list of methods.")
        self._forget_old()
        with self._lock:
            active = sum(not run.ended for run in self._runs.values())
            if active >= MAX_RUNS:
                raise CapacityError(
                    f"{active} runs are active, which is the limit.", "Wait for one to end, or stop one."
                )
            run = Run(self._change)
            run._wake = self._wake.set
            self._runs[run.id] = run
        request = Request(
            prompt,
            configured,
            sampling=sampling,
            max_new_tokens=int(max_new_tokens),
            seed=int(seed),
            stop=tuple(stop),
            paused=paused,
            on_round=lambda _: run._notify(),
        )
        if models is not None:
            self._submit(run, request, models)
        else:
            run.message = f"loading {pair[0]}"
            self._loads.put(lambda: self._load_then_submit(run, request, pair))
        return run

    def run(self, run_id: str) -> Run:
        """A run by its id.

        Raises:
            UnknownNameError: no such run, or it ended long ago. Other runs are not named.
        """
        with self._lock:
            if run_id not in self._runs:
                raise UnknownNameError("This run is not known here any more.", "Start a new one.")
            return self._runs[run_id]

    def _load_then_submit(self, run: Run, request: Request, pair: tuple[str, str | None]) -> None:
        models = self._try_load(pair)
        if isinstance(models, WorkbenchError):
            run._fail(str(models))
        else:
            self._submit(run, request, models)

    def _submit(self, run: Run, request: Request, models: Models) -> None:
        request.models = models
        engine = self._engines[models.target_name]

        def submit() -> None:
            try:
                row = engine.submit(request)
            except WorkbenchError as error:
                run._fail(str(error))
                return
            run._started(row)

        self._inbox.put(submit)
        self._wake.set()

    def _change(self, run: Run, method: str | None, params: dict[str, Any] | None, drafter: str | None) -> None:
        """Check a change against what the run will then be, and hand it to the row."""
        chosen = registry.get(method) if method else None

        def hand_over(row: Row) -> None:
            settings = row.asked()
            now = chosen or settings.configured.method
            mine, sampling = split_params(now, params or {}, settings.sampling)
            now.with_params(**mine)  # raises on a bad value, before anything changes
            models = settings.models
            if drafter:
                pair = self._pair(models.target_name, drafter)
                models = self._models.get(pair) or self.load(*pair)
            reason = models.why_not(now.needs)
            if reason:
                raise MethodUnavailableError(f"{now.title} cannot run: {reason}")
            row.change(chosen, mine, sampling, models)

        run._tell(hand_over)

    def _forget_old(self) -> None:
        now = time.monotonic()
        with self._lock:
            old = [i for i, run in self._runs.items() if run.ended and now - run.created > KEEP_ENDED_S]
            for run_id in old:
                del self._runs[run_id]

    # -- threads -------------------------------------------------------------------------------------------------

    def _engine_thread(self) -> None:
        while not self._closed:
            while not self._inbox.empty():
                self._inbox.get()()
            worked = False
            for engine in list(self._engines.values()):
                worked |= self._step(engine)
            if not worked:
                self._tell_all()
                self._wake.wait(0.05 if any(not e.idle for e in self._engines.values()) else 0.5)
                self._wake.clear()

    def _step(self, engine: Engine) -> bool:
        """One step of one engine. Should the engine itself fail, its runs are ended and the others go on."""
        n_rows = len(engine.rows)
        try:
            worked = engine.step()
        except Exception:
            log.exception("the engine failed; its runs are ended")
            for row in [*engine.rows, *engine.waiting]:
                row.cancel()
            return False
        if len(engine.rows) != n_rows:
            self._tell_all()
        return worked

    def _tell_all(self) -> None:
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            run._notify()

    def _load_thread(self) -> None:
        while True:
            job = self._loads.get()
            if job is None:
                return
            job()

    def close(self) -> None:
        """End all runs and both threads."""
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            if not run.ended:
                run.cancel()
        deadline = time.monotonic() + 2
        while any(not run.ended for run in runs) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._closed = True
        self._wake.set()
        self._loads.put(None)
        self._threads[0].join(timeout=5)


def split_params(
    method: Method, params: dict[str, Any], sampling: SamplingParams | None = None
) -> tuple[dict[str, Any], SamplingParams]:
    """Separate the sampling parameters from the method's own.

    Raises:
        UnknownNameError: a name that neither has.
        ParameterError: a sampling value out of range.
    """
    base = sampling or SamplingParams()
    specs: dict[str, ParamSpec] = params_of(base)
    mine = {name: value for name, value in params.items() if name not in specs}
    for name in mine:
        if name not in method.params:
            raise UnknownNameError.of(f"parameter of {method.name}", name, [*method.params, *specs])
    shared = {name: specs[name].parse(value) for name, value in params.items() if name in specs}
    return mine, dataclasses.replace(base, **shared)
