"""`Workbench()`: a private backend in this process."""

from __future__ import annotations

from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.service import Backend, Run
from workbench.trace.events import Trace


class Workbench:
    """Everything one can ask of a backend. Models are loaded at the first run.

    Args:
        url: reserved for a running app or Space; only in-process backends exist so far.
        target: default target: bundled name, local folder or Hub id.
        drafter: default draft model; "auto" is the bundled one for the bundled target.
        device: "auto", "cpu", "cuda", ….
        dtype: "auto", "float64", "float32", "bfloat16", "float16".
        drafter_dtype: the same for draft models.

    Raises:
        WorkbenchError: a URL was given.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        target: str = "text-target",
        drafter: str | None = "auto",
        device: str = "auto",
        dtype: str = "auto",
        drafter_dtype: str = "auto",
    ) -> None:
        if url is not None:
            raise WorkbenchError("Remote backends are not there yet.", "Use Workbench() without a URL.")
        self._backend = Backend(target, drafter, device, dtype, drafter_dtype)

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

    def device_label(self) -> str:
        """Device and dtype, for people."""
        return self._backend.device_label()

    def preload(self) -> None:
        """Start loading the default models in the background."""
        self._backend.preload()

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        """Load models and wait for them. Raises WorkbenchError when they cannot be loaded."""
        self._backend.load(target, drafter)

    def start(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> Run:
        """Start a generation; see `workbench.service.backend.Backend.start` for the options."""
        return self._backend.start(prompt, method, **options)

    def generate(self, prompt: str | list[int], method: str = "draft-model", **options: Any) -> Trace:
        """Start a generation and wait for its end."""
        return self.start(prompt, method, **options).wait()

    def run(self, run_id: str) -> Run:
        """A run by its id."""
        return self._backend.run(run_id)

    def close(self) -> None:
        """End all runs and give the threads back."""
        self._backend.close()

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
