"""A client that is still being made: the page can be served while PyTorch is imported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from workbench.client import Client


class Later:
    """Stands in for a client until `make` has run; whoever uses it before waits. If making fails, users see why."""

    def __init__(self) -> None:
        self._made: Any = None
        self._failed: BaseException | None = None
        self._done = threading.Event()

    def make(self, factory: Callable[[], Any]) -> None:
        """Run `factory` in this thread and let those who wait go on. Raises what it raises."""
        try:
            self._made = factory()
        except BaseException as problem:  # those who wait for it must hear of it, whatever it was
            self._failed = problem
            raise
        finally:
            self._done.set()

    @property
    def client(self) -> Client:
        """This, as what it stands for."""
        return cast(Client, self)

    @property
    def ready(self) -> bool:
        """Whether the client has been made, or making it has failed. Never waits."""
        return self._done.is_set()

    def __getattr__(self, name: str) -> Any:
        self._done.wait()
        if self._failed is not None:
            raise RuntimeError(f"The backend could not be started: {self._failed}") from self._failed
        return getattr(self._made, name)
