"""The engine thread: it admits waiting runs to the batch, runs decoding rounds, and ends finished runs.

Other threads only put runs into queues, or set flags that are read between rounds. The thread never waits for a client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from workbench.core.errors import CapacityError, WorkbenchError, is_out_of_memory
from workbench.engine import Engine, Models, Request
from workbench.engine.request import CANCELLED, ENDED, ERROR, PAUSED, Sequence
from workbench.kernels.device_clock import empty_cache
from workbench.service import memory
from workbench.service.limits import Limits
from workbench.service.loadedtarget import LoadedTarget
from workbench.service.modelpool import ModelPool
from workbench.service.run import Run
from workbench.service.runregister import RunRegister
from workbench.service.timing_coordination import TimingCoordinator
from workbench.service.users import LOCAL

log = logging.getLogger("workbench.service")

SWEEP_S = 0.2
"""Interval in seconds between checks of the runs' leases (time limits without a viewer) and total time limits."""
IDLE_S = 0.05
"""Time in seconds for which the thread sleeps if all sequences are paused."""


@dataclass(frozen=True, eq=False, slots=True)
class QueuedRun:
    """Run that waits in the queue, with its request and its loaded models."""

    run: Run
    request: Request
    models: Models


class EngineThread:
    """Thread that alone uses the engines of all targets and their sequences.

    A timed run has the device to itself: while it runs, all other sequences are suspended and no run is admitted.
    Afterwards the suspended sequences run for the same time before another timed run may start.

    Args:
        pool: pool of loaded targets with their engines.
        runs: register of all runs of the backend.
        limits: limits of the backend, of which the time limits of runs are used.
        make_room: function that starts to evict unused models until the given number of bytes is free; it returns at
            once.
        timing: coordination of timed runs with other computations.
    """

    def __init__(
        self,
        pool: ModelPool,
        runs: RunRegister,
        limits: Limits,
        make_room: Callable[[int], None],
        timing: TimingCoordinator,
    ) -> None:
        self._pool, self._runs, self._limits, self._make_room = pool, runs, limits, make_room
        self._timing, self._timed_waits = timing, False
        self._wake = threading.Event()
        self._closed = False
        self._swept = 0.0
        self._paused_since: dict[str, float] = {}
        self._alone: Run | None = None
        self._alone_since = self._others_until = 0.0
        self.beat = time.monotonic()
        self.failures = 0
        self._thread = threading.Thread(target=self._work, name="workbench-engine", daemon=True)
        self._thread.start()

    # -- from any thread -----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the engine thread from its sleep."""
        self._wake.set()

    def put(self, run: Run, request: Request, models: Models, loaded: LoadedTarget) -> None:
        """Queue a run for its target's batch.

        Args:
            run: run to queue.
            request: the run's request in the engine's format.
            models: loaded models of the run.
            loaded: the target of `models`, with its engine and queue.
        """
        request.models = models
        run.set_queued()
        loaded.queue.put(run.user, QueuedRun(run, request, models))
        self.wake()

    def queue_position(self, run: Run) -> tuple[int, int] | None:
        """Return a run's position (from 1) in its target's queue, and the queue's length; None if it is not queued."""
        for loaded in self._pool.targets():
            order = [waiting.run for waiting in loaded.queue.order() if not waiting.run.ended]
            if run in order:
                return order.index(run) + 1, len(order)
        return None

    @property
    def status(self) -> str:
        """Return the status of the engine thread.

        One of: "ok", "stalled" (no iteration for 60 s), "failing" (engine steps fail), "down" (the thread has ended).
        """
        if not self._thread.is_alive():
            return "down"
        if self.failures > 2:
            return "failing"
        return "stalled" if time.monotonic() - self.beat > 60 else "ok"

    def close(self) -> None:
        """End the engine thread, and wait up to five seconds for it."""
        self._closed = True
        self.wake()
        self._thread.join(timeout=5)

    # -- the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closed:
            self._wake.clear()
            try:
                worked = self._run_iteration()
            except BaseException:  # even after a Rust panic, the thread must serve the other runs
                log.exception("an iteration of the engine thread failed")
                worked = False
            if not worked:
                for run in self._runs.active():
                    run.notify()
                self._wake.wait(self._idle_s())

    def _idle_s(self) -> float:
        """Return the seconds for which the thread sleeps when no sequence can run its next round.

        If a run is slowed down to a display rate, the sleep ends when its next round is due.
        """
        sequences = [run.sequence for loaded in self._pool.targets() for run in loaded.runs]
        delays = [s for sequence in sequences if sequence is not None and (s := sequence.due_s) is not None]
        return min([IDLE_S if sequences else SWEEP_S, *delays])

    def _run_iteration(self) -> bool:
        self.beat = time.monotonic()
        self._sweep()
        worked = self._timed_waits = False
        for loaded in self._pool.targets():
            self._admit(loaded)
            self._waive_delays(loaded)
            worked |= self._step(loaded)
            self._close_ended(loaded)
        if self._alone is None and not self._timed_waits:
            self._timing.release_device()
        return worked

    def _sweep(self) -> None:
        """Cancel runs that no client follows or that exceed a time limit; remove old ended runs from the register."""
        now = time.monotonic()
        if now - self._swept < SWEEP_S:
            return
        self._swept = now
        paused = {}
        for run in self._runs.active():
            if run.lease_s is not None and now - run.followed_at > run.lease_s:
                run.cancel("The run was stopped, because no client follows it any more.", "lease")
            elif run.state == PAUSED and run.user != LOCAL:
                paused[run.id] = self._paused_since.get(run.id, now)
                if now - paused[run.id] > self._limits.paused_s:
                    run.cancel(f"The run was paused for longer than {self._limits.paused_s:.0f} s, the limit.", "limit")
            if self._limits.run_s is not None and now - run.created - run.held_s > self._limits.run_s:
                run.cancel(f"The run took longer than this server's time limit of {self._limits.run_s:g} s.", "limit")
        self._paused_since = paused
        for loaded in self._pool.targets():
            for waiting in loaded.queue.order():
                if waiting.run.ended:
                    loaded.queue.remove(waiting)
        self._runs.tidy()

    def _admit(self, loaded: LoadedTarget) -> None:
        """Admit queued runs to the batch, while there are free slots and memory for their KV caches."""
        while len(loaded.runs) < loaded.engine.max_sequences and self._alone is None:
            waiting = loaded.queue.head()
            if waiting is None or not (waiting.run.ended or self._has_memory_for(loaded, waiting.models)):
                return
            if waiting.run.is_timed and not waiting.run.ended:
                if self._must_timed_run_wait():
                    return
                self._timed_waits = True
                if not self._timing.request_device():
                    return
            loaded.queue.pop()
            if waiting.run.ended:
                continue
            try:
                sequence = loaded.engine.submit(waiting.request)
            except BaseException as error:  # the run has left the queue, so it must be ended here
                if not isinstance(error, WorkbenchError):
                    log.exception("the engine thread could not start a run")
                message = f"The run could not be started ({type(error).__name__})."
                waiting.run.end(ERROR, error if isinstance(error, WorkbenchError) else WorkbenchError(message))
                continue
            loaded.runs.append(waiting.run)
            waiting.run.attach_sequence(sequence)
            if waiting.run.is_timed:
                self._suspend_others(waiting.run)

    def _must_timed_run_wait(self) -> bool:
        """Return whether a queued timed run must wait, because the sequences suspended before may still run.

        After a timed run, they may run for as long as it took. Sequences that a user has paused do not count.
        """
        sequences = [run.sequence for loaded in self._pool.targets() for run in loaded.runs]
        return time.monotonic() < self._others_until and any(
            sequence and sequence.status != PAUSED for sequence in sequences
        )

    def _suspend_others(self, alone: Run) -> None:
        self._alone, self._alone_since = alone, time.monotonic()
        for loaded in self._pool.targets():
            for run in loaded.runs:
                if run is not alone and run.sequence is not None:
                    run.sequence.is_suspended = True

    def _resume_suspended(self) -> None:
        """Resume the sequences that were suspended while a timed run had the device."""
        now, self._alone = time.monotonic(), None
        seconds = now - self._alone_since
        for loaded in self._pool.targets():
            for run in loaded.runs:
                if run.sequence is not None and run.sequence.is_suspended:
                    run.sequence.is_suspended = False
                    if run.sequence.status != PAUSED:
                        run.held_s += seconds
                        self._others_until = now + seconds

    def _waive_delays(self, loaded: LoadedTarget) -> None:
        """Stop delaying the rounds of a target's runs for display while other runs of this target are queued."""
        for run in loaded.runs:
            if run.sequence is not None:
                run.sequence.pace.is_waived = len(loaded.queue) > 0

    def _has_memory_for(self, loaded: LoadedTarget, models: Models) -> bool:
        """Return whether the KV caches of one more sequence fit into memory; if not, start to evict unused models."""
        runners = [models.target, *([] if models.draft_model is None else [models.draft_model])]
        needed = sum(memory.growth_bytes(runner, len(loaded.runs) + 1) for runner in runners)
        if not needed or needed <= self._pool.room():
            return True
        self._make_room(needed)
        return False

    def _step(self, loaded: LoadedTarget) -> bool:
        """Run one step of a target's engine. If the engine itself fails, end its runs and create a new engine."""
        try:
            worked = loaded.engine.step()
            if worked:
                self.failures = 0
            return worked
        except BaseException as error:
            log.exception("an engine failed, and its runs are ended")
            self.failures += 1
            for sequence in [*loaded.engine.running, *loaded.engine.waiting]:
                sequence.status, sequence.error = ERROR, error
                footer = sequence.trace.footer
                footer.text, footer.reason = sequence.trace.text, "error"
                footer.error = f"The engine failed ({type(error).__name__}). Start the run again."
            failed = loaded.engine
            loaded.engine = Engine(failed.models, failed.max_sequences, failed.record, rounds_late=failed.rounds_late)
            for _, runner in loaded.runners():
                for slot in list(runner.slots):
                    runner.close(slot)
            return True

    def _close_ended(self, loaded: LoadedTarget) -> None:
        """End the runs whose sequences have ended, which frees their slots in the batch."""
        for run in list(loaded.runs):
            sequence = run.sequence
            if sequence is not None and sequence.status not in ENDED:
                continue
            loaded.runs.remove(run)
            if run is self._alone:
                self._resume_suspended()
            if sequence is not None:
                footer = sequence.trace.footer
                footer.reason = run.stop_reason if sequence.status == CANCELLED else footer.reason
                problem = sequence.error if isinstance(sequence.error, WorkbenchError) else None
                if is_out_of_memory(sequence.error):
                    problem = out_of_memory(sequence, len(loaded.runs))
                    footer.error = str(problem)
                    empty_cache()
                if run.held_s:
                    footer.warnings.append(
                        f"The run was suspended for {run.held_s:.1f} s while a comparison used the device."
                    )
                sequence.error = None  # its traceback references tensors
                run.end(sequence.status, problem or (WorkbenchError(footer.error) if footer.error else None))


def out_of_memory(sequence: Sequence, others: int) -> CapacityError:
    """Return the error of a run that ran out of memory. The error's remedy lists settings that need less memory.

    Args:
        sequence: sequence of the run.
        others: number of other sequences in the batch.
    """
    length = (
        f"max_new_tokens={sequence.n_new}"
        if sequence.n_new
        else f"a prompt shorter than {sequence.prompt_length} tokens"
    )
    nodes = sequence.configured_method.values.get("nodes")
    nodes_hint = f", or fewer nodes than {nodes}" if isinstance(nodes, int) and nodes > 1 else ""
    wait_hint = f", or wait until {others} other runs have ended" if others else ""
    return CapacityError(
        f"The run was out of memory after {sequence.n_new} generated tokens.", f"Use {length}{nodes_hint}{wait_hint}."
    )
