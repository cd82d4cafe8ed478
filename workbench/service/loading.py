"""Models are loaded in threads of their own, so that running generations never wait for a file."""

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
"""Loads that go on at once; one of them builds, the others may be downloading."""


class Loading:
    """The threads that load, and the runs that wait for them.

    Args:
        pool: holds what was loaded.
        queue: takes a run whose models are there; raises what is wrong with it.
        wake: lets the engine look again.
        failed: told of every error.

    Attributes:
        threads: where loads are done, and what may wait for one.
    """

    def __init__(
        self,
        pool: ModelPool,
        queue: Callable[[Run, Request, Models], None],
        wake: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._pool, self._queue, self._wake, self._failed = pool, queue, wake, failed
        self.threads = ThreadPoolExecutor(LOADERS, thread_name_prefix="workbench-loader")
        self._waiting: dict[Pair, tuple[Progress, list[tuple[Run, Request]]]] = {}
        self._closing = threading.Event()
        self._now: list[Progress] = []
        self._lock, self._clearing = threading.Lock(), threading.Lock()

    def progress(self, name: str) -> Progress:
        """What tells how far the load of a model is; it breaks the load off once this is closed."""
        return Progress(name, is_over=self._closing.is_set)

    @property
    def stage(self) -> str:
        """How far the load is that began last, "dequantising 40 %"; empty where none is under way."""
        now = self._now[:]
        return now[-1].short if now else ""

    def wait(self, pair: Pair) -> Models:
        """Load models now and wait for them.

        Raises:
            WorkbenchError: they cannot be loaded.
        """
        return self.threads.submit(self.load, pair, self.progress(pair[0])).result()

    def load(self, pair: Pair, progress: Progress) -> Models:
        """Models, in the thread of a loader.

        Raises:
            WorkbenchError: they cannot be loaded.
        """
        self._now.append(progress)
        try:
            return self._pool.load(pair, progress)
        except WorkbenchError as error:
            self._failed(error)
            raise
        except BaseException as error:  # whatever ends this thread leaves those who wait for it waiting
            log.exception("loading failed")
            self._failed(error)
            raise ModelError(
                f"{pair[0]} cannot be loaded ({type(error).__name__}).", "The backend's log says more."
            ) from error
        finally:
            self._now.remove(progress)

    def make_room(self, n_bytes: int) -> None:
        """Give up idle models in a loader's thread, unless that is going on."""
        if self._clearing.acquire(blocking=False):
            clearing = self.threads.submit(self._pool.make_room, n_bytes)
            clearing.add_done_callback(lambda _: (self._clearing.release(), self._wake()))

    def queue_once_loaded(self, run: Run, request: Request, pair: Pair) -> None:
        """All who need one pair wait for one load, and are queued in the order they came."""
        with self._lock:
            is_first = pair not in self._waiting
            progress, waiting = self._waiting.setdefault(pair, (self.progress(pair[0]), []))
            waiting.append((run, request))
            run.loads(progress)
        if is_first:
            self.threads.submit(self._load_then_queue, pair, progress)

    def _load_then_queue(self, pair: Pair, progress: Progress) -> None:
        """In a loader's thread."""
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
                    said = f"The run could not be started ({type(error).__name__})."
                    run.end(ERROR, error if isinstance(error, WorkbenchError) else WorkbenchError(said))

    def end(self) -> None:
        """Break off what is under way."""
        self._closing.set()

    def close(self) -> None:
        """Load no more; the process would wait for these threads."""
        self.threads.shutdown(wait=False, cancel_futures=True)
