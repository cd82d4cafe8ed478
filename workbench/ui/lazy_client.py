"""Proxy for a client that is still being created: the page can be served while PyTorch is imported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from workbench.client import Client


class LazyClient:
    """Proxy for a client that `make` creates; calls wait until it exists.

    If creating the client failed, calls raise that error.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._failed: BaseException | None = None
        self._done = threading.Event()

    def make(self, factory: Callable[[], Any]) -> None:
        """Run `factory` in this thread, then release waiting calls. Raises the exceptions of `factory`."""
        try:
            self._client = factory()
        except BaseException as problem:  # waiting calls raise the same error, of any kind
            self._failed = problem
            raise
        finally:
            self._done.set()

    @property
    def client(self) -> Client:
        """Return this proxy, typed as the client that it represents."""
        return cast(Client, self)

    @property
    def ready(self) -> bool:
        """Return whether the client has been created, or creating it has failed. Never waits."""
        return self._done.is_set()

    def __getattr__(self, name: str) -> Any:
        self._done.wait()
        if self._failed is not None:
            raise RuntimeError(f"The backend could not be started: {self._failed}") from self._failed
        return getattr(self._client, name)
