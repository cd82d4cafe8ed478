"""Client of a backend: `Workbench()` runs one in this process, `Workbench(url)` uses that of a running app."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from workbench.client import wire
from workbench.client.handle import RunHandle
from workbench.client.protocol import Client
from workbench.client.remote import RemoteBackend
from workbench.service.limits import Limits
from workbench.service.users import LOCAL
from workbench.trace.events import Trace

if TYPE_CHECKING:
    from workbench.bench.advice import Advice
    from workbench.bench.compare import Comparison
    from workbench.bench.pairing import Pairs
    from workbench.bench.steps import Step


class Workbench(Client):
    """Client of a backend: the calls of `workbench.client.protocol.Client`, plus blocking calls such as `generate`.

    A backend in this process loads models at the first run.

    Args:
        url: address of a running app ("http://localhost:7860") or name of a Space ("owner/space"); None: a backend in
            this process. For a private Space, set `HF_TOKEN` in the environment.
        key: API key of the app at `url`; None: `WORKBENCH_API_KEY` for a server on this machine (it is sent to no
            other), `WORKBENCH_CONNECT_KEY` for a server elsewhere, none for a Space. The remaining arguments apply only
            to a backend in this process.
        target: default target: bundled name, local folder or Hub id.
        drafter: default draft model; "auto": the one bundled for the target.
        device: "auto", "cpu", "cuda", ….
        dtype: "auto", "float64", "float32", "bfloat16", "float16", "int8" (weights only, on CPU).
        drafter_dtype: dtype of draft models, with the same choices.
        options: further options of `workbench.service.Backend`: `max_sequences`, `limits`, `memory_bytes`,
            `allow_models`, `folders`.

    Raises:
        WorkbenchError: the server cannot be reached, or is not a workbench.

    Example:
        >>> from workbench import Workbench
        >>> with Workbench() as wb:                                                      # doctest: +SKIP
        ...     trace = wb.generate("Once upon a time", method="prompt-lookup", max_new_tokens=40)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        target: str = "text-target",
        drafter: str | None = "auto",
        device: str = "auto",
        dtype: str = "auto",
        drafter_dtype: str = "auto",
        **options: Any,
    ) -> None:
        self._backend: Client
        if url is not None:
            self._backend = RemoteBackend(url, key)
        else:
            from workbench.service import Backend

            self._backend = Backend(target, drafter, device, dtype, drafter_dtype, **options)

    # -- blocking calls ------------------------------------------------------------------------------------------

    def generate(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> Trace:
        """Run a generation to its end and return its trace. For `options` see `Client.start`."""
        return self.start(prompt, method, **options).wait()

    def compare(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        progress: Callable[[Step], None] | None = None,
        **settings: Any,
    ) -> Comparison:
        """Compare methods on prompts: one run at a time, interleaved, repeated; see `workbench.bench.compare`.

        Args:
            prompts: a text, or several; or `workbench.bench.prompts.BenchPrompt`s.
            lanes: one to four, each a method's name, a string like "draft-model:depth=3", or a `Lane`. Plain decoding
                is always measured too.
            progress: function called with every `workbench.bench.compare.Step`.
            settings: settings of all lanes, see `workbench.bench.compare.Plan`: `target`, `max_new_tokens`, `seed`,
                `sampling` (for example `{"temperature": 0.7}`), `stop`, `repeats`, and `images` (paths, bytes,
                data-URLs, PIL images), which belong to every prompt.

        Returns:
            Figures, texts and traces; after Ctrl-C those measured so far.

        Raises:
            WorkbenchError: the request is wrong. An error of one lane during the comparison is in that lane's `error`.

        Example:
            >>> found = wb.compare("Once upon a time", ["draft-model", "prompt-lookup"])     # doctest: +SKIP
            >>> found.figures["Draft model"]["speedup"]["value"]                         # doctest: +SKIP
        """
        from workbench.bench.compare import finish

        return finish(self.stream_comparison(prompts, lanes, **settings), progress)

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- calls of the backend: see `workbench.client.protocol.Client` ------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        return self._backend.targets()

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        return self._backend.drafters(target)

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        return self._backend.methods(target, drafter)

    def sampling_params(self) -> list[dict[str, Any]]:
        return self._backend.sampling_params()

    def presets(self) -> list[dict[str, Any]]:
        return self._backend.presets()

    def definitions(self) -> dict[str, dict[str, str]]:
        return self._backend.definitions()

    def device_label(self, target: str | None = None) -> str:
        return self._backend.device_label(target)

    def unavailable_actions(self) -> dict[str, str]:
        return self._backend.unavailable_actions()

    @property
    def capabilities(self) -> frozenset[str]:
        return self._backend.capabilities

    @property
    def ready(self) -> bool:
        return self._backend.ready

    @property
    def hub_only(self) -> bool:
        return self._backend.hub_only

    @property
    def limits(self) -> Limits:
        return self._backend.limits

    def admit_request(self, user: str, counted: bool = True) -> None:
        self._backend.admit_request(user, counted)

    def charge_call(self, user: str, seconds: float = 0.0) -> None:
        self._backend.charge_call(user, seconds)

    def health(self) -> dict[str, Any]:
        return self._backend.health()

    def metrics_text(self) -> str:
        return self._backend.metrics_text()

    def preload(self, extra_targets: Sequence[str] = ()) -> None:
        self._backend.preload(extra_targets)

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        self._backend.load(target, drafter)

    def unload(self, target: str) -> None:
        self._backend.unload(target)

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        return self._backend.prefer_heads(folder, on)

    def loaded_models(self) -> list[dict[str, Any]]:
        return self._backend.loaded_models()

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        return self._backend.chat_prompt(messages, target)

    def start(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> RunHandle:
        return self._backend.start(wire.check_prompt(prompt) if isinstance(prompt, str) else prompt, method, **options)

    def run(self, run_id: str) -> RunHandle:
        return self._backend.run(run_id)

    def estimate(self, request: dict[str, Any]) -> str:
        return self._backend.estimate(request)

    def stream_comparison(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = LOCAL,
        **settings: Any,
    ) -> Iterator[Step]:
        if "images" in settings:
            settings["images"] = tuple(wire.data_url(image) for image in settings["images"])
        return self._backend.stream_comparison(prompts, lanes, stopped=stopped, user=user, **settings)

    def stream_pairs(
        self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any
    ) -> Iterator[Pairs]:
        return self._backend.stream_pairs(prompt, method, params, **options)

    def stream_recommendation(self, prompts: Sequence[Any], **options: Any) -> Iterator[Advice]:
        return self._backend.stream_recommendation(prompts, **options)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        return self._backend.conditions(lane, target)

    def close(self) -> None:
        self._backend.close()
