"""Load models in separate threads, so that running generations never wait for a load."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from workbench.core.errors import ModelError, WorkbenchError
from workbench.engine import Models, Request
from workbench.engine.request import ERROR
from workbench.service.modelpool import ModelPool
from workbench.service.names import Pair
from workbench.service.progress import Progress
from workbench.service.run import Run

log = logging.getLogger("workbench.service")

LOADERS = 4
"""Number of threads that load models. Only one of them builds a model at a time, while the others may download."""


class ModelLoader:
    """Threads that load models, and the runs that wait for these models.

    Args:
        pool: pool of loaded models.
        queue: function that queues a run whose models are loaded; raises an error if the run is invalid.
        wake: function that wakes the engine thread.
        on_error: function that is called with each error of a load.

    Attributes:
        threads: thread pool for loading models and for work that waits for models.
    """

    def __init__(
        self,
        pool: ModelPool,
        queue: Callable[[Run, Request, Models], None],
        wake: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._pool, self._queue, self._wake, self._failed = pool, queue, wake, on_error
        self.threads = ThreadPoolExecutor(LOADERS, thread_name_prefix="workbench-loader")
        self._waiting: dict[Pair, tuple[Progress, list[tuple[Run, Request]]]] = {}
        self._closing = threading.Event()
        self._now: list[Progress] = []
        self._lock, self._clearing = threading.Lock(), threading.Lock()

    def progress(self, name: str) -> Progress:
        """Create the `Progress` of a new load. After a call of `end`, its next update aborts the load."""
        return Progress(name, is_over=self._closing.is_set)

    @property
    def stage(self) -> str:
        """Return the progress of the most recent load, such as "dequantising 40 %"; empty if no load is running."""
        current = self._now[:]
        return current[-1].short if current else ""

    def wait(self, pair: Pair) -> Models:
        """Load a target and a draft model in a loader thread, wait for them, and return them.

        Raises:
            WorkbenchError: the models cannot be loaded.
        """
        return self.threads.submit(self.load, pair, self.progress(pair[0])).result()

    def load(self, pair: Pair, progress: Progress) -> Models:
        """Load a target and a draft model in the current thread, which must be a loader thread, and return them.

        Args:
            pair: names of the target and the draft model.
            progress: progress of this load, to update.

        Raises:
            WorkbenchError: the models cannot be loaded.
        """
        self._now.append(progress)
        try:
            return self._pool.load(pair, progress)
        except WorkbenchError as error:
            self._failed(error)
            raise
        except BaseException as error:  # if this thread died, the threads that wait for its result would wait forever
            log.exception("loading failed")
            self._failed(error)
            raise ModelError(
                f"{pair[0]} cannot be loaded ({type(error).__name__}).", "The server's log has the details."
            ) from error
        finally:
            self._now.remove(progress)

    def make_room(self, n_bytes: int) -> None:
        """Start to evict idle models in a loader thread until `n_bytes` are free; at most one eviction runs at once."""
        if self._clearing.acquire(blocking=False):
            clearing = self.threads.submit(self._pool.make_room, n_bytes)
            clearing.add_done_callback(lambda _: (self._clearing.release(), self._wake()))

    def queue_once_loaded(self, run: Run, request: Request, pair: Pair) -> None:
        """Queue a run as soon as its models are loaded. Runs with the same models share one load, and keep their order.

        Args:
            run: run to queue.
            request: the run's request in the engine's format.
            pair: names of the target and the draft model.
        """
        with self._lock:
            is_first = pair not in self._waiting
            progress, waiting = self._waiting.setdefault(pair, (self.progress(pair[0]), []))
            waiting.append((run, request))
            run.set_loading(progress)
        if is_first:
            self.threads.submit(self._load_then_queue, pair, progress)

    def _load_then_queue(self, pair: Pair, progress: Progress) -> None:
        """Load a target and a draft model, and queue the runs that wait for them. Called in a loader thread."""
        models, problem = None, None
        try:
            models = self.load(pair, progress)
        except WorkbenchError as error:
            problem = error
        with self._lock:
            _, waiting = self._waiting.pop(pair)
        for run, request in waiting:
            if problem is not None or models is None:
                run.end(ERROR, problem)
            elif not run.ended:
                try:
                    self._queue(run, request, models)
                except BaseException as error:
                    self._failed(error)
                    message = f"The run could not be started ({type(error).__name__})."
                    run.end(ERROR, error if isinstance(error, WorkbenchError) else WorkbenchError(message))

    def end(self) -> None:
        """Abort all loads of models that are in progress."""
        self._closing.set()

    def close(self) -> None:
        """Stop the loader threads, so that the process does not wait for them when it ends."""
        self.threads.shutdown(wait=False, cancel_futures=True)
