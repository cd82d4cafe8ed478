"""Handle of a run in another process, whose rounds are copied into this process as they arrive."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator
from typing import Any

import httpx

from workbench.client import wire
from workbench.client.answers import check_answer, unreachable
from workbench.client.connection import Connection
from workbench.client.requests import ChangeRequest, DrafterStateRequest
from workbench.core.errors import WorkbenchError
from workbench.trace.events import Footer, Header, Round, Trace


class RemoteRun:
    """Handle (`workbench.client.RunHandle`) of a run in another process; a thread copies the run's rounds.

    Args:
        connection: connection to the backend.
        events: messages of the run; the first message has the run's id, or an error if there is no run.

    Raises:
        WorkbenchError: the run could not be started, or the backend has no such run.
    """

    def __init__(self, connection: Connection, events: Generator[dict[str, Any], None, None]) -> None:
        self._connection = connection
        self._events = events
        self._news = threading.Condition()
        self._trace: Trace | None = None
        self._last: dict[str, Any] = {}
        self._is_detached = False
        try:
            first = check_answer(next(events))
        except (httpx.HTTPError, StopIteration) as problem:
            raise unreachable(connection.url, problem) from problem
        self.id: str = first["run"]
        self._take(first)
        threading.Thread(target=self._mirror, name=f"workbench-follow-{self.id[:6]}", daemon=True).start()

    # -- following: see `workbench.client.RunHandle` -------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._last["state"]

    @property
    def ended(self) -> bool:
        return self.state in wire.ENDED

    explain_progress = None

    @property
    def message(self) -> str:
        """Return the backend's message about the run, such as the progress of loading or an error."""
        return self._last["message"]

    @property
    def trace(self) -> Trace | None:
        return self._trace

    def since(self, n: int) -> dict[str, Any]:
        with self._news:
            rounds = self._rounds(n)
            header = self._trace.header.to_wire() if self._trace is not None else None
            return self._last | {"header": header, "rounds": [r.to_wire() for r in rounds], "seq": n + len(rounds)}

    def __iter__(self) -> Iterator[Round]:
        n = 0
        while True:
            with self._news:
                while not (rounds := self._rounds(n)) and not self.ended:
                    self._news.wait()
            if not rounds:
                return
            yield from rounds
            n += len(rounds)

    def wait(self, timeout: float | None = None) -> Trace:
        with self._news:
            if not self._news.wait_for(lambda: self.ended, timeout):
                raise TimeoutError(f"The generation has not ended after {timeout:g} s.")
        if self.state == "error":
            problem = self._last.get("problem")
            raise wire.error_from_wire(problem or {"message": self._last["footer"]["error"]})
        if self._trace is None:
            raise WorkbenchError("The run was cancelled before it started.")
        return self._trace

    # -- steering ------------------------------------------------------------------------------------------------

    def change(self, *args: Any, **named: Any) -> None:
        self._connection.call("change", *ChangeRequest.arguments(self.id, *args, **named))

    def explain(self) -> dict[str, Any]:
        attribution = self._connection.fetch_attribution(self.id)
        if self._trace is not None:
            self._trace.attribution = attribution
        return attribution

    def memory(self, *args: Any, **named: Any) -> dict[str, Any]:
        arguments = DrafterStateRequest.arguments(self.id, *args, **named)
        return wire.state_from_wire(self._connection.call("memory", *arguments))

    def pause(self) -> None:
        self._connection.call("control", self.id, "pause")

    def resume(self) -> None:
        self._connection.call("control", self.id, "resume")

    def step(self) -> None:
        self._connection.call("control", self.id, "step")

    def cancel(self) -> None:
        if not self.ended:
            self._connection.call("control", self.id, "cancel")

    def _rounds(self, n: int) -> list[Round]:
        return self._trace.rounds[n:] if self._trace is not None else []

    # -- the mirror ----------------------------------------------------------------------------------------------

    def _mirror(self) -> None:
        problem: WorkbenchError | None = None
        try:
            for message in self._events:
                self._take(check_answer(message))
                if self._is_detached:
                    break
        except (WorkbenchError, httpx.HTTPError) as error:
            problem = unreachable(self._connection.url, error)
        except BaseException as error:  # if this thread died, `wait` would never return
            problem = WorkbenchError(f"The server's answer could not be read: {type(error).__name__}.")
        finally:
            with contextlib.suppress(Exception):
                self._events.close()
        if not self.ended:
            self._lost(problem or WorkbenchError("The connection was closed before the run ended."))

    def _take(self, message: dict[str, Any]) -> None:
        if not message:
            return  # a keep-alive message
        with self._news:
            if message["header"] is not None:
                header = Header.from_wire(message["header"])
                if self._trace is None:
                    self._trace = Trace(header)
                self._trace.header = header  # sent again when prefill has ended
            if self._trace is not None:
                self._trace.rounds += [Round.from_wire(r) for r in message["rounds"]]
                if message["footer"] is not None:
                    self._trace.footer = Footer(**message["footer"])
            self._last = {**message, "rounds": []}
            self._news.notify_all()

    def _lost(self, problem: WorkbenchError) -> None:
        with self._news:
            footer = Footer(reason="error", error=str(problem))
            if self._trace is not None:
                footer.text = self._trace.text
                self._trace.footer = footer
            error = wire.error_to_wire(problem)
            self._last |= {"state": "error", "message": str(problem), "problem": error, "footer": footer.to_wire()}
            self._news.notify_all()

    def leave(self) -> None:
        """Stop following the run. If this client started the run, the server ends it."""
        self._is_detached = True
