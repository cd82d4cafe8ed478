"""Register of a backend's runs: active runs, and ended runs within limits of age, number and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from workbench.core.errors import UnknownNameError
from workbench.service.image_decoding import trim
from workbench.service.limits import Limits
from workbench.service.rate_limiter import RateLimiter
from workbench.service.run import Run


class RunRegister:
    """Register of runs by id. Thread-safe. Users cannot list the ids of other users' runs.

    Attributes:
        rate_limiter: rate limits of client addresses.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.rate_limiter = RateLimiter(limits)
        self._by_id: dict[str, Run] = {}
        self._lock = threading.Lock()

    def add(self, run: Run, max_new_tokens: int) -> None:
        """Add a run to the register; charge the user's client address for a request and for `max_new_tokens` tokens.

        A timed run belongs to a measurement and does not count as a request, but the address must not have used more
        than its allowance of tokens.

        Raises:
            CapacityError: too many runs are active, or a rate limit is exceeded.
        """
        with self._lock:
            self._limits.check_room(run.user, [r.user for r in self._by_id.values() if not r.ended])
            self.rate_limiter.admit_request(run.user, n=0 if run.is_timed else 1)
            self._by_id[run.id] = run
        self.charge(run, max_new_tokens)

    def charge(self, run: Run, tokens: int) -> None:
        """Charge the user's client address for the tokens that a run may use; `settle` refunds unused tokens."""
        run.charged_tokens += tokens
        self.rate_limiter.charge(run.user, tokens)

    def settle(self, run: Run) -> None:
        """Refund the tokens that an ended run was charged for and did not use.

        Prompt tokens count as used after prefill.
        """
        trace = run.trace
        used = len(trace.header.prompt_tokens) + sum(len(r.emitted) for r in trace.rounds) if trace is not None else 0
        unused, run.charged_tokens = max(0, run.charged_tokens - used), 0
        self.rate_limiter.charge(run.user, -unused)

    def remove(self, run: Run) -> None:
        """Remove a run from the register, and free its images."""
        with self._lock:
            self._by_id.pop(run.id, None)
        if not run.ended:
            self.settle(run)
        self._free([run])

    @staticmethod
    def _free(removed: Sequence[Run]) -> None:
        """Free the images of runs that were removed from the register, and return their memory to the system."""
        with_images = [run for run in removed if run.request is not None and run.request.pil_images]
        for run in with_images:
            run.release_images()
        if with_images:
            trim()

    def check_room(self, user: str, alone: bool = False) -> None:
        """Refuse a run that exceeds a limit, before work is spent on it.

        Args:
            user: user of the run.
            alone: whether the run is timed for a measurement; such a run does not count as a request.

        Raises:
            CapacityError: too many runs are active, or a rate limit is exceeded.
        """
        with self._lock:
            self._limits.check_room(user, [run.user for run in self._by_id.values() if not run.ended])
            self.rate_limiter.admit_request(user, n=0 if alone else 1, counted=False)

    def get(self, run_id: str) -> Run:
        """Return the run (a generation in the backend) with the given id.

        Raises:
            UnknownNameError: there is no run with this id, or it ended long ago. The message names no other runs.
        """
        with self._lock:
            if run_id not in self._by_id:
                raise UnknownNameError(
                    "The server has no run with this id, or the run ended long ago.", "Start a new run."
                )
            return self._by_id[run_id]

    def active(self) -> list[Run]:
        """Return the runs in the register that have not ended."""
        with self._lock:
            return [run for run in self._by_id.values() if not run.ended]

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def trace_bytes(self) -> int:
        """Return the approximate memory of the traces of all runs, in bytes."""
        with self._lock:
            return sum(run.trace_bytes for run in self._by_id.values())

    def tidy(self) -> None:
        """Remove ended runs that exceed the limits of age, number and memory from the register.

        If the traces of the remaining runs exceed the memory limit, the run with the largest trace is ended.
        """
        limits, now = self._limits, time.monotonic()
        removed: list[Run] = []
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
                removed.append(run)
            largest = max(self._by_id.values(), key=lambda run: run.trace_bytes, default=None)
        self._free(removed)
        if largest is not None and total > limits.trace_bytes:
            message = "The run was stopped at the server's memory limit for traces. Use a smaller tree or fewer tokens."
            largest.cancel(message, "memory")
