"""The backend on ZeroGPU: a GPU is lent for one call at a time, and that call is a whole generation.

Models are put on "cuda" when the app starts. Each generation then runs in a forked process, which gets the GPU, shares
nothing with the app afterwards, and sends its rounds back as plain JSON. So a run cannot be paused or changed, only
followed and cancelled; the page steps through what was recorded instead.
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
from workbench.engine.borrowed import lender_to
from workbench.engine.bundle import DEFAULT_TARGET
from workbench.engine.names import is_drafter, known_targets
from workbench.engine.placed import named
from workbench.engine.request import CANCELLED, ERROR, QUEUED, RUNNING
from workbench.service import choices
from workbench.service.base import Asked, BaseBackend
from workbench.service.chat import chat_ids
from workbench.service.costs import Costs
from workbench.service.lent import Lent
from workbench.service.limits import Limits
from workbench.service.logs import wordless
from workbench.service.names import Pair
from workbench.service.run import Run
from workbench.service.zerorun import REASON, ZeroRun

log = logging.getLogger("workbench.service")

GPU = Callable[..., Any]
"""`spaces.GPU`: a decorator with a `duration`, which may be a function of the call's arguments."""


class ZeroClient(BaseBackend):
    """The calls of `workbench.client.Workbench` over ZeroGPU. Make it in the main thread before the app is launched.

    Args:
        gpu: `spaces.GPU`.
        isolated: whether `gpu` runs each call in a process of its own. Otherwise (the package's behaviour elsewhere)
            generations take turns in this process.
        names: targets and draft models to load besides the bundled ones; nothing can be loaded later.
        device: of all models.
        dtype: of all models; see `workbench.engine.pretrained.resolve_dtype`.
        limits: of users.

    Raises:
        ModelError: no target could be loaded.
    """

    offers = frozenset({"estimate"})
    hub_only = True
    """No name is looked for anywhere: what can be used is loaded."""

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
        self._lent = Lent(isolated, device, dtype)
        self._turn = contextlib.nullcontext() if isolated else threading.Lock()
        found = [*(name for name, _, _ in known_targets()), *map(named, names)]
        for name in sorted(
            dict.fromkeys(found), key=lambda name: lender_to(name) is not None
        ):  # whoever lends a tokenizer goes before
            self._lent.load(name)
        if not self._lent.loaded:
            raise ModelError("No model could be loaded.", " ".join(self._lent.problems.values()))
        self._gpu = gpu(duration=self._duration)(self._lent.generation)

    # -- what there is -------------------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """Targets: name, title, kind, detail."""
        listed = choices.targets([name for name in self._lent.loaded if not is_drafter(name)])
        return [entry for entry in listed if entry["name"] in self._lent.loaded]

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Draft models: name, title, available, reason, detail, pictures; the one that belongs to the target first."""
        return self._lent.drafters(self._pair(target, "none")[0])

    def device_label(self, target: str | None = None) -> str:
        """Device and dtype, for people: the same for all targets."""
        return f"ZeroGPU · {self._lent.kind}"

    def barred(self) -> dict[str, str]:
        """What cannot be done with a run here, and why."""
        return dict.fromkeys(("pause", "step", "change", "pace", "memory"), REASON)

    def estimate(self, request: dict[str, Any]) -> str:
        """How much GPU time a run will ask for, before it is started.

        Args:
            request: `method`, `max_new_tokens` and, if not the default, `target`.
        """
        target, method = str(request.get("target") or DEFAULT_TARGET), str(request.get("method"))
        seconds = self.costs.seconds(target, method, int(request.get("max_new_tokens") or 128))
        return f"This run asks for about {seconds} s of GPU ({self.costs.basis(target, method)})."

    # -- models --------------------------------------------------------------------------------------------------

    def preload(self, also: Sequence[str] = ()) -> None:
        """Does nothing: everything is loaded at the start."""

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        """Check that models are loaded. Raises ModelError when they are not."""
        self._pair(target, drafter)

    def unload(self, target: str | None = None) -> None:
        """Not here. Raises ModelError."""
        raise ModelError("Models stay loaded on ZeroGPU.", "Leave them; they cost no GPU time.")

    def loaded(self) -> list[dict[str, Any]]:
        """What is in memory."""
        return self._lent.sizes()

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        """Token ids of a conversation in the target's chat format."""
        return chat_ids(self._lent.loaded[self._pair(target, "none")[0]][1], messages, self.limits)

    # -- runs ----------------------------------------------------------------------------------------------------

    def _pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        return self._lent.pair(target, drafter, blind)

    def _kinds(self) -> dict[str, Any]:
        return {"device": "cpu", "dtype": self._lent.kind, "drafter_dtype": self._lent.kind}

    def _reads_pictures(self, target: str) -> bool:
        return self._lent.processors[target] is not None

    def _start(self, asked: Asked) -> ZeroRun:
        """Every generation has a GPU of its own; `alone` says only that it is one of many that are timed."""
        if asked.paused:
            raise MethodUnavailableError("The run cannot start paused.", REASON)
        if asked.pace:
            raise MethodUnavailableError("The run cannot be held back.", REASON)
        if asked.memory is not None or asked.keeps:
            raise MethodUnavailableError("What a drafter remembers cannot be kept.", REASON)
        if asked.extras is not None:
            raise MethodUnavailableError("Penalties, other ends and log-probabilities are not to be had.", REASON)
        job = self._job(asked)
        run = ZeroRun(self, asked.user, job["method"], asked.lease_s)
        run.alone = asked.alone
        self._runs.add(run, asked.max_new_tokens)
        if not asked.pictures:  # what pictures add to a prompt is known from the run's header
            self._runs.charge(run, len(job["prompt"]))
        run.waits("waiting for a GPU")
        context = contextvars.copy_context()  # carries the visitor's request, whose quota is used
        threading.Thread(target=context.run, args=(self._follow, run, job), daemon=True).start()
        return run

    def _job(self, asked: Asked) -> dict[str, Any]:
        """The request as plain data.

        Raises:
            WorkbenchError: its method cannot run, or it asks for more GPU time than one run may.
        """
        chosen, (target, drafter), prompt = asked.configured.method, asked.pair, asked.prompt
        reason = self._reason(asked.pair)(asked.configured.needs)
        if reason:
            raise MethodUnavailableError(f"{chosen.title} cannot run: {reason}", "See the list of methods.")
        if isinstance(prompt, str) and not asked.pictures:
            prompt = self._lent.loaded[target][1].encode(prompt)
        self.limits.check_prompt_tokens(len(prompt))
        self.costs.check(target, chosen.name, asked.max_new_tokens)
        return {"prompt": prompt, "method": chosen.name, "params": asked.params, "target": target, "drafter": drafter,
                "max_new_tokens": asked.max_new_tokens, "seed": asked.seed, "stop": asked.stop,
                "pictures": asked.pictures}  # fmt: skip

    def _follow(self, run: ZeroRun, job: dict[str, Any]) -> None:
        """In a thread of this process: pass on what the GPU's process says. Closing the stream ends the run there."""
        try:
            with self._turn, contextlib.closing(self._gpu(job)) as stream:
                for message in stream if not run.ended else ():
                    if run.lease_s is not None and time.monotonic() - run.followed > run.lease_s:
                        run.cancel("Nobody followed the run any more.", "lease")
                    if run.ended:
                        return
                    self._hear(run, job, message)
        except BaseException as error:  # the package raises what it likes: no quota, no GPU, a process that died
            log.warning("a run on ZeroGPU failed: %s", wordless(error))  # its words may quote a prompt
            said = f"The GPU's process failed ({type(error).__name__})."
            if getattr(error, "title", ""):  # one of the package's own errors, which are made for visitors
                said = f"{error.title}: {error.message}."  # type: ignore[attr-defined]
            run.end(ERROR, CapacityError(said, "Try again; a shorter run asks for less."))
            return
        run.end(ERROR, CapacityError("The GPU's process ended before the run did.", "Try again."))

    def _hear(self, run: ZeroRun, job: dict[str, Any], message: dict[str, Any]) -> None:
        if "error" in message:
            run.end(ERROR, WorkbenchError(*message["error"]))
            return
        is_first = run.trace is None
        for record in run.hear(message):
            self._telemetry.round(record)
        if is_first and job["pictures"] and run.trace is not None:
            self._runs.charge(run, len(run.trace.header.prompt_tokens))
        if "footer" in message:
            trace = run.trace
            assert trace is not None
            self.costs.learn(job["target"], job["method"], len(trace.token_ids), message["busy_s"])
            failed = trace.footer.reason == "error"
            run.end(ERROR if failed else "finished", WorkbenchError(trace.footer.error) if failed else None)

    def pairing(self, *asked: Any, **named: Any) -> Any:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("A speed-up is not measured pair by pair here: it takes minutes.", REASON)

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("No heads are trained or chosen here.", REASON)

    def recommending(self, *asked: Any, **named: Any) -> Any:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("Which method is fastest is not measured here: it takes minutes.", REASON)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """What decides a measurement on the GPUs of ZeroGPU, which count as one machine."""
        known = super().conditions(lane, target)
        return known and {**known, "device": "cuda", "machine": {"cluster": "ZeroGPU"}}

    def _duration(self, job: dict[str, Any]) -> int:
        """Seconds of GPU a generation asks for."""
        return self.costs.seconds(job["target"], job["method"], job["max_new_tokens"])

    # -- what a run asks of its host -----------------------------------------------------------------------------

    def change(self, run: Run, *asked: Any, **named: Any) -> None:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("The run cannot be changed.", REASON)

    def explain(self, run: Run) -> dict[str, Any]:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("The run cannot be explained: its models are elsewhere.", REASON)

    def memory(self, run: Run, action: str, data: bytes | None) -> dict[str, Any]:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("What a drafter remembers cannot be reached: it is elsewhere.", REASON)

    def place(self, run: Run) -> tuple[int, int] | None:
        """The queue for GPUs is ZeroGPU's: its length is not known here."""
        return None

    def wake(self) -> None:
        """Nothing sleeps here."""

    def started(self, run: Run) -> None:
        """Nothing to do."""

    def ended(self, run: Run) -> None:
        """A run has ended: its footer says how."""
        trace = run.trace
        if trace is not None and not trace.footer.reason:
            trace.footer.reason = run.stopped if run.state == CANCELLED else run.state
            trace.footer.text = "".join(e.text for r in trace.rounds for e in r.emitted)
            trace.footer.error = run.message if run.state == ERROR else ""
        self._telemetry.ended(run)
        self._runs.settle(run)
        self._runs.tidy()

    # -- how it is doing -----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """How the backend is doing, without names."""
        states = Counter(run.state for run in self._runs.active())
        return {
            "status": "ok",
            "uptime_s": round(time.monotonic() - self._born, 1),
            "device": self.device_label(),
            "runs": {state: states[state] for state in (QUEUED, RUNNING)},
            "queue": states[QUEUED],
            "rows": states[RUNNING],
            "models": len(self._lent.loaded),
            "loading": "",
            "memory": {"traces": self._runs.trace_bytes},
        }

    def close(self) -> None:
        """Cancel all runs."""
        for run in self._runs.active():
            run.cancel()
