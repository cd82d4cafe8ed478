"""Proxy for a `Client` that is still being created, so that pages can be served while PyTorch is imported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from workbench.client import Client


class LazyClient:
    """Proxy for a `Client` that `make` creates; calls wait until it exists.

    If creating the client failed, calls raise that error.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._failed: BaseException | None = None
        self._done = threading.Event()

    def make(self, factory: Callable[[], Any]) -> None:
        """Create the client by calling `factory` in this thread, then release waiting calls.

        Exceptions of `factory` are raised.
        """
        try:
            self._client = factory()
        except BaseException as problem:  # waiting calls raise the same error, of any kind
            self._failed = problem
            raise
        finally:
            self._done.set()

    @property
    def client(self) -> Client:
        """Return this proxy with the type of the client for which it stands."""
        return cast(Client, self)

    @property
    def ready(self) -> bool:
        """Return whether the client has been created, or its creation has failed. Never waits."""
        return self._done.is_set()

    def __getattr__(self, name: str) -> Any:
        self._done.wait()
        if self._failed is not None:
            raise RuntimeError(f"The backend could not be started: {self._failed}") from self._failed
        return getattr(self._client, name)
