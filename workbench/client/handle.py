"""Interface to a run, in this process or in a running app."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from workbench.trace.events import Round, Trace


@runtime_checkable
class RunHandle(Protocol):
    """Interface to one generation: follow, change, pause or cancel it. Thread-safe.

    Implemented by `workbench.service.Run` (in this process) and `workbench.client.remoterun.RemoteRun`.
    """

    id: str

    @property
    def state(self) -> str:
        """One of: loading, queued, prefill, running, paused, finished, cancelled, error."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the run has ended; no more rounds follow."""
        ...

    @property
    def trace(self) -> Trace | None:
        """Trace recorded so far; None before the models are loaded. It grows while the run continues."""
        ...

    @property
    def message(self) -> str:
        """Status message for the user, such as a model being loaded or the reason of a failure; usually empty."""
        ...

    @property
    def explain_progress(self) -> float | None:
        """Finished share of `explain`, 0 to 1; None if it is not running or its progress is unknown."""
        ...

    def since(self, n: int) -> dict[str, Any]:
        """Return the state and all rounds from number `n` on, as plain JSON."""
        ...

    def __iter__(self) -> Iterator[Round]:
        """Yield rounds as they are recorded, until the run ends."""
        ...

    def wait(self, timeout: float | None = None) -> Trace:
        """Wait for the end and return the trace.

        Raises:
            WorkbenchError: the run failed; the message has the remedy.
            TimeoutError: the run takes longer than `timeout` seconds; it continues.
        """
        ...

    def change(
        self,
        method: str | None = None,
        params: dict[str, Any] | None = None,
        drafter: str | None = None,
        images: Sequence[Any] = (),
        sees: str = "both",
        pace: float | None = None,
    ) -> None:
        """Change the method, parameters (of method and sampling), draft model or images, from the next round on.

        Args:
            method: name of a method; None: no change.
            params: parameters by name; missing ones stay as they are.
            drafter: name of a draft model; None: no change.
            images: new images, as many as the prompt has; empty: no change.
            sees: "both", or "drafter": the target's images do not change.
            pace: tokens per second. Rounds are delayed for viewers, and no figure includes the delay; 0: no delay.

        Raises:
            UnknownNameError, ParameterError, MethodUnavailableError: the change is refused at once, and the run
                continues unchanged.
        """
        ...

    def explain(self) -> dict[str, Any]:
        """Attribute the text so far to regions of the image; also stores the result in `Trace.attribution`.

        Raises:
            WorkbenchError: the run has no images, or cannot be explained.
        """
        ...

    def memory(self, action: str = "look", data: bytes | None = None) -> dict[str, Any]:
        """Inspect, save, load or reset the drafter's state. After the run's end this needs a run with `keeps=True`.

        Args:
            action: "look", "save", "load" (adds the file to the present state) or "reset" (to that after this text).
            data: content of the file to load.

        Returns:
            Description of the state (`decoders/draft_verify/state_actions.py`); with "save" also the file, as `data`.

        Raises:
            WorkbenchError: the drafter has no state to save; or the file is damaged, too large, or of another
                tokenizer, target or drafter. Nothing is changed.
        """
        ...

    def pause(self) -> None:
        """Stop before the next round."""
        ...

    def resume(self) -> None:
        """Continue a paused run."""
        ...

    def step(self) -> None:
        """Run one round, then pause."""
        ...

    def cancel(self) -> None:
        """End the run and keep its trace. Does nothing if the run has ended."""
        ...
