"""Interface of every backend: in this process, in a running app, on a Space or on ZeroGPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from workbench.client.handle import RunHandle
from workbench.service.limits import Limits
from workbench.service.users import LOCAL

if TYPE_CHECKING:
    from workbench.bench.advice import Advice
    from workbench.bench.pairing import Pairs
    from workbench.bench.steps import Step
    from workbench.engine.request_options import RequestOptions


@runtime_checkable
class Client(Protocol):
    """Interface of a backend, the only one that the app, the command line and the servers use. Thread-safe.

    Implemented by `workbench.client.Workbench`, `workbench.service.Backend`, `workbench.client.remote.RemoteBackend`
    and `workbench.service.zerogpu.ZeroGpuBackend`. A backend refuses a call that it cannot answer, with the reason.
    """

    # -- models, methods and state -------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets, the default one first: name, title, kind, detail."""
        ...

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Return the draft models: name, title, available, reason, detail."""
        ...

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """Return the methods: name, title, promise, source, parameters, and whether each runs with these models."""
        ...

    def sampling_params(self) -> list[dict[str, Any]]:
        """Return the sampling parameters, which all methods share."""
        ...

    def presets(self) -> list[dict[str, Any]]:
        """Return the example prompts."""
        ...

    def definitions(self) -> dict[str, dict[str, str]]:
        """Return the definition of every figure, by name: {"title", "formula"}."""
        ...

    def device_label(self, target: str | None = None) -> str:
        """Return a label with the device and dtype of a target."""
        ...

    def unavailable_actions(self) -> dict[str, str]:
        """Return the run actions that are missing here ("pause", "step", "change", "pace", "memory"), with reasons."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """Optional calls that this backend supports, of "estimate", "pairing" and "recommending"."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the backend has started; before that, calls block until it has."""
        ...

    @property
    def hub_only(self) -> bool:
        """Whether unlisted model names are Hub ids only, never folders on this machine."""
        ...

    @property
    def limits(self) -> Limits:
        """Limits per user."""
        ...

    def admit_request(self, user: str, counted: bool = True) -> None:
        """Count a request of a user that starts no run; with counted=False only check the rate limit.

        Raises:
            CapacityError: the user's address has made too many requests within a minute.
        """
        ...

    def charge_call(self, user: str, seconds: float = 0.0) -> None:
        """Charge a user's address the CPU time of a page's call, or check whether it may make one.

        Args:
            user: opaque key of the user.
            seconds: CPU time of the call, in seconds; 0: only check.

        Raises:
            CapacityError: `seconds` is 0 and the address has used up its budget with earlier calls.
        """
        ...

    def health(self) -> dict[str, Any]:
        """Return the state of the backend, without names of users or models.

        Returns:
            Status ("ok", "stalled", "failing", "down"), uptime_s, device, runs by state, queue, rows, models, progress
            of a load ("dequantising 40 %", or empty), and memory in bytes: models, their limit, traces, free.
        """
        ...

    def metrics_text(self) -> str:
        """Return metrics in Prometheus' text format: runs, rounds, tokens, τ and acceptance by method, memory."""
        ...

    # -- models --------------------------------------------------------------------------------------------------

    def preload(self, extra_targets: Sequence[str] = ()) -> None:
        """Start loading the default models in the background, then the published targets in `extra_targets`."""
        ...

    def load(self, target: str | None = None, drafter: str | None = None) -> object:
        """Load models and wait for them.

        Raises:
            WorkbenchError: the models cannot be loaded.
        """
        ...

    def unload(self, target: str) -> None:
        """Unload a target and free its memory.

        Raises:
            WorkbenchError: the target is not loaded, or runs are using it.
        """
        ...

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Prefer the heads in a local folder over all others of their kind; with `on` False, stop preferring them.

        Running generations use them from their next round on.

        Returns:
            Number of running generations that change their heads.

        Raises:
            ModelError: the heads cannot be read, or do not fit the target; nothing is changed.
            MethodUnavailableError: this backend does not support the call.
        """
        ...

    def loaded_models(self) -> list[dict[str, Any]]:
        """Return the models in memory: name, role, bytes, dtype, device, runs, idle_s."""
        ...

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        """Format a conversation with the target's chat template, up to the start of the assistant's answer.

        Args:
            messages: messages with `role` and `content`.
            target: name of a target; None: the backend's default.

        Returns:
            Token ids of the prompt.

        Raises:
            PromptError: the target has no chat template, or the messages do not fit it.
        """
        ...

    # -- runs ----------------------------------------------------------------------------------------------------

    def start(
        self,
        prompt: str | list[int],
        method: str = "draft-model",
        *,
        params: dict[str, Any] | None = None,
        target: str | None = None,
        drafter: str | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        stop: Sequence[str] = (),
        paused: bool = False,
        images: Sequence[Any] = (),
        pace: float = 0.0,
        user: str = LOCAL,
        lease_s: float | None = None,
        extras: RequestOptions | None = None,
        memory: bytes | None = None,
        keeps: bool = False,
    ) -> RunHandle:
        """Start a generation and return at once.

        Args:
            prompt: text, or token ids.
            method: name of a method.
            params: parameters of the method and of sampling, in one dict; missing ones take their defaults.
            target: name of a target; None: the backend's default.
            drafter: name of a draft model; None: the target's own; "none": no draft model.
            max_new_tokens: maximum number of new tokens.
            seed: seed of all random numbers of the run.
            stop: strings that end the text.
            paused: whether to wait for `resume` or `step` before the first round.
            images: images for a vision target: bytes of files, data-URLs, paths or PIL images. Each replaces one
                placeholder of the prompt; without placeholders, the images come before the text.
            pace: display rate in tokens per second: rounds are delayed so that viewers can follow; 0: no delay. No
                figure includes the delay. A timed run is never delayed, nor is any run while others wait for a slot.
            user: opaque key for limits and fairness; "local" has no limit of runs. An app sets the user itself.
            lease_s: time without a follower after which the run is cancelled, in seconds; None: never. A run in an app
                ends when the client that started it disconnects.
            extras: stop conditions, penalties, log-probabilities: `workbench.engine.request_options.RequestOptions`.
            memory: initial state of the drafter: a file saved by `RunHandle.memory`.
            keeps: whether to keep the drafter's state after the run, so that `RunHandle.memory` can save it.

        Raises:
            WorkbenchError: the request is wrong. An error that is found only after loading ends the run instead.
        """
        ...

    def run(self, run_id: str) -> RunHandle:
        """Return a run by its id.

        Raises:
            UnknownNameError: there is no such run, or it ended long ago. The message names no other runs.
        """
        ...

    def estimate(self, request: dict[str, Any]) -> str:
        """Return the expected cost of a run with these options, as text; empty if it is unknown."""
        ...

    def stream_comparison(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = LOCAL,
        **settings: Any,
    ) -> Iterator[Step]:
        """Compare methods and yield the progress step by step; closing the iterator ends the comparison.

        Args:
            prompts: prompts, as in `workbench.client.Workbench.compare`.
            lanes: lanes, as in `workbench.client.Workbench.compare`.
            stopped: function that is polled; once it returns true, the last step follows, with the results so far.
            user: opaque key for limits and fairness.
            settings: settings of all lanes, see `workbench.bench.compare.Plan`.

        Raises:
            WorkbenchError: the request is wrong. An error of one lane during the comparison is in that lane's `error`.
        """
        ...

    def stream_pairs(
        self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any
    ) -> Iterator[Pairs]:
        """Measure a speed-up in the background, in pairs of one run of a method and one of plain decoding.

        Args:
            prompt: prompt of both runs.
            method: name of a method.
            params: parameters of the method and of sampling.
            options: options of `start`, and `stopped`, a function that is polled; once it returns true, the last
                update follows.

        Raises:
            MethodUnavailableError: this backend does not support the call; see `capabilities`.
        """
        ...

    def stream_recommendation(
        self,
        prompts: Sequence[Any],
        *,
        seconds: float = 60.0,
        target: str | None = None,
        drafter: str | None = None,
        max_new_tokens: int = 64,
        methods: Sequence[str] = (),
        user: str = LOCAL,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Advice]:
        """Measure in the background which method is fastest on prompts; closing the iterator ends it.

        Args:
            prompts: user messages, `workbench.bench.prompts.BenchPrompt`s, or pairs (name, token ids).
            seconds: measuring time; waiting for other runs is not counted.
            target: name of a target; None: the backend's default.
            drafter: name of a draft model; None: the target's own.
            max_new_tokens: length limit of every run, in tokens.
            methods: names of methods to measure in addition to plain decoding; empty: all exact methods that can run.
            user: opaque key for limits and fairness.
            stopped: function that is polled; once it returns true, the last step follows, with the results so far.

        Raises:
            WorkbenchError: the request is wrong, or this backend does not support the call; see `capabilities`.
        """
        ...

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """Return the conditions of a measurement in addition to its settings: device, dtypes, machine, weights, ….

        Args:
            lane: a lane, as in `stream_comparison`.
            target: name of a target; None: the backend's default.

        Returns:
            Conditions, see `workbench.bench.conditions`; None if the weights are not on the machine yet.

        Raises:
            WorkbenchError: there is no such lane or model.
        """
        ...

    def close(self) -> None:
        """End all runs of this client and stop its threads."""
        ...
