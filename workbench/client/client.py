"""`Workbench()`: a private backend in this process. `Workbench(url)`: a running app's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workbench.client import wire
from workbench.client.handle import RunHandle
from workbench.client.remote import Remote
from workbench.trace.events import Trace


class Workbench:
    """Everything one can ask of a backend. In this process, models are loaded at the first run.

    Args:
        url: address of a running app ("http://localhost:7860") or name of a Space ("owner/space"); None: a private
            backend in this process. A private Space takes the token of the environment (`HF_TOKEN`).
        key: what the app at `url` asks everybody for; None: for a server of this machine `WORKBENCH_API_KEY`, which
            goes nowhere else, for one elsewhere `WORKBENCH_CONNECT_KEY`, for a Space none. The other arguments belong
            to a private backend.
        target: default target: bundled name, local folder or Hub id.
        drafter: default draft model; "auto" is the bundled one for the bundled target.
        device: "auto", "cpu", "cuda", ….
        dtype: "auto", "float64", "float32", "bfloat16", "float16".
        drafter_dtype: the same for draft models.
        options: further options of `workbench.service.Backend`: `max_rows`, `limits`, `memory_bytes`, `allow_models`,
            `folders`.

    Raises:
        WorkbenchError: nobody answers at the address, or it is no workbench.

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
        self._backend: Any
        if url is not None:
            self._backend = Remote(url, key)
        else:
            from workbench.service import Backend

            self._backend = Backend(target, drafter, device, dtype, drafter_dtype, **options)

    # -- what there is -------------------------------------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        """Targets: name, title, kind, detail."""
        return self._backend.targets()

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        """Draft models: name, title, available, reason, detail."""
        return self._backend.drafters(target)

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        """Methods: name, title, promise, source, parameters, whether each can run with these models and why not."""
        return self._backend.methods(target, drafter)

    def sampling_params(self) -> list[dict[str, Any]]:
        """Parameters of sampling, shared by all methods."""
        return self._backend.sampling_params()

    def presets(self) -> list[dict[str, Any]]:
        """Prompts to start with."""
        return self._backend.presets()

    def definitions(self) -> dict[str, Any]:
        """What every figure divides by what: name → (in words, definition)."""
        return self._backend.definitions()

    def device_label(self) -> str:
        """Device and dtype, for people."""
        return self._backend.device_label()

    def health(self) -> dict[str, Any]:
        """Whether the backend works, and how busy it is."""
        return self._backend.health()

    def metrics_text(self) -> str:
        """Prometheus' text format: runs, rounds, tokens, τ and acceptance by method, queue, memory."""
        return self._backend.metrics_text()

    @property
    def hub_only(self) -> bool:
        """Whether names that are not listed are the Hub's alone; see `workbench.service.Backend.hub_only`."""
        return self._backend.hub_only

    @property
    def limits(self) -> Any:
        """What one user may ask for; see `workbench.service.limits.Limits`."""
        return self._backend.limits

    def let_in(self, user: str, counted: bool = True) -> None:
        """Count a request of a user that is no run, or only ask whether there is room for one.

        Raises:
            WorkbenchError: their address has made too many in a minute.
        """
        self._backend.let_in(user, counted)

    # -- models --------------------------------------------------------------------------------------------------

    def preload(self, also: Sequence[str] = ()) -> None:
        """Start loading the default models in the background, then the published targets of these names."""
        self._backend.preload(also)

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        """Load models and wait for them.

        Raises:
            WorkbenchError: they cannot be loaded.
        """
        self._backend.load(target, drafter)

    def unload(self, target: str) -> None:
        """Give a target's memory back.

        Raises:
            WorkbenchError: it is not loaded, or runs are using it.
        """
        self._backend.unload(target)

    def loaded(self) -> list[dict[str, Any]]:
        """Models in memory: name, role, bytes, dtype, device, runs, idle_s."""
        return self._backend.loaded()

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        """Token ids of a conversation in the target's chat format, ready for the assistant's answer.

        Args:
            messages: each with `role` and `content`.
            target: by default the backend's.

        Raises:
            PromptError: the target has no chat format, or the messages do not fit it.
        """
        return self._backend.chat_prompt(messages, target)

    # -- runs ----------------------------------------------------------------------------------------------------

    def start(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> RunHandle:
        """Start a generation; see `workbench.service.backend.Backend.start` for the options."""
        return self._backend.start(wire.prompt(prompt) if isinstance(prompt, str) else prompt, method, **options)

    def generate(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> Trace:
        """Start a generation and wait for its end."""
        return self.start(prompt, method, **options).wait()

    def compare(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        progress: Callable[[Any], None] | None = None,
        **settings: Any,
    ) -> Any:
        """Compare methods on prompts: alone on the device, interleaved, repeated; see `workbench.bench.compare`.

        Args:
            prompts: a text, or several; or `workbench.bench.prompts.BenchPrompt`s.
            lanes: one to four, each a method's name, a line like "draft-model:depth=3", or a `Lane`. Plain decoding is
                measured beside them where it is not among them.
            progress: called with every `workbench.bench.compare.Step`.
            settings: what they have in common, see `workbench.bench.compare.Plan`: `target`, `max_new_tokens`, `seed`,
                `sampling` (for example `{"temperature": 0.7}`), `stop`, `repeats`, and `images`: pictures (paths,
                bytes, data-URLs, PIL images) that all prompts are questions about.

        Returns:
            a `workbench.bench.compare.Comparison`: figures, texts, traces. Ctrl-C returns what was measured until then.

        Raises:
            WorkbenchError: the request is wrong. A lane that fails on the way says so in its `error`.

        Example:
            >>> found = wb.compare("Once upon a time", ["draft-model", "prompt-lookup"])     # doctest: +SKIP
            >>> found.figures["Draft model"]["speedup"]["value"]                         # doctest: +SKIP
        """
        from workbench.bench.compare import finish

        return finish(self.comparing(prompts, lanes, **settings), progress)

    def comparing(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = "local",
        **settings: Any,
    ) -> Iterator[Any]:
        """The same, step by step, for faces that show how far it is; closing the iterator ends it.

        Args:
            prompts: as in `compare`.
            lanes: as in `compare`.
            stopped: asked often; once it says yes, the last step comes with what was measured until then.
            user: opaque key for limits and fairness.
            settings: as in `compare`.

        Yields:
            `workbench.bench.compare.Step`s.
        """
        if "images" in settings:
            settings["images"] = tuple(wire.data_url(image) for image in settings["images"])
        return self._backend.comparing(prompts, lanes, stopped=stopped, user=user, **settings)

    def pairing(self, prompt: str | list[int], method: str, params: dict[str, Any], **options: Any) -> Iterator[Any]:
        """Measure a speed-up pair by pair in the background, in this process only.

        Args:
            prompt: what the method and plain decoding continue.
            method: registry name.
            params: of the method and of sampling.
            options: as in `start`, and `stopped`, asked often; once it says yes, the last news come.

        Yields:
            `workbench.bench.pairing.Pairs`.
        """
        return self._backend.pairing(prompt, method, params, **options)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """All that decides what a measurement gives there, besides its settings: device, dtypes, machine, weights, ….

        Args:
            lane: as in `compare`.
            target: by default the backend's.

        Returns:
            see `workbench.bench.conditions`; None where nobody can say, because the weights are not there yet.
        """
        return self._backend.conditions(lane, target)

    def run(self, run_id: str) -> RunHandle:
        """A run by its id.

        Raises:
            UnknownNameError: it is not known there.
        """
        return self._backend.run(run_id)

    def close(self) -> None:
        """End all runs of this client and give its threads back."""
        self._backend.close()

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
