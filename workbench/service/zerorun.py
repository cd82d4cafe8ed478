"""A run on ZeroGPU: a generation that can be followed and cancelled, but not paused or changed."""

from __future__ import annotations

import time
from typing import Any

from workbench.core.errors import MethodUnavailableError
from workbench.engine.request import QUEUED, RUNNING
from workbench.service.run import Run
from workbench.trace.events import Footer, Header, Round, Trace

REASON = "ZeroGPU provides a GPU for one uninterrupted generation only. Step through the recorded rounds instead."


class ZeroRun(Run):
    """Generation in a GPU process on ZeroGPU, which sends its rounds to the app as messages."""

    def change(self, *args: Any, **named: Any) -> None:
        """Raise MethodUnavailableError: a run on ZeroGPU cannot be changed."""
        self._host.change(self, None, None, None)

    def pause(self) -> None:
        """Raise MethodUnavailableError: a run on ZeroGPU cannot be paused."""
        raise MethodUnavailableError("A run on ZeroGPU cannot be paused.", REASON)

    def resume(self) -> None:
        """Raise MethodUnavailableError: a run on ZeroGPU cannot be paused and resumed."""
        self.pause()

    def step(self) -> None:
        """Raise MethodUnavailableError: a run on ZeroGPU cannot be executed round by round."""
        self.pause()

    def add_message(self, message: dict[str, Any]) -> list[Round]:
        """Add a message from the GPU process to the run's trace, and return the rounds that the message contains.

        The first message of a run must have the header of the trace.
        """
        rounds = [Round.from_wire(wire) for wire in message.get("rounds", ())]
        with self._news:
            if self.ended:
                return []
            if "header" in message:
                header = Header.from_wire(message["header"])
                if self._trace is None:
                    self._trace, self._state, self._message = Trace(header), RUNNING, ""
                    self.started_at = time.monotonic()
                self._trace.header = header
            assert self._trace is not None
            self._trace.rounds.extend(rounds)
            if "footer" in message:
                self._trace.footer = Footer(**message["footer"])
            self._news.notify_all()
        return rounds

    def set_queued_for_gpu(self, message: str) -> None:
        """Set the run's state to queued, with the message that the run waits for a GPU."""
        self._state, self._message = QUEUED, message
