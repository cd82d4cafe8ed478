"""Backend in this process: one device and one engine thread; models are loaded once and shared by all users' runs.

`Backend` has the calls for users. It combines the engine's thread (`engine_thread`), the loading of models (`loading`)
into a pool (`modelpool`), the register of runs (`runregister`) and changes of runs (`run_control`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workbench.core.errors import MethodUnavailableError, ModelError
from workbench.engine import Models, Request
from workbench.engine.image_inputs import process_prompt
from workbench.engine.request import PAUSED, PREFILL, QUEUED, RUNNING
from workbench.methods import registry
from workbench.models.bundle import DEFAULT_TARGET, bundled
from workbench.models.checkpoints import user_heads
from workbench.models.loading import own_infos
from workbench.models.local_models import trained_for
from workbench.models.pretrained import encode, resolve_device, resolve_dtype
from workbench.service import choices
from workbench.service.background import BackgroundLoader
from workbench.service.base import BaseBackend
from workbench.service.chat import chat_ids
from workbench.service.engine_thread import EngineThread
from workbench.service.image_decoding import image_bytes
from workbench.service.limits import Limits
from workbench.service.loading import ModelLoader
from workbench.service.logs import alias
from workbench.service.modelpool import ModelPool
from workbench.service.names import Names, Pair
from workbench.service.run import LOADING, PlannedSettings, Run
from workbench.service.run_control import RunController
from workbench.service.timing_coordination import TimingCoordinator
from workbench.service.users import LOCAL
from workbench.trace.events import Round

log = logging.getLogger("workbench.service")


class Backend(BaseBackend):
    """Load models, run generations, and keep their traces for a limited time.

    Args:
        target: default target.
        drafter: default draft model; "auto": the draft model bundled for the target.
        device: device of all models.
        dtype: number format of targets; see `workbench.models.pretrained.resolve_dtype`.
        drafter_dtype: number format of draft models.
        max_sequences: maximum number of sequences in a target's batch.
        limits: limits of users.
        memory_bytes: memory for weights and KV caches of all models; None: a fraction of the device's memory.
        allow_models: models that may be used besides the bundled ones and the defaults; None: any bundled name, folder
            or Hub id.
        folders: whether users may name folders and files on this machine; False for a server with other users.
    """

    capabilities = frozenset({"pairing", "recommending", "heads"})

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        drafter: str | None = "auto",
        device: str = "auto",
        dtype: str = "auto",
        drafter_dtype: str = "auto",
        max_sequences: int = 16,
        *,
        limits: Limits | None = None,
        memory_bytes: int | None = None,
        allow_models: Sequence[str] | None = None,
        folders: bool = True,
    ) -> None:
        super().__init__(limits)
        self.max_sequences = max_sequences
        self._names = Names(target, drafter, allow_models, folders)
        self._options: dict[str, Any] = {"device": device, "dtype": dtype, "drafter_dtype": drafter_dtype}
        self._timing = TimingCoordinator(lambda: self._engine_thread.wake())
        self._pool = ModelPool(
            self._options, max_sequences, memory_bytes, self._count_model_uses, self._telemetry.models, self._timing
        )
        self._loading = ModelLoader(self._pool, self._queue, self.wake, self._telemetry.error)
        self._background = BackgroundLoader(self._loading.load, self._pool.room, self._loading.progress)
        self._engine_thread = EngineThread(self._pool, self._runs, self.limits, self._loading.make_room, self._timing)
        self._run_controller = RunController(
            self._names, self._pool, lambda pair: self.load(*pair), self.admit_request, self._timing, self.wake
        )

    # -- lists ---------------------------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """Return a dict for each target model: first the default one, then bundled, allowed and loaded targets."""
        loaded = [target.name for target in self._pool.targets()]
        names = [self._names.target, *self._names.allowed, *loaded]
        entries = [entry for entry in choices.targets(list(dict.fromkeys(names))) if self._names.may_use(entry["name"])]
        entries_with_progress = self._background.add_progress(entries, loaded)
        return sorted(entries_with_progress, key=lambda entry: entry["name"] != self._names.target)

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Return a dict for each draft model, which says whether the model fits the target and, if not, why."""
        return choices.drafters(self._names.resolve_pair(target, "none")[0])

    def _pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        pair = self._names.resolve_pair(target, drafter, blind)
        if self._names.restricted:
            self._background.refuse(pair[0])
        return pair

    def _device_options(self) -> dict[str, Any]:
        return self._options

    def _reason(self, pair: Pair) -> Callable[[tuple[str, ...]], str]:
        models = self._pool.get(pair)
        return models.unsupported_reason if models is not None else super()._reason(pair)

    def _own_head_names(self, pair: Pair) -> dict[str, str]:
        models = self._pool.get(pair)
        if models is None:
            return super()._own_head_names(pair)
        bundled_folders = {folder.resolve() for folder in bundled().values()}
        return {kind: info.name for kind, info in models.heads.items() if info.folder.resolve() not in bundled_folders}

    def device_label(self, target: str | None = None) -> str:
        """Return device and dtype of a target, for example "CPU · float32"."""
        device = resolve_device(self._options["device"])
        dtype = resolve_dtype(self._options["dtype"], device, self._names.resolve_pair(target, "none")[0])
        return f"{device.type.upper()} · {str(dtype).removeprefix('torch.')}"

    @property
    def hub_only(self) -> bool:
        """Return whether an unlisted model name is read only as a Hub id, never as a local folder."""
        return not self._names.folders

    # -- models --------------------------------------------------------------------------------------------------

    def load(self, target: str | None = None, drafter: str | None = None) -> Models:
        """Load a target and a draft model, and wait until they are loaded.

        A draft model whose vocabulary differs from the target's is loaded, too: some methods translate its tokens.

        Raises:
            WorkbenchError: the models cannot be loaded.
        """
        pair = self._pair(target, drafter)
        models = self._loading.wait(pair)
        if pair[1] is not None and models.draft_model is None:
            raise models.drafter_error or ModelError(models.drafter_problem)
        return models

    def preload(self, extra_targets: Sequence[str] = ()) -> None:
        """Load the default models in the background, and after them the published targets in `extra_targets`."""
        self._loading.threads.submit(self._background.run, self._names.resolve_pair(None, None), extra_targets)

    def unload(self, target: str | None = None) -> None:
        """Unload a target and its draft models.

        Raises:
            UnknownNameError: the target is not loaded.
            CapacityError: a run uses the target.
        """
        self._pool.unload(self._names.resolve(target or self._names.target))

    def loaded_models(self) -> list[dict[str, Any]]:
        """Return the models in memory, each as {"name", "role", "bytes", "dtype", "device", "runs", "idle_s"}.

        `runs` is the number of generations that use the model, `idle_s` the time since its last use in seconds.
        """
        return self._pool.loaded_models()

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        """Format a conversation with the target's chat template, and return its token ids. Loads the target.

        Raises:
            PromptError: the target has no chat template, or the messages do not fit it.
        """
        pair = self._pair(target, None)
        models = self._pool.get(pair) or self._loading.wait(pair)
        return chat_ids(models.tokenizer, messages, self.limits)

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Draft with the heads in a folder instead of other heads of the same kind; with `on` False, stop that.

        Returns:
            Number of running generations that change their heads. Each changes them before its next round.

        Raises:
            ModelError: the heads cannot be read, or do not fit the target. Then no generation changes its heads.
        """
        if not on:
            user_heads.prefer(folder, False)
            self._pool.find_heads()
            return 0
        head = user_heads.open_heads(folder)
        user_heads.prefer(folder)
        try:
            self._pool.find_heads()
            target = trained_for(dict(head.config))
            loaded = self._pool.target(target)
            infos = [] if loaded is None else own_infos(target, loaded.models[None].target)
            problems = [info.problem for _, info in infos if info.folder == head.folder]
            if any(problems):
                raise ModelError(problems[0], "Train the head again for this target.")
        except ModelError:
            user_heads.prefer(folder, False)
            self._pool.find_heads()
            raise
        drafting = [method.name for method in registry.methods() if head.kind in method.needs]
        runs = [run for run in self._runs.active() if run.planned is not None and run.planned.pair[0] == target]
        return sum(self._switch_heads(run, drafting) for run in runs)

    def _switch_heads(self, run: Run, drafting: Sequence[str]) -> bool:
        """Make a running generation draft with the heads that `prefer_heads` chose; return whether its heads change."""
        if run.is_timed or run.background or run.sequence is None or run.planned is None:
            return False
        method = run.planned.configured_method.name
        self._run_controller.change(run, method if method in drafting else drafting[0], None, None)
        return True

    def _count_model_uses(self) -> Counter[Pair]:
        return Counter(pair for run in self._runs.active() for pair in list(run.model_pairs))

    # -- runs ----------------------------------------------------------------------------------------------------

    def _start(
        self, request: Request, pair: Pair, user: str, lease_s: float | None, is_timed: bool, params: dict[str, Any]
    ) -> Run:
        configured = request.configured_method()
        run = Run(self, user, configured.name, lease_s)
        run.planned = PlannedSettings(configured, request.sampling, pair)
        run.is_timed, run.pace = is_timed, request.pace
        run.model_pairs.add(pair)
        run.request, request.on_round = request, run.record
        run.trace_bytes += image_bytes(request.pil_images)
        self._runs.add(run, request.max_new_tokens)
        models = self._pool.get(pair)  # after registering the run, whose models are then not evicted
        if models is None:
            self._loading.queue_once_loaded(run, request, pair)
            return run
        try:
            self._queue(run, request, models)
        except BaseException:
            self._runs.remove(run)
            raise
        return run

    def stream_pairs(
        self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any
    ) -> Iterator[Any]:
        """Measure a method's speed-up in the background by pairs of runs with and without it; yield the progress.

        See `workbench.bench.pairing.measure_pairs` for arguments and results.
        """
        from workbench.bench.pairing import measure_pairs  # imported late: few visits need statistics

        self.admit_request(options.get("user", LOCAL))
        return measure_pairs(self, prompt, method, params, **options)

    def stream_recommendation(self, prompts: Sequence[Any], **options: Any) -> Iterator[Any]:
        """Measure in the background which method is fastest on the given prompts; yield progress and a ranking.

        See `workbench.bench.advice.advise` for arguments and results.
        """
        from workbench.bench.advice import advise  # imported late: few visits need statistics

        self.admit_request(options.get("user", LOCAL))
        return advise(self, prompts, **options)

    def has_other_runs(self, excluding: Run | None = None) -> bool:
        """Return whether any run except those in `excluding` is active.

        Paused runs and background measurements do not count as active.
        """
        return any(run is not excluding and not run.background and run.state != PAUSED for run in self._runs.active())

    def _queue(self, run: Run, request: Request, models: Models) -> None:
        """Check that a run fits its loaded models, then put it into the queue of its target's batch."""
        configured = request.configured_method()
        if reason := configured.missing_requirements(models):
            raise MethodUnavailableError(
                f"{configured.method.title} cannot run: {reason}", "Choose an available method from the list."
            )
        configured.make_ready(models)
        if request.pil_images:
            request.prompt, request.image_inputs = process_prompt(models, request.prompt, request.pil_images)
            run.trace_bytes += image_bytes((), request.image_inputs)
        prompt = request.prompt if request.image_inputs is None else request.image_inputs["input_ids"][0].tolist()
        prompt = encode(models.tokenizer, prompt) if isinstance(prompt, str) else prompt
        n_prompt = len(prompt if request.image_inputs is not None else request.options.truncate(prompt))
        self.limits.check_prompt_tokens(n_prompt)
        self._runs.charge(run, n_prompt)
        loaded = self._pool.target(models.target_name)
        assert loaded is not None, "the models of an active run stay loaded"
        loaded.check_fit(n_prompt, request.max_new_tokens, configured.is_unbounded)
        self._engine_thread.put(run, request, models, loaded)

    # -- calls from runs: see `workbench.service.run.Host` -------------------------------------------------------

    def change(self, run: Run, *args: Any, **named: Any) -> None:
        """Check a change of a run's settings, load its new draft model, if any, and pass it to the engine."""
        self._run_controller.change(run, *args, **named)

    def explain(self, run: Run) -> dict[str, Any]:
        """Compute attribution maps of a run's tokens over regions of its images, and store them in the run's trace."""
        return self._run_controller.explain(run)

    def memory(self, run: Run, action: str, data: bytes | None) -> dict[str, Any]:
        """Inspect, save, load or reset the state of a run's drafter."""
        return self._run_controller.memory(run, action, data)

    def queue_position(self, run: Run) -> tuple[int, int] | None:
        """Return a run's position (from 1) in its target's queue, and the queue's length; None if it is not queued."""
        return self._engine_thread.queue_position(run)

    def wake(self) -> None:
        """Wake the engine thread from its sleep."""
        self._engine_thread.wake()

    def record_start(self, run: Run) -> None:
        """Count a run that has joined the batch in the metrics."""
        self._telemetry.started(run)

    def record_round(self, run: Run, record: Round) -> None:
        """Count a decoding round of a run in the metrics."""
        self._telemetry.round(record, run.trace.rounds[-2] if run.trace and record.index else None)

    def record_end(self, run: Run) -> None:
        """Count an ended run in the metrics."""
        self._telemetry.ended(run)
        self._runs.settle(run)
        self._engine_thread.wake()
        for pair in run.model_pairs:
            self._pool.get(pair)  # updates the time of last use
        trace = run.trace
        log.info(
            "run ended",
            extra={
                "run": alias(run.id), "user": alias(run.user), "method": run.method, "state": run.state,
                "rounds": len(trace.rounds) if trace else 0, "seconds": round(time.monotonic() - run.created, 3),
            },
        )  # fmt: skip

    # -- state ---------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return whether the backend works, with its load and memory (`workbench.client.protocol.Client.health`)."""
        active, targets = self._runs.active(), self._pool.targets()
        states = Counter(run.state for run in active)
        return {
            "status": self._engine_thread.status,
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            "device": self.device_label(),
            "runs": {state: states[state] for state in (LOADING, QUEUED, PREFILL, RUNNING, PAUSED)},
            "queue": sum(len(loaded.queue) for loaded in targets),
            "rows": sum(len(loaded.runs) for loaded in targets),
            "models": sum(len(list(loaded.runners())) for loaded in targets),
            "loading": self._loading.stage,
            "memory": self._pool.memory() | {"traces": self._runs.trace_bytes},
        }

    def close(self) -> None:
        """End all runs, stop the engine thread and all loading threads, and release all models."""
        self._loading.end()
        runs = self._runs.active()
        for run in runs:
            run.cancel()
        deadline = time.monotonic() + 2
        while any(not run.ended for run in runs) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._loading.close()
        self._engine_thread.close()
        self._pool.close()
