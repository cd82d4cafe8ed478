"""Load models for a command: show a progress line, and silence the libraries' own output."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.cli import output
from workbench.cli.options import drafter_or_none
from workbench.models.converted_models import is_gguf
from workbench.models.model_index import MODEL_INDEX
from workbench.models.names import bundled_drafter, weight_bytes
from workbench.service.progress import Progress

if TYPE_CHECKING:
    from workbench.models.loading import Models


class LoadingProgress:
    """Progress line on standard error while models are being loaded: their names, their size and the elapsed time.

    On a terminal the line is updated in place and erased at the end. With -v every new stage is printed on a new line,
    and a last line gives the duration. Without a terminal, and with -q, nothing is printed.

    Args:
        what: text that describes the models that are being loaded, such as "text-target + text-drafter, 55.9 MB".
        now: function that returns the current stage of loading as text; it is called every 0.2 s. None or "": no stage
            is known.
    """

    def __init__(self, what: str, now: Callable[[], str | None] = lambda: None) -> None:
        self.what, self.now = what, now
        self._over = threading.Event()
        self._shown: str | None = None
        self._thread = threading.Thread(target=self._watch, name="workbench-waiting", daemon=True)

    def __enter__(self) -> LoadingProgress:
        self._began = time.monotonic()
        self._moves = output.can_overwrite(sys.stderr) and not output.is_quiet()
        self._verbose = output.is_verbose()  # read here, because a new thread does not inherit this context variable
        if self._moves or self._verbose:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._moves:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
        if kind is None:
            output.detail(f"loaded {self.what} in {time.monotonic() - self._began:.1f} s")

    def _watch(self) -> None:
        while True:
            stage = self.now() or ""
            line = f"loading {self.what}{': ' if stage else ''}{stage}"
            wipe = "\r\x1b[2K" if self._moves else ""
            if self._verbose and stage.partition(",")[0] != self._shown:
                self._shown = stage.partition(",")[0]
                print(f"{wipe}{line} …", file=sys.stderr, flush=True)
            elif self._moves:
                line = f"{line} · {time.monotonic() - self._began:.0f} s"
                print(f"{wipe}{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
            if self._over.wait(0.2):
                return


def describe_models(target: str, drafter: str | None) -> str:
    """Return names and file size of models as text, such as "text-target + text-drafter, 55.9 MB"."""
    drafter_name = bundled_drafter(target) if drafter == "auto" else drafter_or_none(drafter or "none")
    names = [target, *([drafter_name] if drafter_name else [])]
    n_bytes = sum(map(weight_bytes, names))
    return " + ".join(names) + (f", {n_bytes / 1e6:.1f} MB" if n_bytes else "")


def silence_transformers() -> None:
    """Turn off transformers' progress bars and warnings; errors are still shown."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def open_workbench(
    connect: str | None, target: str, drafter: str, device: str, dtype: str, api_key: str | None = None
) -> Any:
    """Return the backend of a command: a new one in this process, or with `--connect` the backend of an app.

    Args:
        connect: URL of the app; None: create a backend in this process.
        target: name of the target.
        drafter: name of the draft model.
        device: name of the device.
        dtype: number format of the target.
        api_key: API key of the app.
    """
    if connect is not None:
        return connect_to_app(connect, api_key)
    from workbench.client import Workbench

    with LoadingProgress("PyTorch"):
        silence_transformers()
        return Workbench(target=target, drafter=drafter, device=device, dtype=dtype)


def connect_to_app(url: str, api_key: str | None = None) -> Any:
    """Return the backend of a running app, and print warnings about the connection.

    Args:
        url: URL of the app, or the name of a Space.
        api_key: API key of the app; None: the key that `workbench.client.keys.key_for` chooses.
    """
    from workbench.client import Workbench

    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always", UserWarning)
        try:
            return Workbench(url, key=api_key)
        finally:
            for warning in caught_warnings:
                print(f"warning: {warning.message}", file=sys.stderr)


def loading_progress(bench: Any, target: str, drafter: str) -> LoadingProgress:
    """Return a progress line for a blocking call during which a backend in this process loads its models."""
    return LoadingProgress(describe_models(target, drafter), lambda: bench.health()["loading"])


def wait_for_models(run: Any, what: str) -> None:
    """Wait until the models of a run are loaded, and show a progress line. Errors are reported by the run.

    Args:
        run: run whose models are being loaded.
        what: names of the models, as from `describe_models`.
    """

    def stage() -> str | None:
        return run.since(0)["message"].partition(": ")[2] if run.state == "loading" else None

    with LoadingProgress(what, stage):
        while run.state == "loading":
            time.sleep(0.02)


def load(target: str, drafter: str, device: str, dtype: str = "auto", drafter_dtype: str = "auto") -> Models:
    """Load a target and a draft model with a progress line, after downloading or converting them if necessary."""
    progress, fetches = Progress(target), target in MODEL_INDEX or is_gguf(target)
    with LoadingProgress(
        describe_models(target, drafter), lambda: progress.text.partition(": ")[2] if fetches else None
    ):
        from workbench.engine import load_models

        silence_transformers()
        if fetches:
            from workbench.service import hub

            hub.fetch(target, progress, sys.maxsize)
        return load_models(target, drafter_or_none(drafter), device, dtype, drafter_dtype)
