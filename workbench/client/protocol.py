"""Interface of all backends, whether in this process, in a running app, on a Space or on ZeroGPU.

The interface is also the only declaration of the API: see `workbench.client.calls`.
"""

# The types of the parameters are read at run time, hence no `from __future__ import annotations` here.

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from workbench.client.calls import ANSWER, call, local_call
from workbench.client.handle import RunHandle
from workbench.client.values import (
    Conversation,
    Drafter,
    File,
    Flag,
    Images,
    Lane,
    Lanes,
    ListedModel,
    Name,
    Names,
    NewTokens,
    Pace,
    Prompt,
    Prompts,
    Repeats,
    Seconds,
    Seed,
    Stops,
    Target,
    Tokens,
    UserMessages,
    Values,
)
from workbench.service.limits import Limits
from workbench.service.users import LOCAL

if TYPE_CHECKING:
    from workbench.bench.advice import Advice
    from workbench.bench.pairing import Pairs
    from workbench.bench.steps import Step
    from workbench.engine.request_options import RequestOptions


@runtime_checkable
class Client(Protocol):
    """Interface of a backend. The app, the command line and the servers use no other. Thread-safe.

    Implemented by `workbench.client.Workbench`, `workbench.service.Backend`, `workbench.client.remote.RemoteBackend`
    and `workbench.service.zerogpu.ZeroGpuBackend`. A backend refuses a call that it cannot answer, with the reason.
    """

    # -- models, methods and state -------------------------------------------------------------------------------

    @call()
    def targets(self) -> list[dict[str, Any]]:
        """List the target models, the default one first: name, title, kind, detail."""
        return ANSWER

    @call()
    def drafters(self, target: Target = None) -> list[dict[str, Any]]:
        """List the draft models, and for each whether it fits the target; if not, why.

        Returns:
            For each draft model: name, title, available, reason, detail.
        """
        return ANSWER

    @call()
    def methods(self, target: Target = None, drafter: Drafter = None) -> list[dict[str, Any]]:
        """List the decoding methods: name, title, promise, source, parameters, and whether each can run.

        For a method that cannot run with the given models, the reason is included.
        """
        return ANSWER

    @call()
    def sampling_params(self) -> list[dict[str, Any]]:
        """List the sampling parameters, which are equal for all methods: range, default, meaning."""
        return ANSWER

    @call()
    def presets(self) -> list[dict[str, Any]]:
        """List example prompts, one for each kind of text that is easy or hard to draft."""
        return ANSWER

    @call()
    def definitions(self) -> dict[str, dict[str, str]]:
        """Return title and formula of each measured quantity, such as the acceptance rate, by name."""
        return ANSWER

    @call()
    def device_label(self, target: Target = None) -> str:
        """Return a text with the device and the number format of a target model."""
        return ANSWER

    @local_call
    def unavailable_actions(self) -> dict[str, str]:
        """Return the actions on runs that the backend does not support, with reasons.

        Actions: "pause", "step", "change", "pace", "memory".
        """
        return ANSWER

    @property
    @local_call
    def capabilities(self) -> frozenset[str]:
        """Return the optional calls that this backend supports: "estimate", "pairing", "recommending", "heads"."""
        return ANSWER

    @property
    @local_call
    def ready(self) -> bool:
        """Return whether the backend has started. Until then, other calls wait."""
        return ANSWER

    @property
    @local_call
    def hub_only(self) -> bool:
        """Return whether an unlisted model name is read only as a Hub id, never as a local folder."""
        return ANSWER

    @property
    @call()
    def limits(self) -> Limits:
        """Return the limits per user: concurrent runs, new tokens per run, prompt length."""
        return ANSWER

    @local_call
    def admit_request(self, user: str, counted: bool = True) -> None:
        """Count a request that starts no run toward a user's rate limit; with counted=False only check the limit.

        Raises:
            CapacityError: the user's address has made too many requests within a minute.
        """
        return ANSWER

    @local_call
    def charge_call(self, user: str, seconds: float = 0.0) -> None:
        """Charge the CPU time of a call from a page to a user's client address, or check whether it may make a call.

        Args:
            user: opaque key of the user.
            seconds: CPU time of the call, in seconds; 0: only check whether the address may make a call.

        Raises:
            CapacityError: `seconds` is 0 and the address has used up its budget with earlier calls.
        """
        return ANSWER

    @call()
    def health(self) -> dict[str, Any]:
        """Return whether the backend works, with its load and memory, but without names of users or models.

        Returns:
            status ("ok", "stalled", "failing", "down"), uptime_s, device, runs (number by state), queue (its length),
            rows (number of sequences in the batch), models (number), progress of loading ("dequantising 40 %", or
            empty), and memory in bytes: models, their limit, traces, free.
        """
        return ANSWER

    @local_call
    def metrics_text(self) -> str:
        """Return metrics in Prometheus' text format: runs, rounds, tokens, memory; τ and acceptance rate by method."""
        return ANSWER

    # -- models --------------------------------------------------------------------------------------------------

    @local_call
    def preload(self, extra_targets: Sequence[str] = ()) -> None:
        """Load the default models in the background, and after them the published targets in `extra_targets`."""
        return ANSWER

    @call(key="loaded")
    def load(self, target: Target = None, drafter: Drafter = None) -> object:
        """Load models and wait until they are loaded. Runs load their models automatically.

        Raises:
            WorkbenchError: the models cannot be loaded.
        """
        return ANSWER

    @call(key="loaded")
    def unload(self, target: ListedModel) -> None:
        """Unload a target and free its memory. Over HTTP this is allowed only from the app's own machine.

        Args:
            target: name of a loaded target

        Raises:
            WorkbenchError: the target is not loaded, or runs are using it.
        """
        return ANSWER

    @local_call
    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Draft with the heads in a local folder instead of other heads of the same kind; `on=False` stops that.

        Running generations use the heads from their next round on.

        Returns:
            Number of running generations that change their heads.

        Raises:
            ModelError: the heads cannot be read, or do not fit the target. Then no generation changes its heads.
            MethodUnavailableError: this backend does not support the call.
        """
        return ANSWER

    @call("loaded")
    def loaded_models(self) -> list[dict[str, Any]]:
        """Return the models in memory: name, role, bytes, dtype, device, runs, idle_s."""
        return ANSWER

    @call()
    def chat_prompt(self, messages: Conversation, target: Target = None) -> list[int]:
        """Format a conversation with the target's chat template, up to the start of the assistant's answer.

        Returns:
            Token ids of the prompt.

        Raises:
            PromptError: the target has no chat template, or the messages do not fit it.
        """
        return ANSWER

    # -- runs ----------------------------------------------------------------------------------------------------

    @local_call
    def start(
        self,
        prompt: Prompt,
        method: Name = "draft-model",
        *,
        params: Values = None,
        target: Target = None,
        drafter: Drafter = None,
        max_new_tokens: NewTokens = 128,
        seed: Seed = 0,
        stop: Stops = (),
        paused: Flag = False,
        images: Images = (),
        pace: Pace = 0.0,
        user: str = LOCAL,
        lease_s: float | None = None,
        extras: "RequestOptions | None" = None,
        memory: File = None,
        keeps: Flag = False,
    ) -> RunHandle:
        """Start a generation, and return its run at once, without waiting for tokens.

        Args:
            prompt: text to continue, or a list of token ids
            method: name of a method, as `methods` lists it
            params: parameters of the method and of sampling by name; missing ones take their defaults
            target: name of a target; empty: the default one
            drafter: name of a draft model; empty: the default one of the target; "none": no draft model
            max_new_tokens: maximum number of new tokens
            seed: seed of all random numbers of the run
            stop: strings that end the text
            paused: wait for `resume`, `step` or `control` before the first round
            images: images for a vision target: data-URLs, and in Python also bytes of files, paths or PIL images. Each
                replaces one placeholder of the prompt; without placeholders, the images come before the text.
            pace: display rate in tokens per second, to which rounds are delayed for viewers; 0: no delay. Measured
                times do not include the delay. Runs whose times are compared are never delayed, nor is any run while
                others wait for a slot.
            user: opaque key of the user, for limits and for fair scheduling among users; "local" has no limit of runs.
                An app sets the key itself.
            lease_s: time in seconds after which a run that no client follows is cancelled; None: never. A run in an app
                ends when the client that started it disconnects.
            extras: stop conditions, penalties, log-probabilities: `workbench.engine.request_options.RequestOptions`.
            memory: initial state of the drafter: a file saved by `memory`; over HTTP in base64
            keeps: keep the drafter's state after the run, so that `memory` can save it

        Raises:
            WorkbenchError: the request is wrong. An error that is found only after the models are loaded ends the run
                instead.
        """
        return ANSWER

    @local_call
    def run(self, run_id: str) -> RunHandle:
        """Return the run (a generation in the backend) with the given id.

        Raises:
            UnknownNameError: there is no run with this id, or it ended long ago. The message names no other runs.
        """
        return ANSWER

    @local_call
    def estimate(self, request: dict[str, Any]) -> str:
        """Return the expected GPU time of a run with these options, as text; empty if it is unknown."""
        return ANSWER

    @local_call
    def stream_comparison(
        self,
        prompts: Prompts,
        lanes: Lanes,
        *,
        target: Target = None,
        max_new_tokens: Tokens = 64,
        seed: Seed = 0,
        sampling: Values = None,
        stop: Stops = (),
        repeats: Repeats = 3,
        images: Images = (),
        stopped: Callable[[], bool] = lambda: False,
        user: str = LOCAL,
    ) -> "Iterator[Step]":
        """Compare methods by timed runs, and yield the progress. Closing the iterator ends the comparison.

        Args:
            prompts: texts to continue, or objects with text, name, group and chat
            lanes: one to four compared methods: strings like "draft-model:depth=3", or objects with method, params and
                drafter
            target: name of a target; empty: the default one
            max_new_tokens: maximum number of new tokens per run
            seed: seed of all random numbers of the runs
            sampling: sampling parameters of all compared methods by name, such as temperature
            stop: strings that end a text
            repeats: number of runs of each method on each prompt
            images: images for a vision target, as in `start`; they belong to every prompt
            stopped: function that is polled; once it returns True, the comparison ends with the results so far.
            user: opaque key of the user, for limits and for fair scheduling among users.

        Raises:
            WorkbenchError: the request is wrong. If one method fails during the comparison, its result has the `error`.
        """
        return ANSWER

    @local_call
    def stream_pairs(
        self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any
    ) -> "Iterator[Pairs]":
        """Measure a method's speed-up in the background, by pairs of runs: with the method and without it.

        Args:
            prompt: prompt of both runs.
            method: name of a method.
            params: parameters of the method and of sampling.
            options: options of `start`, and `stopped`, a function that is polled; once it returns True, the measurement
                ends.

        Raises:
            MethodUnavailableError: this backend does not support the call; see `capabilities`.
        """
        return ANSWER

    @local_call
    def stream_recommendation(
        self,
        prompts: UserMessages,
        *,
        seconds: Seconds = 60,
        target: Target = None,
        drafter: Drafter = None,
        max_new_tokens: Tokens = 64,
        methods: Names = (),
        user: str = LOCAL,
        stopped: Callable[[], bool] = lambda: False,
    ) -> "Iterator[Advice]":
        """Measure in the background which method is fastest on given prompts.

        Closing the iterator ends the measurement.

        Args:
            prompts: user messages, each a text or an object with text, name and chat; in the process of the backend
                also `workbench.bench.prompts.BenchPrompt`s, or pairs (name, token ids)
            seconds: duration of the measurement in seconds, without the time spent waiting for other runs
            target: name of a target; empty: the default one
            drafter: name of a draft model; empty: the default one of the target; "none": no draft model
            max_new_tokens: maximum number of new tokens per run
            methods: names of methods to measure besides plain decoding; empty: all exact methods that can run
            user: opaque key of the user, for limits and for fair scheduling among users.
            stopped: function that is polled; once it returns True, the measurement ends with the results so far.

        Raises:
            WorkbenchError: the request is wrong, or this backend does not support the call; see `capabilities`.
        """
        return ANSWER

    @call()
    def conditions(self, lane: Lane, target: Target = None) -> dict[str, Any] | None:
        """Return all conditions that affect a measurement by this backend, besides the settings of the method.

        Returns:
            Device, dtypes, machine, weights, … (`workbench.bench.conditions`); None if the weights are not on the
            machine yet.

        Raises:
            WorkbenchError: the method or the model does not exist.
        """
        return ANSWER

    @local_call
    def close(self) -> None:
        """End all runs of this client, and stop its threads."""
        return ANSWER
