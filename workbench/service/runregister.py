"""The runs a backend knows: those that go on, and ended ones for a while, within bounds of number and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from workbench.core.errors import UnknownNameError
from workbench.service.limits import Limits
from workbench.service.meter import Meter
from workbench.service.pictures import trim
from workbench.service.run import Run
from workbench.trace.events import Round
from workbench.trace.pictures import pictures_of

ROUND_BYTES, NODE_BYTES, TOKEN_BYTES, TOP_BYTES = 3000, 190, 280, 650
"""What the parts of a recorded round take in memory, in bytes; a test keeps them near the truth."""


def round_bytes(record: Round) -> int:
    """About how much memory a recorded round takes."""
    tops = len(record.top_p) + sum(top is not None for top in record.top_q)
    n_bytes = ROUND_BYTES + NODE_BYTES * len(record.nodes) + TOKEN_BYTES * len(record.emitted) + TOP_BYTES * tops
    return n_bytes + sum(len(picture["url"]) for picture in pictures_of(record.vision))


class RunRegister:
    """Runs by id. Thread-safe. Nobody can list the ids of others.

    Attributes:
        meter: what addresses use in a minute.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.meter = Meter(limits)
        self._by_id: dict[str, Run] = {}
        self._lock = threading.Lock()

    def add(self, run: Run, max_new_tokens: int) -> None:
        """Take a run in, and charge its user for it.

        One of many that are timed is no request of its own, but has to wait too while tokens of earlier ones are owed.

        Raises:
            CapacityError: its user, or all users together, have as many as allowed, or more in a minute.
        """
        with self._lock:
            self._limits.check_room(run.user, [r.user for r in self._by_id.values() if not r.ended])
            self.meter.let_in(run.user, n=0 if run.alone else 1)
            self._by_id[run.id] = run
        self.charge(run, max_new_tokens)

    def charge(self, run: Run, tokens: int) -> None:
        """Count tokens that a run asks for."""
        run.charged += tokens
        self.meter.charge(run.user, tokens)

    def settle(self, run: Run) -> None:
        """Give back what an ended run was charged for and has not used; a prompt counts once it was read."""
        trace = run.trace
        used = len(trace.header.prompt_tokens) + sum(len(r.emitted) for r in trace.rounds) if trace is not None else 0
        unused, run.charged = max(0, run.charged - used), 0
        self.meter.charge(run.user, -unused)

    def remove(self, run: Run) -> None:
        """Forget a run."""
        with self._lock:
            self._by_id.pop(run.id, None)
        if not run.ended:
            self.settle(run)
        self._free([run])

    @staticmethod
    def _free(forgotten: Sequence[Run]) -> None:
        """Let go of the pictures of forgotten runs, and give what they took back to the system."""
        had = [run for run in forgotten if run.request is not None and run.request.pictures]
        for run in had:
            run.forget_pictures()
        if had:
            trim()

    def check_room(self, user: str, alone: bool = False) -> None:
        """Refuse a user's run before anything is done for it: `add` would refuse it.

        Args:
            user: whose run it is.
            alone: it is one of many that are timed, and no request of its own.

        Raises:
            CapacityError: see `add`.
        """
        with self._lock:
            self._limits.check_room(user, [run.user for run in self._by_id.values() if not run.ended])
            self.meter.let_in(user, n=0 if alone else 1, counted=False)

    def get(self, run_id: str) -> Run:
        """A run by its id.

        Raises:
            UnknownNameError: no such run, or it ended long ago. Other runs are not named.
        """
        with self._lock:
            if run_id not in self._by_id:
                raise UnknownNameError("This run is not known here any more.", "Start a new one.")
            return self._by_id[run_id]

    def active(self) -> list[Run]:
        """Runs that have not ended."""
        with self._lock:
            return [run for run in self._by_id.values() if not run.ended]

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def trace_bytes(self) -> int:
        """Memory of all traces, about."""
        with self._lock:
            return sum(run.trace_bytes for run in self._by_id.values())

    def tidy(self) -> None:
        """Forget what is too old or too much: ended runs first; then the run with the largest trace is ended."""
        limits, now = self._limits, time.monotonic()
        forgotten: list[Run] = []
        with self._lock:
            ended = [(run.ended_at, run) for run in self._by_id.values() if run.ended_at is not None]
            ended.sort(key=lambda pair: pair[0])  # oldest first
            total = sum(run.trace_bytes for run in self._by_id.values())
            for i, (at, run) in enumerate(ended):
                too_old = now - at > limits.kept_s
                if not too_old and len(ended) - i <= limits.kept_runs and total <= limits.trace_bytes:
                    break
                total -= run.trace_bytes
                del self._by_id[run.id]
                forgotten.append(run)
            largest = max(self._by_id.values(), key=lambda run: run.trace_bytes, default=None)
        self._free(forgotten)
        if largest is not None and total > limits.trace_bytes:
            full = "Its trace had filled the memory there is for traces. Use a smaller tree or fewer tokens."
            largest.cancel(full, "memory")
