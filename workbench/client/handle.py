"""Interface to a run, in this process or in a running app."""

# The types of the parameters are read at run time, hence no `from __future__ import annotations` here.

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from workbench.client.values import File, Images, Model, Name, NameOrNone, PaceOrNone, StateAction, Values
from workbench.trace.events import Round, Trace


@runtime_checkable
class RunHandle(Protocol):
    """Interface to one generation: follow, change, pause or cancel it. Thread-safe.

    Implemented by `workbench.service.Run` (in this process) and `workbench.client.remoterun.RemoteRun`.
    """

    id: str

    @property
    def state(self) -> str:
        """Return one of: loading, queued, prefill, running, paused, finished, cancelled, error."""
        ...

    @property
    def ended(self) -> bool:
        """Return whether the run has ended, so that no more rounds follow."""
        ...

    @property
    def trace(self) -> Trace | None:
        """Return the trace recorded so far; None before the models are loaded. It grows while the run continues."""
        ...

    @property
    def message(self) -> str:
        """Return the status message for the user, such as the progress of loading or an error; usually empty."""
        ...

    @property
    def explain_progress(self) -> float | None:
        """Return the finished share of `explain`, 0 to 1; None if it is not running or its progress is unknown."""
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
        method: NameOrNone = None,
        params: Values = None,
        drafter: Model = None,
        images: Images = (),
        sees: Name = "both",
        pace: PaceOrNone = None,
    ) -> None:
        """Change the method, parameters (of method and sampling), draft model or images, from the next round on.

        Args:
            method: a name that `methods` lists; empty: no change
            params: parameters of the method and of sampling by name; missing ones stay as they are
            drafter: name of a draft model; empty: no change
            images: new images, as many as the prompt has; empty: no change
            sees: models that get the new images: "both" or "drafter"
            pace: display rate in tokens per second from now on, which no figure includes; 0: no delay; empty: no change

        Raises:
            UnknownNameError, ParameterError, MethodUnavailableError: the change is refused at once, and the run
                continues unchanged.
        """
        ...

    def explain(self) -> dict[str, Any]:
        """Attribute the text so far to regions of the images, and store the result in `Trace.attribution`.

        Raises:
            WorkbenchError: the run has no images, or cannot be explained.
        """
        ...

    def memory(self, action: StateAction = "look", data: File = None) -> dict[str, Any]:
        """Inspect, save, load or reset the drafter's state. After the run's end, only a run with `keeps=True` has it.

        Args:
            action: look, save, load (adds the file to the present state) or reset (to the state after this text alone)
            data: for load: a file that "save" returned; over HTTP in base64

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
