"""The backend on ZeroGPU: a GPU is lent for one call at a time, and that call is a whole generation.

Models are put on "cuda" when the app starts. Each generation then runs in a forked process, which gets the GPU, shares
nothing with the app afterwards, and sends its rounds back as plain JSON. So a run cannot be paused or changed, only
followed and cancelled; the page steps through what was recorded instead.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from workbench.bench.compare import Comparison, finish, measure
from workbench.bench.conditions import conditions
from workbench.bench.lanes import Lane
from workbench.bench.steps import Step
from workbench.core.errors import (
    CapacityError,
    MethodUnavailableError,
    ModelError,
    PromptError,
    WorkbenchError,
)
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request, Runner
from workbench.engine.bundle import DEFAULT_TARGET, known_targets, locate, own_drafter
from workbench.engine.models import (
    find_heads,
    load_model,
    load_processor,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
    same_vocabulary,
)
from workbench.engine.pictures import read
from workbench.engine.placed import named
from workbench.engine.probe import admit
from workbench.engine.request import CANCELLED, ENDED, ERROR, QUEUED, RUNNING
from workbench.methods import registry
from workbench.methods.known import Known
from workbench.service import catalogue
from workbench.service.book import Book
from workbench.service.chat import chat_ids
from workbench.service.limits import LOCAL, Limits
from workbench.service.logs import wordless
from workbench.service.params import check_request, split_params
from workbench.service.pictures import decode_all
from workbench.service.presets import presets
from workbench.service.run import Run
from workbench.service.telemetry import Telemetry
from workbench.trace.events import Footer, Header, Round, Trace
from workbench.trace.metrics import DEFINITIONS

log = logging.getLogger("workbench.service")

REASON = "On ZeroGPU a GPU is lent for one whole generation: step through the recorded rounds instead."
PACE_S = 0.05
"""Rounds of so many seconds travel together."""
START_S = 8.0
"""Assumed seconds for a process to start and to get the models onto its GPU. Not measured on ZeroGPU."""
PER_TOKEN_S = 0.03
"""Assumed seconds a token before any run was measured: one verification of a model of a few billion parameters."""
MARGIN = 1.5
LONGEST_S = 120
"""What one run may ask for. A visitor who is not signed in has so much in a day."""

Pair = tuple[str, str | None]
GPU = Callable[..., Any]
"""`spaces.GPU`: a decorator with a `duration`, which may be a function of the call's arguments."""


