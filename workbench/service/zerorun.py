"""A run on ZeroGPU as its user sees it: followed and cancelled, neither paused nor changed."""

from __future__ import annotations

import time
from typing import Any

from workbench.core.errors import MethodUnavailableError
from workbench.engine.request import QUEUED, RUNNING
from workbench.service.run import Run
from workbench.trace.events import Footer, Header, Round, Trace

REASON = "On ZeroGPU a GPU is lent for one whole generation: step through the recorded rounds instead."


class ZeroRun(Run):
    """A run whose rounds arrive from another process."""

    def change(self, *asked: Any, **named: Any) -> None:
        """Not here. Raises MethodUnavailableError."""
        self._host.change(self, None, None, None)

    def pause(self) -> None:
        """Not here. Raises MethodUnavailableError."""
        raise MethodUnavailableError("The run cannot be paused.", REASON)

    def resume(self) -> None:
        """Not here. Raises MethodUnavailableError."""
        self.pause()

    def step(self) -> None:
        """Not here. Raises MethodUnavailableError."""
        self.pause()

    def hear(self, message: dict[str, Any]) -> list[Round]:
        """Take in what the other process says; returns the new rounds. The first message must hold the header."""
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

    def waits(self, message: str) -> None:
        """It waits for a GPU."""
        self._state, self._message = QUEUED, message
