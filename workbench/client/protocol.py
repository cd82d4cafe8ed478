"""What every backend answers, wherever it is: in this process, behind a running app, on a Space, on ZeroGPU."""

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
    from workbench.engine.extras import Extras


@runtime_checkable
class Client(Protocol):
    """The calls that faces make of a backend, and all that they know of it. Thread-safe.

    `workbench.client.Workbench`, `workbench.service.Backend`, `workbench.client.remote.Remote` and
    `workbench.service.zerogpu.ZeroClient` each are one; what one of them cannot do, it refuses with the reason.
    """

    # -- what there is -------------------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """Targets, the default one first: name, title, kind, detail."""
        ...

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Draft models: name, title, available, reason, detail."""
        ...

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """Methods: name, title, promise, source, parameters, whether each can run with these models and why not."""
        ...

    def sampling_params(self) -> list[dict[str, Any]]:
        """Parameters of sampling, shared by all methods."""
        ...

    def presets(self) -> list[dict[str, Any]]:
        """Prompts to start with."""
        ...

    def definitions(self) -> dict[str, dict[str, str]]:
        """What every figure divides by what, by name: {"title", "formula"}."""
        ...

    def device_label(self, target: str | None = None) -> str:
        """Device and dtype of a target, for people."""
        ...

    def barred(self) -> dict[str, str]:
        """What cannot be done with a run there ("pause", "step", "change", "pace", "memory"), and why."""
        ...

    @property
    def offers(self) -> frozenset[str]:
        """Calls that not every backend can answer, of those it can: "estimate", "pairing", "recommending"."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it can be asked: whoever asks one that is still in the making waits."""
        ...

    @property
    def hub_only(self) -> bool:
        """Whether names that are not listed are the Hub's alone: no folder of this machine is looked for."""
        ...

    @property
    def limits(self) -> Limits:
        """What one user may ask for."""
        ...

    def let_in(self, user: str, counted: bool = True) -> None:
        """Count a request of a user that is no run, or only ask whether there is room for one.

        Raises:
            CapacityError: their address has made too many in a minute.
        """
        ...

    def let_call(self, user: str, seconds: float = 0.0) -> None:
        """Charge a user's address for a page's call, or ask whether it may make one.

        Args:
            user: key of who asks.
            seconds: processor seconds that a call took; 0: only ask.

        Raises:
            CapacityError: nothing is charged, and the address owes seconds of earlier calls.
        """
        ...

    def health(self) -> dict[str, Any]:
        """How the backend is doing, without names.

        Returns:
            status ("ok", "stalled", "failing", "down"), uptime_s, device, runs by state, queue, rows, models, how far a
            load is ("dequantising 40 %", or empty), and memory in bytes: of models, their limit, traces, what is free.
        """
        ...

    def metrics_text(self) -> str:
        """Prometheus' text format: runs, rounds, tokens, τ and acceptance by method, queue, memory."""
        ...

    # -- models --------------------------------------------------------------------------------------------------

    def preload(self, also: Sequence[str] = ()) -> None:
        """Start loading the default models in the background, then the published targets of these names."""
        ...

    def load(self, target: str | None = None, drafter: str | None = None) -> object:
        """Load models and wait for them.

        Raises:
            WorkbenchError: they cannot be loaded.
        """
        ...

    def unload(self, target: str) -> None:
        """Give a target's memory back.

        Raises:
            WorkbenchError: it is not loaded, or runs are using it.
        """
        ...

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        """Draft with the heads in a folder of this machine before all others of their kind; or, `on` False, no longer.

        Generations that go on take them up from their next round on; returns how many do.

        Raises:
            ModelError: they cannot be read, or do not suit the target; nothing is changed.
            MethodUnavailableError: that cannot be had there; see `offers`.
        """
        ...

    def loaded(self) -> list[dict[str, Any]]:
        """Models in memory: name, role, bytes, dtype, device, runs, idle_s."""
        ...

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        """Token ids of a conversation in the target's chat format, ready for the assistant's answer.

        Args:
            messages: each with `role` and `content`.
            target: by default the backend's.

        Raises:
            PromptError: the target has no chat format, or the messages do not fit it.
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
        extras: Extras | None = None,
        memory: bytes | None = None,
        keeps: bool = False,
    ) -> RunHandle:
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
                The waiting is in no figure. A timed run is never held back, and none while others wait for its row.
            user: opaque key for limits and fairness; "local" has no limit of runs. An app decides itself who asks.
            lease_s: cancel the run when nobody followed it for so many seconds; None: never. A run in an app ends when
                whoever started it goes.
            extras: other ends, penalties, log-probabilities; see `workbench.engine.extras.Extras`.
            memory: a file that `RunHandle.memory` saved: its drafter begins with that state.
            keeps: leave the drafter's state behind, for `RunHandle.memory` to save once the run has ended.

        Raises:
            WorkbenchError: the request is wrong. What only shows when models are loaded ends the run with an error.
        """
        ...

    def run(self, run_id: str) -> RunHandle:
        """A run by its id.

        Raises:
            UnknownNameError: no such run, or it ended long ago. Other runs are not named.
        """
        ...

    def estimate(self, request: dict[str, Any]) -> str:
        """What a run of these options and this method is expected to cost, in words; empty where nobody can say."""
        ...

    def comparing(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = LOCAL,
        **settings: Any,
    ) -> Iterator[Step]:
        """Compare methods, step by step, for faces that show how far it is; closing the iterator ends it.

        Args:
            prompts: as in `workbench.client.Workbench.compare`.
            lanes: the same.
            stopped: asked often; once it says yes, the last step comes with what was measured until then.
            user: opaque key for limits and fairness.
            settings: see `workbench.bench.compare.Plan`.

        Raises:
            WorkbenchError: the request is wrong. A lane that fails on the way says so in its `error`.
        """
        ...

    def pairing(self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any) -> Iterator[Pairs]:
        """Measure a speed-up pair by pair in the background.

        Args:
            prompt: what the method and plain decoding continue.
            method: registry name.
            params: of the method and of sampling.
            options: as in `start`, and `stopped`, asked often; once it says yes, the last news come.

        Raises:
            MethodUnavailableError: that cannot be had there; see `offers`.
        """
        ...

    def recommending(
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
        """Measure in the background which method is fastest on prompts, step by step; closing the iterator ends it.

        Args:
            prompts: messages to the target; or `workbench.bench.prompts.BenchPrompt`s, or (name, token ids).
            seconds: of measuring; waiting for others is not counted.
            target: by default the backend's.
            drafter: draft model; None: the one that belongs to the target.
            max_new_tokens: length limit of every run.
            methods: measured beside plain decoding; by default all exact ones that run.
            user: opaque key for limits and fairness.
            stopped: asked often; once it says yes, the last step comes with what was measured until then.

        Raises:
            WorkbenchError: the request is wrong, or that cannot be had there; see `offers`.
        """
        ...

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """All that decides what a measurement gives there, besides its settings: device, dtypes, machine, weights, ….

        Args:
            lane: as in `comparing`.
            target: by default the backend's.

        Returns:
            see `workbench.bench.conditions`; None where nobody can say, because the weights are not there yet.

        Raises:
            WorkbenchError: there is no such lane or model.
        """
        ...

    def close(self) -> None:
        """End all runs of this client and give its threads back."""
        ...
