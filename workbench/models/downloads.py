"""Download from the Hugging Face Hub so that Ctrl-C or an exception in the progress callback ends the download.

The Hub's library downloads in its own threads and waits for all of them, even on errors. An exception in a progress bar
ends the download of a file, but not if the Hub's transfer protocol Xet is used, which has its own threads. So files are
downloaded over HTTP.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

from huggingface_hub import constants, snapshot_download
from tqdm import tqdm

FILES: dict[str, Any] = {
    "allow_patterns": ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"],
    "ignore_patterns": ["*/*", "consolidated*"],  # other layouts of the same weights
}
"""Name patterns of the files of a Hub model that are downloaded. Pickles and code are never downloaded."""


WAIT_S = 0.2
"""Interval in seconds at which a waiting download checks for Ctrl-C."""


def download_files(hub_id: str, on_progress: Callable[[int], None] | None = None, **options: Any) -> str:
    """Download a model's files from the Hugging Face Hub, and return their folder.

    Args:
        hub_id: Hub id of the model.
        on_progress: progress callback, called with the downloaded bytes; an exception in it ends the download. None:
            show a bar in the terminal.
        **options: further arguments of `snapshot_download`.

    Raises:
        KeyboardInterrupt: at Ctrl-C, at once; the download threads stop when their next bytes arrive.
        Exception: errors of `on_progress` and of the Hub's library.
    """
    stop_event = threading.Event()
    folder: Future[str] = Future()

    def fetch() -> None:
        try:
            with _over_http():
                path = snapshot_download(hub_id, tqdm_class=_bar(on_progress, stop_event), **FILES, **options)
        except BaseException as error:
            folder.set_exception(error)
        else:
            folder.set_result(path)

    threading.Thread(target=fetch, name="workbench-download", daemon=True).start()
    try:
        # Waits in short steps: a signal with SA_RESTART (which asyncio's add_signal_handler sets) does not interrupt a
        # wait without a limit.
        while not wait([folder], WAIT_S).done:
            pass
        return folder.result()
    finally:
        stop_event.set()


_LOCK = threading.Lock()
_users = 0
_before = False


@contextmanager
def _over_http() -> Iterator[None]:
    """Download over plain HTTP within this context: disable Xet, the Hub's own transfer protocol.

    The effect is that of HF_HUB_DISABLE_XET=1, which the Hub's library reads only at import. When several downloads run
    at once, the last one restores the previous setting.
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


def _bar(on_progress: Callable[[int], None] | None, over: threading.Event) -> Any:
    """Return a progress bar class for the Hub's library that calls `on_progress` with the downloaded bytes.

    Once the event `over` is set, the next update of a bar raises an error, which ends the download.
    """

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"  # other bars count files
            kwargs.pop("name", None)
            is_disabled = None if on_progress is None else True  # None: show the bar if there is a terminal
            super().__init__(*args, **{**kwargs, "disable": is_disabled})

        def update(self, n: float | None = 1) -> None:
            if over.is_set():
                raise InterruptedError("The download was interrupted.")
            if not self.disable:
                super().update(n)
                return
            self.n += n or 0
            if self.counts_bytes and on_progress is not None:
                on_progress(int(self.n))

    return Bar
