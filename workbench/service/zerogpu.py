"""Backend on ZeroGPU, a service that assigns a GPU for one call at a time. Each call is one whole generation.

Models are moved to "cuda" when the app starts. Each generation then runs in a forked process with a GPU, which shares
nothing with the app afterwards and sends its rounds back as plain JSON. So a run can be followed and cancelled, but not
paused or changed; the page can only step through recorded rounds.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from workbench.core.errors import CapacityError, MethodUnavailableError, ModelError, WorkbenchError
from workbench.engine.request import CANCELLED, ERROR, QUEUED, RUNNING, Request
from workbench.engine.request_options import RequestOptions
from workbench.models.bundle import DEFAULT_TARGET
from workbench.models.local_models import short_name
from workbench.models.names import is_drafter, known_targets
from workbench.models.tokenizer_source import tokenizer_source_for
from workbench.service import choices
from workbench.service.base import BaseBackend
from workbench.service.chat import chat_ids
from workbench.service.costs import Costs
from workbench.service.limits import Limits
from workbench.service.logs import redact_error
from workbench.service.names import Pair
from workbench.service.run import Run
from workbench.service.zerogpu_models import ZeroGpuModels
from workbench.service.zerorun import REASON, ZeroRun
from workbench.trace.events import Round

log = logging.getLogger("workbench.service")

GPU = Callable[..., Any]
"""Type of `spaces.GPU`, a decorator with the argument `duration`, which may be a function of the call's arguments."""


