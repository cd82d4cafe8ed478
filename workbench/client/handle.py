"""A run as every client sees it, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from workbench.trace.events import Round, Trace


@runtime_checkable
class RunHandle(Protocol):
    """One generation: follow it, steer it, end it. Thread-safe.

    `workbench.service.Run` (in this process) and `workbench.client.remoterun.RemoteRun` both are one.
    """

    id: str

    @property
    def state(self) -> str:
        """One of: loading, queued, prefill, running, paused, finished, cancelled, error."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        ...

    @property
    def trace(self) -> Trace | None:
        """What was recorded so far; None before the models are loaded. Grows while the run goes on."""
        ...

    @property
    def message(self) -> str:
        """What whoever waits should know: that a model is loaded, why the run failed; empty most of the time."""
        ...

    @property
    def explained(self) -> float | None:
        """Share of its explanation that is done; None: none is under way, or nobody can say."""
        ...

    def since(self, n: int) -> dict[str, Any]:
        """Everything from round `n` on, as plain JSON."""
        ...

    def __iter__(self) -> Iterator[Round]:
        """Rounds as they are recorded, to the end of the run."""
        ...

    def wait(self, timeout: float | None = None) -> Trace:
        """Wait for the end and return the trace.

        Raises:
            WorkbenchError: the run failed; the message says what to do.
            TimeoutError: it takes longer than `timeout` seconds. The run goes on.
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
        """Switch method, parameters (of method and sampling alike), draft model or pictures, from the next round on.

        `images` are as many as the prompt has; with sees="drafter" the target goes on with those it has read. `pace` is
        in tokens a second: rounds are held back, so that people can follow, and the waiting is in no figure; 0: off.

        Raises:
            UnknownNameError, ParameterError, MethodUnavailableError: at once; the run goes on as it was.
        """
        ...

    def explain(self) -> dict[str, Any]:
        """On which parts of the picture the text so far leans: see `Trace.attribution`, which it fills in.

        Raises:
            WorkbenchError: the run has no pictures, or cannot be explained.
        """
        ...

    def memory(self, action: str = "look", data: bytes | None = None) -> dict[str, Any]:
        """What its drafter remembers: looked at, saved, loaded, emptied. Once it has ended: only what it `keeps`.

        Args:
            action: "look", "save", "load" (beside what is there) or "reset" (to the text itself).
            data: the file that is loaded.

        Returns:
            what there is now, see `workbench.engine.keeping.look`; of "save" the file, as `data`.

        Raises:
            WorkbenchError: the drafter keeps nothing; or the file is of another tokenizer, target or drafter, broken or
                too large. Nothing is changed.
        """
        ...

    def pause(self) -> None:
        """Stop before the next round."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def step(self) -> None:
        """Run one round, then pause."""
        ...

    def cancel(self) -> None:
        """End the run; its trace is kept. Does nothing when it has ended."""
        ...
