"""Downloads from the Hugging Face Hub that end when nobody wants them any more: at Ctrl-C, or when told so.

The Hub's library fetches files in threads of its own and waits for all of them, whatever happens. What a progress bar
raises there ends a file's download, unless Xet's threads fetch it: so files come over HTTP.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from huggingface_hub import constants, snapshot_download
from tqdm import tqdm

FILES: dict[str, Any] = {
    "allow_patterns": ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"],
    "ignore_patterns": ["*/*", "consolidated*"],  # other layouts of the same weights
}
"""Files of a Hub model that are needed. Pickles and code are never fetched."""


def fetched(hub_id: str, told: Callable[[int], None] | None = None, **options: Any) -> str:
    """The folder of a model's files, once all are there.

    Args:
        hub_id: of the model.
        told: bytes that have come; what it raises ends the download. None: a bar in the terminal tells of them.
        **options: for `snapshot_download`.

    Raises:
        KeyboardInterrupt: at Ctrl-C, at once; the threads that download end with the next bytes.
        Exception: what `told` raises, and the Hub's library.
    """
    over = threading.Event()
    folder: Future[str] = Future()

    def fetch() -> None:
        try:
            with _over_http():
                found = snapshot_download(hub_id, tqdm_class=_bar(told, over), **FILES, **options)
        except BaseException as error:
            folder.set_exception(error)
        else:
            folder.set_result(found)

    threading.Thread(target=fetch, name="workbench-download", daemon=True).start()
    try:
        return folder.result()
    finally:
        over.set()


_LOCK = threading.Lock()
_users = 0
_before = False


@contextmanager
def _over_http() -> Iterator[None]:
    """Xet is not asked while this lasts.

    It is what HF_HUB_DISABLE_XET=1 does, which the Hub's library reads once, when it is imported. The last of several
    downloads at once gives back what was said before.
    """
    global _users, _before
    with _LOCK:
        if not _users:
            _before = constants.HF_HUB_DISABLE_XET
        _users += 1
        constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            if not _users:
                constants.HF_HUB_DISABLE_XET = _before


def _bar(told: Callable[[int], None] | None, over: threading.Event) -> Any:
    """A progress bar for the Hub's library that ends a download which is over."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"  # others count files
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": None if told is None else True})  # None: on a terminal

        def update(self, n: float | None = 1) -> None:
            if over.is_set():
                raise InterruptedError("The download was interrupted.")
            if not self.disable:
                super().update(n)
                return
            self.n += n or 0
            if self.counts_bytes and told is not None:
                told(int(self.n))

    return Bar