class Costs:
    """What runs took on the GPU, by target and method: the measured part of an estimate."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], deque[float]] = {}

    def learn(self, target: str, method: str, tokens: int, seconds: float) -> None:
        """A run wrote so many tokens in so many seconds."""
        if tokens:
            self._seen.setdefault((target, method), deque(maxlen=20)).append(seconds / tokens)

    def seconds(self, target: str, method: str, tokens: int) -> int:
        """What a run should ask for, from the slowest run seen of its kind."""
        slowest = max(self._seen.get((target, method), (PER_TOKEN_S,)))
        return math.ceil(START_S + MARGIN * slowest * tokens)

    def tokens(self, target: str, method: str, seconds: float) -> int:
        """How many tokens fit into so many seconds."""
        slowest = max(self._seen.get((target, method), (PER_TOKEN_S,)))
        return max(1, int((seconds - START_S) / (MARGIN * slowest)))

    def basis(self, target: str, method: str) -> str:
        """Where the figure comes from, in words."""
        n = len(self._seen.get((target, method), ()))
        return f"from {n} run{'s' if n > 1 else ''} of this method" if n else "an assumption: no run measured yet"


class ZeroRun(Run):
    """A run whose rounds arrive from another process."""

    def change(self, *asked: Any, **named: Any) -> None:
        """Not here. Raises MethodUnavailableError."""
        self._host.change(self, None, None, None)

    def pause(self) -> None:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("The run cannot be paused.", REASON)

    def resume(self) -> None:
        """Not here. Raises MethodUnavailableError."""
        self.pause()

    def step(self) -> None:
        """Not here. Raises MethodUnavailableError."""
        self.pause()

    def hear(self, message: dict[str, Any]) -> list[Round]:
        """Take in what the other process says; returns the new rounds. The first message must hold the header."""
        rounds = [Round.from_wire(wire) for wire in message.get("rounds", ())]
        with self._news:
            if self.ended:
                return []
            if "header" in message:
                header = Header.from_wire(message["header"])
                if self._trace is None:
                    self._trace, self._state, self._message = Trace(header), RUNNING, ""
                    self.started_at = time.monotonic()
                self._trace.header = header
            assert self._trace is not None
            self._trace.rounds.extend(rounds)
            if "footer" in message:
                self._trace.footer = Footer(**message["footer"])
            self._news.notify_all()
        return rounds

    def waits(self, message: str) -> None:
        """It waits for a GPU."""
        self._state, self._message = QUEUED, message


class ZeroClient:
    """The calls of `workbench.client.Workbench` over ZeroGPU. Make it in the main thread before the app is launched.

    Args:
        gpu: `spaces.GPU`.
        isolated: whether `gpu` runs each call in a process of its own. Otherwise (the package's behaviour elsewhere)
            generations take turns in this process.
        names: targets and draft models to load besides the bundled ones; nothing can be loaded later.
        device: of all models.
        dtype: of all models; see `workbench.engine.models.resolve_dtype`.
        limits: of users.

    Raises:
        ModelError: no target could be loaded.
    """

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
        self.limits = limits or Limits()
        self.costs = Costs()
        self._device = resolve_device(device)
        self._dtype = resolve_dtype(dtype, self._device)
        self._isolated = isolated
        self._turn = contextlib.nullcontext() if isolated else threading.Lock()
        self._book, self._born = Book(self.limits), time.monotonic()
        self._telemetry = Telemetry(self.health)
        self._loaded: dict[str, tuple[Any, Any]] = {}
        self._processors: dict[str, Any] = {}
        self._problems: dict[str, str] = {}
        self._engines: dict[tuple[int, Pair], Engine] = {}
        for name in dict.fromkeys([*(name for name, _, _ in known_targets()), *map(named, names)]):
            self._load(name)
        if not self._loaded:
            raise ModelError("No model could be loaded.", " ".join(self._problems.values()))
        self._gpu = gpu(duration=self._duration)(self._generation)

    def _load(self, name: str) -> None:
        try:
            model = load_model(name, self._device, self._dtype)
            self._processors[name] = load_processor(name, model)
            self._loaded[name] = model, load_tokenizer(name)
        except WorkbenchError as error:
            log.warning("not loaded: %s", error)
            self._problems[name] = str(error)

    # -- what there is -------------------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """Targets: name, title, kind, detail."""
        listed = catalogue.targets([name for name in self._loaded if "drafter" not in name])
        return [entry for entry in listed if entry["name"] in self._loaded]

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Draft models: name, title, available, reason, detail, pictures; the one that belongs to the target first."""
        target = self._pair(target, "none")[0]
        found, details = [], {entry["name"]: entry["detail"] for entry in catalogue.drafters(target)}
        for name, (_, tokenizer) in self._loaded.items():
            if name != target:
                same = same_vocabulary(self._loaded[target][1], tokenizer)
                reason = "" if same else f"{name} and {target} do not share a vocabulary."
                found.append(
                    {"name": name, "title": name, "available": same, "reason": reason, "detail": details.get(name, "")}
                    | {"pictures": self._processors[name] is not None}
                )
        return sorted(found, key=lambda entry: entry["name"] != own_drafter(target))

    def let_in(self, user: str, counted: bool = True) -> None:
        """Count a request that is no run; see `workbench.service.backend.Backend.let_in`."""
        self._book.meter.let_in(user, counted=counted)

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """Methods, with whether each can run with these models and why not."""
        reason = catalogue.static_reasons(*self._pair(target, drafter))
        return [catalogue.describe(Known.of(method), reason(method.needs)) for method in registry.methods()]

    def sampling_params(self) -> list[dict[str, Any]]:
        """Parameters of sampling, shared by all methods."""
        return [spec.to_wire() for spec in params_of(SamplingParams()).values()]

    def presets(self) -> list[dict[str, Any]]:
        """Prompts to start with."""
        return presets([target["name"] for target in self.targets()])

    def definitions(self) -> dict[str, dict[str, str]]:
        """What each figure means, by name."""
        return {name: {"title": title, "formula": formula} for name, (title, formula) in DEFINITIONS.items()}

    def device_label(self) -> str:
        """Device and dtype, for people."""
        return f"ZeroGPU · {str(self._dtype).removeprefix('torch.')}"

    def barred(self) -> dict[str, str]:
        """What cannot be done with a run here, and why."""
        return dict.fromkeys(("pause", "step", "change", "pace"), REASON)

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
        return [
            {"name": name, "role": "drafter" if "drafter" in name else "target", "device": "cuda", "runs": 0,
             "bytes": sum(p.numel() * p.element_size() for p in model.parameters()), "idle_s": 0.0,
             "dtype": str(self._dtype).removeprefix("torch.")}
            for name, (model, _) in self._loaded.items()
        ]  # fmt: skip

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        """Token ids of a conversation in the target's chat format."""
        return chat_ids(self._loaded[self._pair(target, "none")[0]][1], messages, self.limits)

    def _pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        target = target or next(iter({DEFAULT_TARGET} & self._loaded.keys()), next(iter(self._loaded)))
        if drafter in (None, "", "auto"):
            own = own_drafter(target, blind)
            drafter = own if own in self._loaded else "none"
        for name in (target, drafter):
            if name != "none" and name not in self._loaded:
                raise ModelError("This model is not loaded here.", f"Use one of: {', '.join(self._loaded)}.")
        return target, None if drafter == "none" else drafter

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
        extras: Any = None,
    ) -> ZeroRun:
        """Start a generation and return at once; see `workbench.service.backend.Backend.start`.

        Every generation has a GPU of its own; `alone` says only that it is one of many that are timed.

        Raises:
            WorkbenchError: the request is wrong, or asks for more GPU time than one run may.
        """
        try:
            if paused:
                raise MethodUnavailableError("The run cannot start paused.", REASON)
            if pace:
                raise MethodUnavailableError("The run cannot be held back.", REASON)
            if extras is not None:
                raise MethodUnavailableError("Penalties, other ends and log-probabilities are not to be had.", REASON)
            job = self._checked(prompt, method, params or {}, target, drafter, max_new_tokens, seed, stop, images)
            run = ZeroRun(self, user, method, lease_s)
            run.alone = alone
            self._book.add(run, max_new_tokens)
            if not job["pictures"]:  # what pictures add to a prompt is known from the run's header
                self._book.charge(run, len(job["prompt"]))
        except WorkbenchError as error:
            self._telemetry.error(error)
            raise
        run.waits("waiting for a GPU")
        context = contextvars.copy_context()  # carries the visitor's request, whose quota is used
        threading.Thread(target=context.run, args=(self._follow, run, job), daemon=True).start()
        return run

    def _checked(
        self,
        prompt: Any,
        method: str,
        params: Any,
        target: Any,
        drafter: Any,
        n: int,
        seed: Any,
        stop: Any,
        images: Sequence[Any],
    ) -> dict[str, Any]:
        """The request as plain data, checked as far as that goes without a GPU."""
        chosen = check_request(self.limits, prompt, method, params, n, seed, stop)[0].method
        pair, pictures = self._pair(target, drafter, chosen.drafter.blind), decode_all(images)
        if pictures and self._processors[pair[0]] is None:
            raise PromptError(f"{pair[0]} reads text only.", "Leave the pictures out, or choose another target.")
        reason = catalogue.static_reasons(*pair)(chosen.needs)
        if reason:
            raise MethodUnavailableError(f"{chosen.title} cannot run: {reason}", "See the list of methods.")
        if isinstance(prompt, str) and not pictures:
            prompt = self._loaded[pair[0]][1].encode(prompt)
        self.limits.check_prompt_tokens(len(prompt))
        seconds = self.costs.seconds(pair[0], method, n)
        if seconds > LONGEST_S:
            raise CapacityError(
                f"This run asks for {seconds} s of GPU; one run may ask for {LONGEST_S} s.",
                f"Use at most {self.costs.tokens(pair[0], method, LONGEST_S)} new tokens.",
            )
        return {"prompt": prompt, "method": method, "params": params, "target": pair[0], "drafter": pair[1],
                "max_new_tokens": n, "seed": seed, "stop": tuple(stop), "pictures": pictures}  # fmt: skip

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
            self._book.charge(run, len(run.trace.header.prompt_tokens))
        if "footer" in message:
            trace = run.trace
            assert trace is not None
            self.costs.learn(job["target"], job["method"], len(trace.token_ids), message["busy_s"])
            failed = trace.footer.reason == "error"
            run.end(ERROR if failed else "finished", WorkbenchError(trace.footer.error) if failed else None)

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
        return finish(self.comparing(prompts, lanes, **settings), progress)

    def comparing(self, prompts: str | Sequence[Any], lanes: Sequence[Any], **options: Any) -> Iterator[Step]:
        """Compare lanes, each with a GPU of its own; see `workbench.bench.compare.measure`."""
        self.let_in(options.get("user", LOCAL))
        return measure(self, prompts, lanes, **options)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """What decides a measurement on the GPUs of ZeroGPU, which count as one machine."""
        found = Lane.of(lane)
        pair = self._pair(target, found.drafter, found.configured.drafter.blind)
        kind = str(self._dtype).removeprefix("torch.")
        known = conditions(found, *pair, device="cpu", dtype=kind, drafter_dtype=kind)
        return known and {**known, "device": "cuda", "machine": {"cluster": "ZeroGPU"}}

    def forget(self, run: Run) -> None:
        """Give an ended run's memory back at once."""
        if run.ended:
            self._book.remove(run)

    def run(self, run_id: str) -> Run:
        """A run by its id. Raises UnknownNameError when it is not known here."""
        return self._book.get(run_id)

    # -- in the GPU's process ------------------------------------------------------------------------------------

    def _duration(self, job: dict[str, Any]) -> int:
        """Seconds of GPU a generation asks for."""
        return self.costs.seconds(job["target"], job["method"], job["max_new_tokens"])

    def _generation(self, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """One whole generation. Threads of the app do not exist here, and what is changed here the app never sees.

        Yields:
            plain dicts: the header first, rounds as they come, the footer last; or an error.
        """
        begun = time.perf_counter()
        if self._isolated:
            torch.set_num_threads(1)  # the threads of the app's OpenMP pool did not survive the fork
        try:
            engine = self._engine((job["target"], job["drafter"]))
            chosen = registry.get(job["method"])
            mine, sampling = split_params(chosen, job["params"])
            prompt, inputs = job["prompt"], None
            if job["pictures"]:
                prompt, inputs = read(engine.models, prompt, job["pictures"])
            row = engine.submit(
                Request(prompt, chosen.with_params(**mine), sampling, job["max_new_tokens"], job["seed"], job["stop"],
                        images=inputs, pictures=job["pictures"])
            )  # fmt: skip
        except WorkbenchError as error:
            yield {"error": (error.message, error.remedy)}
            return
        trace = row.trace
        assert trace is not None
        try:
            yield {"header": trace.header.to_wire()}
            sent, last, rules = 0, time.perf_counter(), 0
            while row.status not in ENDED:
                engine.step()
                if time.perf_counter() - last >= PACE_S and len(trace.rounds) > sent:
                    header = {} if rules == len(trace.header.rules) else {"header": trace.header.to_wire()}
                    yield {**header, "rounds": [record.to_wire() for record in trace.rounds[sent:]]}
                    sent, last, rules = len(trace.rounds), time.perf_counter(), len(trace.header.rules)
            yield {
                "header": trace.header.to_wire(),  # now with the time of prefill
                "rounds": [record.to_wire() for record in trace.rounds[sent:]],
                "footer": trace.footer.to_wire(),
                "busy_s": time.perf_counter() - begun,
            }
        finally:
            if row.status not in ENDED:
                row.cancel()
                engine.step()

    def _engine(self, pair: Pair) -> Engine:
        """This process's engine for a pair of models: a process may serve several runs, one after the other."""
        key = (os.getpid(), pair)
        if key not in self._engines:
            target, drafter = pair
            model, tokenizer = self._loaded[target]
            models = Models(Runner(model), tokenizer, target, processor=self._processors[target])
            admit(models.target, target, locate(target))
            models.heads = find_heads(target, models.target)
            if drafter is not None:
                models.drafter = Runner(self._loaded[drafter][0], models.target.context)
                admit(models.drafter, drafter, locate(drafter))
                models.drafter_name, models.drafter_problem = drafter, ""
                models.drafter_processor = self._processors[drafter]
            self._engines[key] = Engine(models, max_rows=1)
        return self._engines[key]

    # -- what a run asks of its host -----------------------------------------------------------------------------

    def change(self, run: Run, *asked: Any, **named: Any) -> None:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("The run cannot be changed.", REASON)

    def explain(self, run: Run) -> dict[str, Any]:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("The run cannot be explained: its models are elsewhere.", REASON)

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
        self._book.settle(run)
        self._book.tidy()

    # -- how it is doing -----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """How the backend is doing, without names."""
        states = Counter(run.state for run in self._book.active())
        return {
            "status": "ok",
            "uptime_s": round(time.monotonic() - self._born, 1),
            "device": self.device_label(),
            "runs": {state: states[state] for state in (QUEUED, RUNNING)},
            "queue": states[QUEUED],
            "rows": states[RUNNING],
            "models": len(self._loaded),
            "memory": {"traces": self._book.trace_bytes},
        }

    def metrics_text(self) -> str:
        """All figures in Prometheus' text format."""
        return self._telemetry.text()

    def close(self) -> None:
        """Cancel all runs."""
        for run in self._book.active():
            run.cancel()
