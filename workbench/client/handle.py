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
        """Return the state of the run: loading, queued, prefill, running, paused, finished, cancelled or error."""
        ...

    @property
    def ended(self) -> bool:
        """Return whether the run has ended, so that no more rounds follow."""
        ...

    @property
    def trace(self) -> Trace | None:
        """Return the run's trace recorded so far, which grows with each round; None before the models are loaded."""
        ...

    @property
    def message(self) -> str:
        """Return a message about the run for the user, such as the progress of loading or an error; usually ""."""
        ...

    @property
    def explain_progress(self) -> float | None:
        """Return the progress of attributing the text to the images, from 0 to 1.

        None if no attribution is being computed, or its progress is unknown.
        """
        ...

    def since(self, n: int) -> dict[str, Any]:
        """Return the run's state and all its rounds from number `n` on, as JSON data."""
        ...

    def __iter__(self) -> Iterator[Round]:
        """Yield the rounds of the run as they are recorded, until the run ends."""
        ...

    def wait(self, timeout: float | None = None) -> Trace:
        """Wait for the end of the run and return its trace.

        Raises:
            WorkbenchError: the run failed; the error says how to avoid this.
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
            method: name of a method, as `methods` lists it; empty: no change
            params: parameters of the method and of sampling by name; missing ones stay as they are
            drafter: name of a draft model; empty: no change
            images: new images, as many as the prompt has; empty: no change
            sees: models that get the new images: "both" (target and drafter) or "drafter"
            pace: display rate in tokens per second from now on; measured times do not include the delay; 0: no delay;
                empty: no change

        Raises:
            UnknownNameError, ParameterError, MethodUnavailableError: the change is refused at once, and the run
                continues unchanged.
        """
        ...

    def explain(self) -> dict[str, Any]:
        """Compute attribution maps of the tokens so far over image regions, and store them in `Trace.attribution`.

        Raises:
            WorkbenchError: the run has no images, or no attribution maps can be computed for its text.
        """
        ...

    def memory(self, action: StateAction = "look", data: File = None) -> dict[str, Any]:
        """Inspect, save, load or reset the state of a run's drafter, such as its n-gram tables.

        After the run's end, the state exists only if the run was started with `keeps=True`.

        Args:
            action: look, save, load (adds a saved state to the present one) or reset (to the state from this run's text
                alone)
            data: for load: the content of a file that "save" returned; over HTTP in base64

        Returns:
            Description of the drafter's state (`decoders/draft_verify/state_actions.py`); with "save" also the content
            of the file, as `data`.

        Raises:
            WorkbenchError: the drafter has no state to save; or the file is damaged, too large, or was saved for
                another tokenizer, target or drafter. Then the state is not changed.
        """
        ...

    def pause(self) -> None:
        """Pause the run before its next decoding round."""
        ...

    def resume(self) -> None:
        """Continue a paused run."""
        ...

    def step(self) -> None:
        """Run one decoding round, then pause the run."""
        ...

    def cancel(self) -> None:
        """End the run and keep its trace. A run that has already ended stays as it is."""
        ...
