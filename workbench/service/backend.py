"""One process, one device, one engine thread: models are loaded once, and all users' runs share them.

The engine's thread is in `rounds`, the models are on a `shelf`, runs are in a `book`; here is what users can ask for.
Models are loaded in threads of their own, so that running generations never wait for a file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from workbench.core.errors import MethodUnavailableError, ModelError, PromptError, WorkbenchError
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.engine import Models, Request
from workbench.engine.attribution import explain
from workbench.engine.bundle import DEFAULT_TARGET
from workbench.engine.extras import Extras
from workbench.engine.method import Configured
from workbench.engine.models import encode, resolve_device, resolve_dtype
from workbench.engine.pictures import read, swapped
from workbench.engine.request import BOTH, ERROR, PAUSED, PREFILL, QUEUED, RUNNING, Row
from workbench.methods import registry
from workbench.methods.known import Known
from workbench.service import catalogue
from workbench.service.background import Background
from workbench.service.book import Book, round_bytes
from workbench.service.caller import watch
from workbench.service.chat import chat_ids
from workbench.service.fairlock import FairLock
from workbench.service.limits import LOCAL, Limits
from workbench.service.logs import alias
from workbench.service.names import Names, Pair
from workbench.service.params import check_pace, check_request, split_params
from workbench.service.pictures import decode_all, picture_bytes
from workbench.service.presets import presets
from workbench.service.progress import Progress
from workbench.service.rounds import Rounds
from workbench.service.run import LOADING, Run
from workbench.service.shelf import Shelf
from workbench.service.telemetry import Telemetry
from workbench.service.turns import Turns
from workbench.trace.events import Round
from workbench.trace.metrics import DEFINITIONS

log = logging.getLogger("workbench.service")

LOADERS = 4
"""Loads that go on at once; one of them builds, the others may be downloading."""


class Backend:
    """Loads models, runs generations, keeps their traces for a while.

    Args:
        target: default target.
        drafter: default draft model; "auto" is the bundled one for the bundled target.
        device: of all models.
        dtype: of targets; see `workbench.engine.models.resolve_dtype`.
        drafter_dtype: of draft models.
        max_rows: runs that share a target's rounds.
        limits: what users may ask for.
        memory_bytes: for weights and caches of all models; by default a share of the device's memory.
        allow_models: names that may be used besides the bundled ones and the defaults; None: any bundled name, folder
            or Hub id.
        folders: whether users may name folders and files of this machine; False for a server, whose users are others.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        drafter: str | None = "auto",
        device: str = "auto",
        dtype: str = "auto",
        drafter_dtype: str = "auto",
        max_rows: int = 16,
        *,
        limits: Limits | None = None,
        memory_bytes: int | None = None,
        allow_models: Sequence[str] | None = None,
        folders: bool = True,
    ) -> None:
        self.limits, self.max_rows = limits or Limits(), max_rows
        self._names = Names(target, drafter, allow_models, folders)
        self._options: dict[str, Any] = {"device": device, "dtype": dtype, "drafter_dtype": drafter_dtype}
        self._born = time.monotonic()
        self._book = Book(self.limits)
        self._telemetry = Telemetry(self.health)
        self._turns = Turns(lambda: self._rounds.wake())
        self._shelf = Shelf(self._options, max_rows, memory_bytes, self._holds, self._telemetry.shelf, self._turns)
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="workbench-loader")
        self._loading: dict[Pair, tuple[Progress, list[tuple[Run, Request]]]] = {}
        self._closing = threading.Event()
        self._progress = partial(Progress, is_over=self._closing.is_set)
        self._background = Background(self._load, self._shelf.room, self._progress)
        self._lock = threading.Lock()
        self._clearing, self._explaining = threading.Lock(), FairLock()
        self._rounds = Rounds(self._shelf, self._book, self.limits, self._make_room, self._turns)

    # -- what there is -------------------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """The default target, then bundled ones, those allowed by name, and those loaded from elsewhere."""
        loaded = [desk.name for desk in self._shelf.desks()]
        names = [self._names.target, *self._names.allowed, *loaded]
        found = self._background.tell(catalogue.targets(list(dict.fromkeys(names))), loaded)
        return sorted(found, key=lambda entry: entry["name"] != self._names.target)

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Draft models with, for each, whether it fits the target and why not."""
        return catalogue.drafters(self._names.pair(target, "none")[0])

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """All methods with parameters, and whether each can run with these models."""
        pair = self._names.pair(target, drafter)
        models = self._shelf.get(pair)
        reason = models.why_not if models is not None else catalogue.static_reasons(*pair)
        return [catalogue.describe(Known.of(method), reason(method.needs)) for method in registry.methods()]

    def sampling_params(self) -> list[dict[str, Any]]:
        """Parameters of sampling, which every method shares."""
        return [spec.to_wire() for spec in params_of(SamplingParams()).values()]

    def presets(self) -> list[dict[str, Any]]:
        """Prompts to start with."""
        return presets([target["name"] for target in self.targets()])

    def definitions(self) -> dict[str, dict[str, str]]:
        """What each figure means, by name: {"title", "formula"}."""
        return {name: {"title": title, "formula": formula} for name, (title, formula) in DEFINITIONS.items()}

    @property
    def default_target(self) -> str:
        """The target of runs that name none."""
        return self._names.target

    def device_label(self, target: str | None = None) -> str:
        """Device and dtype, as in "CPU · float32"."""
        device = resolve_device(self._options["device"])
        dtype = resolve_dtype(self._options["dtype"], device)
        return f"{device.type.upper()} · {str(dtype).removeprefix('torch.')}"

    @property
    def hub_only(self) -> bool:
        """Whether names that are not listed are the Hub's alone: no folder of this machine is looked for."""
        return not self._names.folders

    # -- models --------------------------------------------------------------------------------------------------

    def load(self, target: str | None = None, drafter: str | None = None) -> Models:
        """Load models now and wait for them.

        Raises:
            WorkbenchError: they cannot be loaded, or the draft model does not fit the target.
        """
        pair = self._names.pair(target, drafter)
        models = self._loaders.submit(self._load, pair, self._progress(pair[0])).result()
        if pair[1] is not None and models.drafter is None:
            raise models.drafter_error or ModelError(models.drafter_problem)
        return models

    def preload(self, also: Sequence[str] = ()) -> None:
        """Start loading the default models in the background, then the published targets of these names."""
        self._loaders.submit(self._background.run, self._names.pair(None, None), also)

    def unload(self, target: str | None = None) -> None:
        """Take a target and its draft models out of memory.

        Raises:
            UnknownNameError: it is not loaded.
            CapacityError: a run uses it.
        """
        self._shelf.unload(self._names.name(target or self._names.target))

    def loaded(self) -> list[dict[str, Any]]:
        """What is in memory: name, role, bytes, dtype, device, runs that use it, idle_s since its last use."""
        return self._shelf.loaded()

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        """Token ids of a conversation in the target's chat format, ready for the answer. Loads the target.

        Raises:
            PromptError: the target has no chat format, or the messages do not fit it.
        """
        pair = self._names.pair(target, None)
        models = self._shelf.get(pair) or self._loaders.submit(self._load, pair, self._progress(pair[0])).result()
        return chat_ids(models.tokenizer, messages, self.limits)

    def _load(self, pair: Pair, progress: Progress) -> Models:
        """In a loader's thread."""
        try:
            return self._shelf.load(pair, progress)
        except WorkbenchError as error:
            self._telemetry.error(error)
            raise
        except BaseException as error:  # whatever ends this thread leaves those who wait for it waiting
            log.exception("loading failed")
            self._telemetry.error(error)
            raise ModelError(
                f"{pair[0]} cannot be loaded ({type(error).__name__}).", "The backend's log says more."
            ) from error

    def _make_room(self, n_bytes: int) -> None:
        """Give up idle models in a loader's thread, unless that is going on."""
        if self._clearing.acquire(blocking=False):
            clearing = self._loaders.submit(self._shelf.make_room, n_bytes)
            clearing.add_done_callback(lambda _: (self._clearing.release(), self._rounds.wake()))

    def _holds(self) -> Counter[Pair]:
        return Counter(pair for run in self._book.active() for pair in list(run.holds))

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
            images: pictures for a target that reads them: bytes of files, data-URLs, paths or PIL images. Each takes
                the place of one placeholder of the prompt; where there is none, they come first.
            pace: tokens a second at which rounds are held back so that people can follow, and steer; 0: they are not.
                The waiting is in no figure. A timed run (`alone`) is never held back, and none while others wait for
                its row.
            user: opaque key for limits and fairness; "local" has no limit of runs.
            lease_s: cancel the run when nobody followed it for so many seconds; None: never.
            alone: it is timed: all other runs stand still while it has a row.
            extras: other ends, penalties, log-probabilities; see there.

        Raises:
            WorkbenchError: the request is wrong. What only shows when models are loaded ends the run with an error.
        """
        with self._telemetry.counting():
            wishes = extras or Extras()
            if isinstance(prompt, list | tuple) and not images:
                prompt = wishes.kept(prompt)  # before they are counted
            configured, sampling = check_request(self.limits, prompt, method, params, max_new_tokens, seed, stop)
            pictures = decode_all(images)
            pair = self._names.pair(target, drafter, configured.drafter.blind)
            if pictures and catalogue.reads_pictures(pair[0]) is False:
                raise PromptError(f"{pair[0]} reads text only.", "Leave the pictures out, or choose another target.")
            run = Run(self, user, configured.method.name, lease_s)
            run.planned = (configured, sampling, pair)
            run.alone, run.pace = alone, check_pace(0.0 if alone else pace)
            run.holds.add(pair)
            request = Request(
                prompt, configured, sampling, max_new_tokens, seed, tuple(stop),
                paused=paused, pace=run.pace, on_round=lambda record: self._on_round(run, record), pictures=pictures,
                extras=wishes, stop_at_eos=not wishes.ignore_eos,
            )  # fmt: skip
            run.request = request
            run.trace_bytes += picture_bytes(pictures)
            self._book.add(run, max_new_tokens)
            models = self._shelf.get(pair)  # once the run is in the book, nobody gives up what it holds
            if models is None:
                self._queue_once_loaded(run, request, pair)
                return run
            try:
                self._queue(run, request, models)
            except BaseException:
                self._book.remove(run)
                raise
            return run

    def run(self, run_id: str) -> Run:
        """A run by its id.

        Raises:
            UnknownNameError: no such run, or it ended long ago. Other runs are not named.
        """
        return self._book.get(run_id)

    def comparing(self, prompts: str | Sequence[Any], lanes: Sequence[Any], **options: Any) -> Iterator[Any]:
        """Compare lanes, each alone on the device; see `workbench.bench.compare.measure`."""
        from workbench.bench.compare import measure  # statistics, which few visits need

        self._book.meter.let_in(options.get("user", LOCAL))
        return measure(self, prompts, lanes, **options)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """All that decides what a measurement of a lane gives here, besides its settings: see `bench.conditions`.

        None: the weights are not here yet.

        Raises:
            WorkbenchError: there is no such lane or model.
        """
        from workbench.bench.conditions import conditions
        from workbench.bench.lanes import Lane

        found = Lane.of(lane)
        return conditions(
            found, *self._names.pair(target, found.drafter, found.configured.drafter.blind), **self._options
        )

    def pairing(self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any) -> Iterator[Any]:
        """Measure a speed-up pair by pair in the background; see `workbench.bench.pairing.measure_pairs`."""
        from workbench.bench.pairing import measure_pairs  # statistics, which few visits need

        self._book.meter.let_in(options.get("user", LOCAL))
        return measure_pairs(self, prompt, method, params, **options)

    def others_run(self, besides: Run | None = None) -> bool:
        """Whether somebody's run goes on, those left aside that stand paused or measure in the background."""
        return any(run is not besides and not run.background and run.state != PAUSED for run in self._book.active())

    def let_in(self, user: str, counted: bool = True) -> None:
        """Count a request that is no run, or only ask whether there is room for one.

        Raises:
            CapacityError: its address has made too many in a minute.
        """
        self._book.meter.let_in(user, counted=counted)

    def forget(self, run: Run) -> None:
        """Give an ended run's memory back at once, instead of keeping it for those who may ask."""
        if run.ended:
            self._book.remove(run)

    def _queue_once_loaded(self, run: Run, request: Request, pair: Pair) -> None:
        """All who need one pair wait for one load, and are queued in the order they came."""
        with self._lock:
            is_first = pair not in self._loading
            progress, waiting = self._loading.setdefault(pair, (self._progress(pair[0]), []))
            waiting.append((run, request))
            run.loads(progress)
        if is_first:
            self._loaders.submit(self._load_then_queue, pair, progress)

    def _load_then_queue(self, pair: Pair, progress: Progress) -> None:
        """In a loader's thread."""
        models, problem = None, None
        try:
            models = self._load(pair, progress)
        except WorkbenchError as error:
            problem = error
        with self._lock:
            _, waiting = self._loading.pop(pair)
        for run, request in waiting:
            if problem is not None or models is None:
                run.end(ERROR, problem)
            elif not run.ended:
                try:
                    self._queue(run, request, models)
                except BaseException as error:
                    self._telemetry.error(error)
                    said = f"The run could not be started ({type(error).__name__})."
                    run.end(ERROR, error if isinstance(error, WorkbenchError) else WorkbenchError(said))

    def _queue(self, run: Run, request: Request, models: Models) -> None:
        """Check what only the models can tell, then wait for a row."""
        method = request.configured().method
        reason = models.why_not(method.needs)
        if reason:
            raise MethodUnavailableError(f"{method.title} cannot run: {reason}", "See the list of methods.")
        if request.pictures:
            request.prompt, request.images = read(models, request.prompt, request.pictures)
        prompt = request.prompt if request.images is None else request.images["input_ids"][0].tolist()
        prompt = encode(models.tokenizer, prompt) if isinstance(prompt, str) else prompt
        n_prompt = len(prompt if request.images is not None else request.extras.kept(prompt))
        self.limits.check_prompt_tokens(n_prompt)
        self._book.charge(run, n_prompt)
        desk = self._shelf.desk(models.target_name)
        assert desk is not None, "the run holds its models"
        desk.check_fit(n_prompt, request.max_new_tokens)
        self._rounds.put(run, request, models)

    def _on_round(self, run: Run, record: Round) -> None:
        """In the engine's thread, after each round."""
        self._telemetry.round(record, run.trace.rounds[-2] if run.trace and record.index else None)
        run.trace_bytes += round_bytes(record)
        run.notify()

    # -- what runs ask of their host -----------------------------------------------------------------------------

    def change(
        self,
        run: Run,
        method: str | None,
        params: dict[str, Any] | None,
        drafter: str | None,
        images: Sequence[Any] = (),
        sees: str = BOTH,
    ) -> None:
        """Check a change against what the run will then be, and hand it to the row. Loads a new draft model."""
        pictures = decode_all(images)
        if pictures and (run.ended or not run.request.pictures):
            raise PromptError("The run has no pictures that could be changed.", "Start a run with pictures.")
        run.trace_bytes += picture_bytes(pictures)
        chosen = registry.get(method) if method else None
        pair: Pair = run.planned[2]
        other: Models | None = None
        if drafter:
            pair = self._names.pair(pair[0], drafter)
            run.holds.add(pair)
            other = self._shelf.get(pair) or self.load(*pair)

        def checked(configured: Configured, sampling: SamplingParams, models: Models | None) -> dict[str, Any]:
            now = chosen or configured.method
            mine, sampling = split_params(now, params or {}, sampling)
            changed = configured.changed(**mine) if now is configured.method else now.with_params(**mine)
            reason = models.why_not if models is not None else catalogue.static_reasons(*pair)
            if reason(now.needs):
                raise MethodUnavailableError(f"{now.title} cannot run: {reason(now.needs)}")
            swap = swapped(models, run.request, pictures, sees) if pictures and models is not None else None
            run.planned = changed, sampling, pair
            return {"method": chosen, "params": mine, "sampling": sampling, "models": models, "swap": swap}

        def hand_over(row: Row) -> None:
            settings = row.asked()
            row.change(**checked(settings.configured, settings.sampling, other or settings.models))

        if run.row is None:
            configured, sampling, _ = run.planned
            checked(configured, sampling, other or self._shelf.get(pair))
        run.tell(hand_over)

    def explain(self, run: Run) -> dict[str, Any]:
        """On which parts of its pictures the text of a run leans; kept in its trace. In the caller's thread.

        One is worked out at a time, addresses by turns, and none while a run is timed; `run.explained` says how far it
        is. It is broken off when its caller leaves.

        Raises:
            PromptError: the run has no pictures, or no tokens yet.
            CapacityError: it is too long, or the address of its user asks for too much.
            LeftError: the caller left.
        """
        if run.trace is None or run.request.images is None:
            raise PromptError("There is nothing to explain yet.", "Start a run with pictures, and wait for a token.")
        configured, pair = run.in_force
        models = self._shelf.get(pair) or self.load(*pair)

        gone = watch()
        self._book.meter.let_in(run.user)

        def told(done: float) -> None:
            gone()
            run.explained = done

        told(0.0)
        try:
            with self._explaining.hold(run.user, gone), self._turns.beside():
                run.trace.attribution = explain(models, run.request, run.trace, configured.drafter, told)
        finally:
            run.explained = None
        return run.trace.attribution

    def place(self, run: Run) -> tuple[int, int] | None:
        """Where a run stands in the queue, and how long the queue is."""
        return self._rounds.place(run)

    def wake(self) -> None:
        """Let the engine look again."""
        self._rounds.wake()

    def started(self, run: Run) -> None:
        """A run has got its row."""
        self._telemetry.started(run)

    def ended(self, run: Run) -> None:
        """A run has ended."""
        self._telemetry.ended(run)
        self._book.settle(run)
        self._rounds.wake()
        for pair in run.holds:
            self._shelf.get(pair)  # used until now
        trace = run.trace
        log.info(
            "run ended",
            extra={
                "run": alias(run.id), "user": alias(run.user), "method": run.method, "state": run.state,
                "rounds": len(trace.rounds) if trace else 0, "seconds": round(time.monotonic() - run.created, 3),
            },
        )  # fmt: skip

    # -- how it is doing -----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """How the backend is doing, without names.

        Returns:
            status ("ok", "stalled", "failing", "down"), uptime_s, device, runs by state, queue, rows, models, and
            memory in bytes: models and caches, their limit, traces, and what the device has free.
        """
        active, desks = self._book.active(), self._shelf.desks()
        states = Counter(run.state for run in active)
        return {
            "status": self._rounds.status,
            "uptime_s": round(time.monotonic() - self._born, 1),
            "device": self.device_label(),
            "runs": {state: states[state] for state in (LOADING, QUEUED, PREFILL, RUNNING, PAUSED)},
            "queue": sum(len(desk.queue) for desk in desks),
            "rows": sum(len(desk.runs) for desk in desks),
            "models": sum(len(list(desk.runners())) for desk in desks),
            "memory": self._shelf.memory() | {"traces": self._book.trace_bytes},
        }

    def metrics_text(self) -> str:
        """All figures in Prometheus' text format."""
        return self._telemetry.text()

    def close(self) -> None:
        """End runs, threads and loads under way, which the process would wait for, and let go of all models."""
        self._closing.set()
        runs = self._book.active()
        for run in runs:
            run.cancel()
        deadline = time.monotonic() + 2
        while any(not run.ended for run in runs) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._loaders.shutdown(wait=False, cancel_futures=True)
        self._rounds.close()
        self._shelf.close()