class ZeroGpuBackend(BaseBackend):
    """Backend on ZeroGPU. It has to be created in the main thread before the app is launched.

    Args:
        gpu: the decorator `spaces.GPU`, which runs a function on a GPU.
        isolated: whether `gpu` runs each call in a separate process. Outside of ZeroGPU the package does not do this;
            generations then run one at a time in this process.
        names: targets and draft models to load besides the bundled ones; no other model can be loaded later.
        device: device of all models.
        dtype: number format of all models; see `workbench.models.pretrained.resolve_dtype`.
        limits: limits of users.

    Raises:
        ModelError: no target could be loaded.
    """

    capabilities = frozenset({"estimate"})
    is_remote = True
    """Whether the models run in another process. Speeds measured in this process are then not those of the GPU."""
    hub_only = True
    """Whether unlisted model names are read only as Hub ids, never as local folders.

    On ZeroGPU this does not matter: only loaded models can be used.
    """

    def __init__(
        self,
        gpu: GPU,
        isolated: bool,
        names: Sequence[str] = (),
        device: str = "cuda",
        dtype: str = "auto",
        limits: Limits | None = None,
    ) -> None:
        super().__init__(limits)
        self.costs = Costs()
        self._models = ZeroGpuModels(isolated, device, dtype)
        self._call_lock = contextlib.nullcontext() if isolated else threading.Lock()
        names_to_load = [*(name for name, _, _ in known_targets()), *map(short_name, names)]
        for name in sorted(
            dict.fromkeys(names_to_load), key=lambda name: tokenizer_source_for(name) is not None
        ):  # models whose tokenizer other models use are loaded first
            self._models.load(name)
        if not self._models.loaded:
            raise ModelError("No model could be loaded.", " ".join(self._models.problems.values()))
        self._gpu = gpu(duration=self._duration)(self._models.generation)

    # -- lists ---------------------------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """Return the target models as {"name", "title", "kind", "detail"}, the default one first."""
        entries = choices.targets([name for name in self._models.loaded if not is_drafter(name)])
        return [entry for entry in entries if entry["name"] in self._models.loaded]

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Return the draft models as {"name", "title", "available", "reason", "detail", "pictures"}.

        The draft model that was trained for the target comes first.
        """
        return self._models.drafters(self._pair(target, "none")[0])

    def device_label(self, target: str | None = None) -> str:
        """Return the device and the dtype as text. All targets have the same device and dtype."""
        return f"ZeroGPU · {self._models.kind}"

    def unavailable_actions(self) -> dict[str, str]:
        """Return the actions on runs that ZeroGPU does not support (such as pausing), each with the reason."""
        return dict.fromkeys(("pause", "step", "change", "pace", "memory"), REASON)

    def estimate(self, request: dict[str, Any]) -> str:
        """Return the GPU time that a run will request from ZeroGPU, as text.

        Args:
            request: `method`, `max_new_tokens` and, if not the default, `target`.
        """
        target, method = str(request.get("target") or DEFAULT_TARGET), str(request.get("method"))
        seconds = self.costs.seconds(target, method, int(request.get("max_new_tokens") or 128))
        return f"This run requests about {seconds} s of GPU time ({self.costs.basis(target, method)})."

    # -- models --------------------------------------------------------------------------------------------------

    def preload(self, extra_targets: Sequence[str] = ()) -> None:
        """Do nothing: on ZeroGPU all models are loaded when the app starts."""

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        """Raise ModelError if the models are not loaded: on ZeroGPU no model can be loaded later."""
        self._pair(target, drafter)

    def unload(self, target: str | None = None) -> None:
        """Raise ModelError: on ZeroGPU models cannot be unloaded."""
        raise ModelError("Models stay loaded on ZeroGPU.", "No action is needed: loaded models cost no GPU time.")

    def loaded_models(self) -> list[dict[str, Any]]:
        """Return the models in memory, in the format of `Backend.loaded_models`."""
        return self._models.sizes()

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        """Format a conversation with the target's chat template, and return its token ids."""
        return chat_ids(self._models.loaded[self._pair(target, "none")[0]][1], messages, self.limits)

    # -- runs ----------------------------------------------------------------------------------------------------

    def _pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        return self._models.resolve_pair(target, drafter, blind)

    def _device_options(self) -> dict[str, Any]:
        return {"device": "cpu", "dtype": self._models.kind, "drafter_dtype": self._models.kind}

    def _accepts_images(self, target: str) -> bool:
        return self._models.processors[target] is not None

    def _start(
        self, request: Request, pair: Pair, user: str, lease_s: float | None, is_timed: bool, params: dict[str, Any]
    ) -> ZeroRun:
        """Start a generation in a thread that follows its GPU process.

        Each generation has its own GPU, so `is_timed` affects only the rate limit.
        """
        if request.paused:
            raise MethodUnavailableError("A run on ZeroGPU cannot start paused.", REASON)
        if request.pace:
            raise MethodUnavailableError("A run on ZeroGPU cannot be slowed down for display.", REASON)
        if request.drafter_state is not None or request.keep_drafter_state:
            raise MethodUnavailableError("On ZeroGPU, a drafter's state can be neither loaded nor saved.", REASON)
        if request.options != RequestOptions():
            raise MethodUnavailableError(
                "Penalties, stop conditions other than stop strings, and log-probabilities are not available on "
                "ZeroGPU.",
                REASON,
            )
        job = self._job(request, pair, params)
        run = ZeroRun(self, user, job["method"], lease_s)
        run.is_timed = is_timed
        self._runs.add(run, request.max_new_tokens)
        if not request.pil_images:  # the length of a prompt with images is known from the run's header
            self._runs.charge(run, len(job["prompt"]))
        run.set_queued_for_gpu("waiting for a GPU")
        context = contextvars.copy_context()  # contains the visitor's request, whose GPU quota is used
        threading.Thread(target=context.run, args=(self._follow, run, job), daemon=True).start()
        return run

    def _job(self, request: Request, pair: Pair, params: dict[str, Any]) -> dict[str, Any]:
        """Return the request for a generation as plain data for the GPU process.

        Raises:
            WorkbenchError: the method cannot run, or the run needs more GPU time than allowed.
        """
        configured, (target, drafter), prompt = request.configured_method(), pair, request.prompt
        chosen = configured.method
        reason = self._reason(pair)(configured.needs)
        if reason:
            raise MethodUnavailableError(
                f"{chosen.title} cannot run: {reason}", "Choose an available method from the list."
            )
        if isinstance(prompt, str) and not request.pil_images:
            prompt = self._models.loaded[target][1].encode(prompt)
        self.limits.check_prompt_tokens(len(prompt))
        self.costs.check(target, chosen.name, request.max_new_tokens)
        return {"prompt": prompt, "method": chosen.name, "params": params, "target": target,
                "drafter": drafter,
                "max_new_tokens": request.max_new_tokens, "seed": request.seed, "stop": request.stop,
                "pictures": request.pil_images}  # fmt: skip

    def _follow(self, run: ZeroRun, job: dict[str, Any]) -> None:
        """Add the messages of a GPU process to its run until the run ends. Each run has a thread for this."""
        try:
            with self._call_lock, contextlib.closing(self._gpu(job)) as stream:
                for message in stream if not run.ended else ():
                    if run.lease_s is not None and time.monotonic() - run.followed_at > run.lease_s:
                        run.cancel("The run was stopped, because no client follows it any more.", "lease")
                    if run.ended:
                        return
                    self._add_message(run, job, message)
        except BaseException as error:  # the package raises various exceptions: no quota, no GPU, a dead process
            log.warning("a run on ZeroGPU failed: %s", redact_error(error))  # the error's message may quote a prompt
            reason = f"The GPU process failed ({type(error).__name__})."
            if getattr(error, "title", ""):  # the package's own errors have texts for visitors
                reason = f"{error.title}: {error.message}."  # type: ignore[attr-defined]
            run.end(ERROR, CapacityError(reason, "Try again; a shorter run needs less GPU time."))
            return
        run.end(ERROR, CapacityError("The GPU process ended before the run did.", "Try again."))

    def _add_message(self, run: ZeroRun, job: dict[str, Any], message: dict[str, Any]) -> None:
        if "error" in message:
            run.end(ERROR, WorkbenchError(*message["error"]))
            return
        is_first = run.trace is None
        for record in run.add_message(message):
            self.record_round(run, record)
        if is_first and job["pictures"] and run.trace is not None:
            self._runs.charge(run, len(run.trace.header.prompt_tokens))
        if "footer" in message:
            trace = run.trace
            assert trace is not None
            self.costs.record_run(job["target"], job["method"], len(trace.token_ids), message["busy_s"])
            failed = trace.footer.reason == "error"
            run.end(ERROR if failed else "finished", WorkbenchError(trace.footer.error) if failed else None)

    def stream_pairs(self, *args: Any, **named: Any) -> Any:
        """Raise MethodUnavailableError: pairs of runs (with and without a method) would need minutes of GPU time."""
        raise MethodUnavailableError(
            "On ZeroGPU, a speed-up cannot be measured in pairs of runs, which takes minutes.", REASON
        )

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Raise MethodUnavailableError: heads cannot be trained or chosen on ZeroGPU."""
        raise MethodUnavailableError("Drafting heads cannot be trained or chosen on ZeroGPU.", REASON)

    def stream_recommendation(self, *args: Any, **named: Any) -> Any:
        """Raise MethodUnavailableError: on ZeroGPU, measuring several methods would need minutes of GPU time."""
        raise MethodUnavailableError(
            "On ZeroGPU, the fastest method cannot be found, because the measurement takes minutes.", REASON
        )

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """Return the conditions of a measurement on ZeroGPU, such as dtype and versions. Its GPUs count as one machine.

        Args:
            lane: method with its settings.
            target: name of the target; None: the default one.

        Returns:
            The conditions; None if the weights are not on this machine yet.
        """
        result = super().conditions(lane, target)
        return result and {**result, "device": "cuda", "machine": {"cluster": "ZeroGPU"}}

    def _duration(self, job: dict[str, Any]) -> int:
        """Return the GPU time in seconds that a generation requests from ZeroGPU."""
        return self.costs.seconds(job["target"], job["method"], job["max_new_tokens"])

    # -- calls from runs: see `workbench.service.run.Host` -------------------------------------------------------

    def change(self, run: Run, *args: Any, **named: Any) -> None:
        """Raise MethodUnavailableError: a run on ZeroGPU cannot be changed."""
        raise MethodUnavailableError("A run on ZeroGPU cannot be changed.", REASON)

    def explain(self, run: Run) -> dict[str, Any]:
        """Raise MethodUnavailableError: a text cannot be attributed to images; the models are in another process."""
        raise MethodUnavailableError(
            "Attribution maps are not available on ZeroGPU, because the run's models are in another process.", REASON
        )

    def memory(self, run: Run, action: str, data: bytes | None) -> dict[str, Any]:
        """Raise MethodUnavailableError: the drafter's state cannot be read, because it is in another process."""
        raise MethodUnavailableError(
            "The drafter's state is not accessible on ZeroGPU, because it is in another process.", REASON
        )

    def queue_position(self, run: Run) -> tuple[int, int] | None:
        """Return None: ZeroGPU manages the queue of runs, and its length is unknown."""
        return None

    def wake(self) -> None:
        """Do nothing: this backend has no engine thread to wake."""

    def record_start(self, run: Run) -> None:
        """Do nothing: this backend does not count the start of a run."""

    def record_round(self, run: Run, record: Round) -> None:
        """Count a decoding round of a run in the metrics."""
        self._telemetry.round(record)

    def record_end(self, run: Run) -> None:
        """Complete the footer of an ended run's trace, and refund the tokens that the run did not use."""
        trace = run.trace
        if trace is not None and not trace.footer.reason:
            trace.footer.reason = run.stop_reason if run.state == CANCELLED else run.state
            trace.footer.text = "".join(e.text for r in trace.rounds for e in r.emitted)
            trace.footer.error = run.message if run.state == ERROR else ""
        self._telemetry.ended(run)
        self._runs.settle(run)
        self._runs.tidy()

    # -- state ---------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return whether the backend works, with its load and memory, as a dict without names of users or models."""
        states = Counter(run.state for run in self._runs.active())
        return {
            "status": "ok",
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            "device": self.device_label(),
            "runs": {state: states[state] for state in (QUEUED, RUNNING)},
            "queue": states[QUEUED],
            "rows": states[RUNNING],
            "models": len(self._models.loaded),
            "loading": "",
            "memory": {"traces": self._runs.trace_bytes},
        }

    def close(self) -> None:
        """Cancel all runs of the backend."""
        for run in self._runs.active():
            run.cancel()
