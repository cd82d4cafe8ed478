"""Client of a backend: `Workbench()` runs a backend in this process, `Workbench(url)` uses that of a running app."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from workbench.client import wire
from workbench.client.calls import Call, call_member
from workbench.client.protocol import Client
from workbench.client.remote import RemoteBackend
from workbench.trace.events import Trace

if TYPE_CHECKING:
    from workbench.bench.compare import Comparison
    from workbench.bench.steps import Step


class Workbench(Client):
    """Client of a backend: the calls of `workbench.client.protocol.Client`, plus blocking calls such as `generate`.

    A backend in this process loads models at the first run.

    Args:
        url: address of a running app ("http://localhost:7860") or name of a Space ("owner/space"); None: a backend in
            this process. For a private Space, set `HF_TOKEN` in the environment.
        key: API key of the app at `url`. None: `WORKBENCH_API_KEY` for a server on this machine (this key is sent to no
            other machine), `WORKBENCH_CONNECT_KEY` for a server elsewhere, no key for a Space. The remaining arguments
            apply only to a backend in this process.
        target: default target: bundled name, local folder or Hub id.
        drafter: default draft model; "auto": the draft model bundled for the target.
        device: "auto", "cpu", "cuda", ….
        dtype: "auto", "float64", "float32", "bfloat16", "float16", "int8" (weights only, on CPU).
        drafter_dtype: dtype of draft models, with the same choices.
        options: other options of `workbench.service.Backend`: `max_sequences`, `limits`, `memory_bytes`,
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

    @property
    def is_remote(self) -> bool:
        """Return whether the backend runs in another process, perhaps on another machine."""
        return isinstance(self._backend, RemoteBackend)

    # -- blocking calls ------------------------------------------------------------------------------------------

    def generate(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> Trace:
        """Run a generation to its end and return its trace. The `options` are those of `Client.start`."""
        return self.start(prompt, method, **options).wait()

    def compare(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        progress: Callable[[Step], None] | None = None,
        **settings: Any,
    ) -> Comparison:
        """Compare methods on prompts, one run at a time in changing order, repeatedly; see `workbench.bench.compare`.

        Args:
            prompts: a text, or several; or `workbench.bench.prompts.BenchPrompt`s.
            lanes: one to four compared methods: each a method's name, a string like "draft-model:depth=3", or a `Lane`.
                Plain decoding is always measured, too.
            progress: function that is called with every `workbench.bench.compare.Step`, to show the progress.
            settings: settings that apply to all compared methods, such as `sampling={"temperature": 0.7}`; see
                `Client.stream_comparison`.

        Returns:
            Measurements, texts and traces of the comparison; after Ctrl-C, those of the finished runs.

        Raises:
            WorkbenchError: the request is wrong. If one method fails during the comparison, its result has the `error`.

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

    # -- calls of the backend ------------------------------------------------------------------------------------

    def _dispatch(self, call: Call, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Answer a call of the interface `Client` that this class does not implement, by calling the backend."""
        return call_member(self._backend, call.name, args, named)

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        self._backend.load(target, drafter)

    def stream_comparison(
        self, prompts: str | Sequence[Any], lanes: Sequence[Any], *, images: Sequence[Any] = (), **settings: Any
    ) -> Iterator[Step]:
        if images:
            settings["images"] = tuple(wire.data_url(image) for image in images)
        return self._backend.stream_comparison(prompts, lanes, **settings)
