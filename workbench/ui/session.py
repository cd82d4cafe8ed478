"""Python functions that the Live view in the browser calls. They do not depend on Gradio; tests call them directly.

`workbench.client.wire` checks all data from the browser. A run can be accessed only by its unguessable id. Invalid data
raise a `WorkbenchError`, which `workbench.ui.hosting` turns into an answer.
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from workbench.client import Client, RunHandle, wire
from workbench.client.follow import follow
from workbench.client.requests import ChangeRequest, Control, DrafterStateRequest, Generation, RunRequest
from workbench.core.errors import ModelError, ParameterError, PromptError, UnknownNameError, WorkbenchError
from workbench.decoders.declarations import ANY_DRAFTER, GROUPS
from workbench.methods import method_info
from workbench.methods.choice import choose
from workbench.server.guard import FILE_BYTES
from workbench.service.presets import message_in
from workbench.service.request_context import make_disconnect_check
from workbench.trace.events import SCHEMA_VERSION
from workbench.trace.metrics import DEFINITIONS
from workbench.ui.jobs import Jobs
from workbench.ui.saved_runs import SavedRunsView
from workbench.views.tour import live_steps

BASELINE = "autoregressive"
DEFAULT_TOKENS = 128
GRACE_S = 15.0
"""Seconds for which a run continues after its page has disconnected, so that the page finds it again after a
reload or a short network failure. After that the run is cancelled, with the reason in its trace."""
MOST_BASELINES = 200
"""Maximum number of runs for which measured pairs (with the method and with plain decoding) are stored."""
MOST_OTHERS = 3
"""Maximum number of other runs with which a run is compared at once."""


class Session:
    """Python functions that one page in the browser calls. No run is stored here: each call names its run by id.

    Args:
        client: a `workbench.client.Workbench`, or anything with its methods.
        saved_runs: runs saved on this machine; by default none are.
        grace_s: seconds for which a run continues after its page has disconnected; see `GRACE_S`.
    """

    def __init__(self, client: Client, saved_runs: SavedRunsView | None = None, grace_s: float = GRACE_S) -> None:
        self.client = client
        self.grace_s = grace_s
        self.saved_runs = saved_runs or SavedRunsView()
        self._pairs: Jobs[Any] = Jobs()
        self._baselines: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def server_functions(self) -> list[Callable[[dict[str, Any]], dict[str, Any]]]:
        """Return the Python functions that the view in the browser may call, by name."""
        return [
            self.catalogue,
            self.control,
            self.change,
            self.memory,
            self.fetch_trace,
            self.recorded,
            self.saved_runs.keep,
            self.export_parquet,
            self.whatif,
            self.research,
            self.stop_pairs,
            self.estimate,
            self.speeds,
            self.tour,
        ]

    def catalogue(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return all data of the page's side panel for a target and a drafter (None: the first usable one).

        A drafter with a different vocabulary stays selected only if the method can translate between vocabularies.

        If the requested target is not available, the answer has a `problem`, and its other keys describe the first
        available target, so that the requested method is not rejected because of models that do not exist here.
        """
        targets = self._targets()
        target, problem = str(request.get("target") or "") or _first(targets), None
        if target is not None and not any(t["name"] == target and t.get("available", True) for t in targets):
            problem = _no_target(target, targets, self.saved_runs.is_allowed)
            target = _first(targets)
        drafters = self.client.drafters(target)
        drafter, translates = str(request.get("drafter") or ""), _translates(request.get("method"))
        usable = (d for d in drafters if d.get("available", True) or (translates and d.get("stranger")))
        if not any(d["name"] == drafter for d in usable):
            drafter = _first(drafters)
        methods = self.client.methods(target, drafter)
        reasons = {method["name"]: method.get("reason", "") for method in methods}
        return {
            "targets": targets,
            "drafters": drafters,
            "methods": methods,
            "sampling": self.client.sampling_params(),
            "numbers": Generation.numbers(),
            "file_bytes": FILE_BYTES,
            "presets": self.client.presets(),
            "device": self.client.device_label(target),
            "groups": [list(pair) for pair in GROUPS.items()],
            "definitions": {name: list(pair) for name, pair in DEFINITIONS.items()},
            "baseline": BASELINE,
            "schema": SCHEMA_VERSION,
            "barred": self.client.unavailable_actions(),
            "keeps": self.saved_runs.is_allowed,
            "estimates": "estimate" in self.client.capabilities,
            "pairs": "pairing" in self.client.capabilities,
            "problem": problem,
            "chosen": {
                "target": target,
                "drafter": drafter,
                "method": choose(lambda name: reasons.get(name, f"{name} is not available in this app."))[0],
                "max_new_tokens": DEFAULT_TOKENS,
            },
        }

    def speeds(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the measured speed of each method on a target, by method, from `workbench.bench.measured_speeds`."""
        from workbench.bench.measured_speeds import measured_speeds

        return {name: speed.to_wire() for name, speed in measured_speeds(str(request.get("target") or "")).items()}

    def _targets(self) -> list[dict[str, Any]]:
        """Return the target models that this view offers."""
        return self.client.targets()

    def control(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pause, resume, step or cancel a run."""
        getattr(self._run(request), Control.options(self.client, request)["action"])()
        return {}

    def change(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the method, drafter, parameters or images of a run from the next round on, or its display rate."""
        options = ChangeRequest.options(self.client, request)
        self._run({"run": options.pop("run")}).change(**options)
        return {}

    def memory(self, request: dict[str, Any]) -> dict[str, Any]:
        """Inspect, save, load (from a file in the browser) or reset the state of a run's drafter."""
        options = DrafterStateRequest.options(self.client, request)
        return wire.state_to_wire(self._run({"run": options.pop("run")}).memory(**options))

    def fetch_trace(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the rounds of a run from index `from` on, for a page that has missed rounds or was reloaded.

        Key `baseline` has the tokens per second of plain decoding and the speed-ups of the measured pairs, if pairs of
        this run were measured.
        """
        run = self._run(request)
        update = wire.scrub_update(run.since(wire.check_integer("from", request.get("from") or 0)))
        return update | ({"baseline": found} if (found := self._baselines.get(run.id)) else {})

    def recorded(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the trace of a bundled recording by its name, or of a saved run by its id. No model is needed."""
        return self.saved_runs.recording(str(request.get("name")))

    def tour(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the `steps` of the guided tour on the Live page, in order (`workbench.views.tour.LiveStep`)."""
        return {"steps": live_steps()}

    def export_parquet(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a trace as Parquet data in base64.

        It is the trace of a run given by its id, or a trace that the browser sent.
        """
        from workbench.trace import export  # Polars, which few visits need

        trace_data = request.get("trace")
        trace = export.read_wire(trace_data) if isinstance(trace_data, dict) else self._run(request).trace
        if trace is None:
            raise WorkbenchError("The run has no rounds yet.", "Wait until the run has finished a round.")
        return {"data": base64.b64encode(export.to_parquet(trace)).decode("ascii")}

    def whatif(self, request: dict[str, Any]) -> dict[str, Any]:
        """Explain the speed of a run whose trace the browser sends.

        Key `others` of the request has other traces: of plain decoding of the same prompt, and of runs with other
        methods. Key `pairs` has measured speed-ups, one for each pair of runs with the method and with plain decoding.
        """
        from workbench.bench import whatif_errors
        from workbench.trace import export, whatif  # Polars and scipy, which few visits need
        from workbench.trace.speedup import MOST_PAIRS, MOST_RATE, estimate
        from workbench.ui.files import PLOTLY

        others, pairs = request.get("others") or [], request.get("pairs") or []
        if not isinstance(others, list) or not isinstance(pairs, list):
            raise ParameterError(
                "`others` and `pairs` must be lists.", "Send a list of traces, and a list of speed-ups."
            )
        trace_data = [request.get("trace"), *others[:MOST_OTHERS]]
        check_connected, traces = make_disconnect_check(), []
        for item in trace_data:
            check_connected()
            traces.append(export.read_wire(item if isinstance(item, dict) else {}))
        trace, *others = traces
        check_connected()
        ratios = [r for r in pairs if isinstance(r, int | float) and 0 < r < MOST_RATE]
        measured = estimate({0: ratios[:MOST_PAIRS]}) if ratios else None
        return whatif.analyse(trace, others, measured, whatif_errors.errors()) | {"plotly": PLOTLY}

    def research(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return statistics of a run whose trace the browser sends, for the page's section "For researchers".

        Keys of the request: `plain`: trace of plain decoding of the same prompt, if there is one; `live`: whether the
        run was generated by this backend, so that its times are those of this machine; `rates`: whether the machine's
        rates (floating-point operations and bytes per second) may be measured, which would slow down a run in progress.
        If sizes or rates are unknown, `roofline` in the answer has only a `reason`.
        """
        from workbench.bench.roofline import roofline
        from workbench.trace import export  # Polars, which few visits need
        from workbench.trace.acceptance_statistics import acceptance_statistics

        check_connected, trace_data, plain_data = make_disconnect_check(), request.get("trace"), request.get("plain")
        trace = export.read_wire(trace_data if isinstance(trace_data, dict) else {})
        plain = export.read_wire(plain_data) if isinstance(plain_data, dict) else None
        check_connected()
        found = acceptance_statistics(trace).to_wire()
        check_connected()
        try:
            if request.get("rates") is False:
                raise WorkbenchError(
                    "This machine's memory bandwidth and FLOP/s are measured when all runs have ended."
                )
            if getattr(self.client, "is_remote", False):
                raise WorkbenchError("The memory bandwidth and FLOP/s of a remote backend are not measured.")
            if trace.header.target not in {t["name"] for t in self._targets()}:  # read no other folder
                raise WorkbenchError("The target of this run is not available in this app.")
            found["roofline"] = roofline(trace, plain, request.get("live") is True)
        except WorkbenchError as error:
            found["roofline"] = {"reason": str(error)}
        return found

    def estimate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the expected GPU time of a run in words; empty if there is no estimate."""
        return {"text": self.client.estimate(request)}

    async def decode(self, request: dict[str, Any], user: str = "local") -> AsyncGenerator[dict[str, Any], None]:
        """Start a run, or continue to follow a run, and yield its new rounds, as `workbench.client.follow` does.

        A run that was started by this function ends `GRACE_S` seconds after the last page that follows it has
        disconnected.

        Args:
            request: one of three requests of the page. (1) Start a run: the fields of `requests.Generation`, where
                `prompt_tokens` may replace the prompt, and `channel`, the page's name for the run. (2) Follow a run
                after a reload: `channel`, `follow` (the run's id) and `from` (the number of rounds that the page has).
                (3) Measure pairs in the background: `pairs` (the generation to measure) and `run` (the run that it
                repeats). Each message then has `pairs`, a `workbench.bench.pairing.Pairs` as plain data; the first
                message also has the id `job`.
            user: key of the run's user, for limits and for fair scheduling among users.
        """
        channel = {"channel": str(request.get("channel", ""))}
        if request.get("pairs") is True:
            async for message in self._pairs.follow(
                lambda _, stopped: self._measure(request, user, stopped), channel["channel"]
            ):
                yield message
            return
        try:
            n_seen = wire.check_integer("from", request.get("from") or 0)
            run = await asyncio.to_thread(self._begin, request, user)
        except Exception as problem:
            yield channel | {"error": wire.error_to_wire(problem)}
            return
        async for update in follow(run, n_rounds_seen=n_seen):
            yield channel | (update or {"run": run.id})

    def _measure(
        self, request: dict[str, Any], user: str, stopped: Callable[[], bool]
    ) -> Generator[dict[str, Any], None, None]:
        options = self._options(request)
        measured_options = {
            name: value for name, value in options.items() if name not in ("paused", "pace", "memory", "keeps")
        }
        last_pairs, run = None, request.get("run")
        for pairs in self.client.stream_pairs(**measured_options, user=user, stopped=stopped):
            if isinstance(run, str) and pairs.typical is not None:  # for other viewers of the run, and after a reload
                self._baselines[run] = {"tokens_per_second": pairs.typical.plain.rate, "ratios": list(pairs.ratios)}
                self._baselines.move_to_end(run)
                while len(self._baselines) > MOST_BASELINES:
                    self._baselines.popitem(last=False)
            yield {} if pairs == last_pairs else {"pairs": pairs.to_wire()}
            last_pairs = pairs

    def stop_pairs(self, request: dict[str, Any]) -> dict[str, Any]:
        """End the background measurement of pairs of runs (with and without a method), and keep the pairs so far."""
        self._pairs.stop(request.get("job"))
        return {}

    def _begin(self, request: dict[str, Any], user: str) -> RunHandle:
        if request.get("follow") is not None:
            return self._run({"run": request["follow"]})
        return self.client.start(**self._options(request) | self._keeping(), user=user, lease_s=self.grace_s)

    def _keeping(self) -> dict[str, Any]:
        """Return the option that stores the drafter's state when a run ends, so that the page can export it.

        The dict is empty if the backend does not support this.
        """
        return {} if "memory" in self.client.unavailable_actions() else {"keeps": True}

    def _options(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of `Workbench.start` for a request of the page."""
        generation = request | {"prompt": request.get("prompt_tokens") or request.get("prompt")}
        return self._apply_chat_template(Generation.options(self.client, generation))

    def _apply_chat_template(self, options: dict[str, Any]) -> dict[str, Any]:
        """Apply the target's chat template to a message; if the target has no template, use the message's text.

        A page writes messages with the special tokens of the bundled models as text. Only their tokenizer recognises
        them; other tokenizers would encode them as plain text.
        """
        message = message_in(options["prompt"]) if isinstance(options["prompt"], str) else None
        if message is not None and not message.strip():
            raise PromptError("The prompt is empty.", "Type a prompt or choose a preset.")
        target = next((t for t in self._targets() if t["name"] == options["target"]), None)
        if message is None or target is None or target.get("kind", "bundled") == "bundled":
            return options
        try:
            prompt = self.client.chat_prompt([{"role": "user", "content": message}], target["name"])
        except PromptError:
            prompt = message
        return options | {"prompt": prompt}

    def _run(self, request: dict[str, Any]) -> RunHandle:
        return self.client.run(RunRequest.options(self.client, request)["run"])


def _no_target(name: Any, targets: list[dict[str, Any]], here: bool) -> dict[str, str]:
    """Return the error for a target model that the view does not list.

    `here`: whether the request comes from the user of this machine.
    """
    available = ", ".join(t["name"] for t in targets if t.get("available", True)) or "none"
    hint = " For another model, start the app with --target." if here else ""
    return wire.error_to_wire(
        ModelError(f"There is no target {str(name)[:80]!r} in this view.", f"Choose one of: {available}.{hint}")
    )


def _translates(method: Any) -> bool:
    """Return whether a method accepts a draft model whose vocabulary differs from the target's."""
    try:
        return ANY_DRAFTER in method_info.get(str(method)).needs
    except UnknownNameError:
        return False


def _first(entries: list[dict[str, Any]]) -> str | None:
    return next((entry["name"] for entry in entries if entry.get("available", True)), None)
