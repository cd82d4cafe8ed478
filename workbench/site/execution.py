"""Notebooks executed into `dist/notebooks`, which git ignores: once, by the tests or by `workbench site`."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode
from traitlets import Type, default

from workbench.core.errors import WorkbenchError
from workbench.site import pairs

EXECUTED = pairs.ROOT / "dist" / "notebooks"
LIMIT_S = 300
"""Of one cell, and of a kernel's start. A whole lesson aims at 60 s on two cores."""


class _Channel(AsyncZMQSocketChannel):
    """A channel that looks by itself every second.

    Sending on a socket, as widgets do while a cell runs, can swallow the notice that a message arrived there
    (jupyter_client issue 436): the kernel has answered, and the reader waits until its time is up.
    """

    async def get_msg(self, timeout: float | None = None) -> dict[str, Any]:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while (left := end - time.monotonic()) > 1:
            with suppress(Empty):
                return await super().get_msg(1)
        return await super().get_msg(max(0.0, left))


class _Client(AsyncKernelClient):
    shell_channel_class = Type(_Channel)  # pyright: ignore[reportAssignmentType]
    iopub_channel_class = Type(_Channel)  # pyright: ignore[reportAssignmentType]


class _Manager(AsyncKernelManager):
    @default("client_factory")
    def _client_factory_default(self) -> type:
        return _Client


def environment() -> dict[str, str]:
    """What a lesson's kernel sees: this process's variables; where it has none: small sizes, one thread."""
    return {"OMP_NUM_THREADS": "1", "WORKBENCH_FAST": "1", "TOKENIZERS_PARALLELISM": "false"} | dict(os.environ)


def copy_to_execute(source: Path, into: Path = EXECUTED) -> Path:
    """A copy whose outputs may be written, so that the source stays stripped."""
    into.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(source, into / source.name))


def is_current(executed: Path, source: Path) -> bool:
    """Whether `executed` holds the outputs of what `source` says now, all of them, without an error."""
    if not executed.is_file():
        return False
    done, now = nbformat.read(executed, as_version=4), nbformat.read(source, as_version=4)
    return (
        [(cell.cell_type, cell.source) for cell in done.cells] == [(cell.cell_type, cell.source) for cell in now.cells]
        and all(cell.execution_count for cell in done.cells if cell.cell_type == "code" and cell.source)
        and not any(output.output_type == "error" for cell in done.cells for output in cell.get("outputs", []))
    )


def client(notebook: NotebookNode, **options: Any) -> NotebookClient:
    """What executes a notebook, patient with a starved machine."""
    defaults: dict[str, Any] = {"timeout": LIMIT_S, "startup_timeout": LIMIT_S}
    defaults["kernel_manager_class"] = _Manager
    defaults["extra_arguments"] = ["--IPKernelApp.log_level=ERROR"]  # it warns that it listens, if only to this machine
    return NotebookClient(notebook, **defaults | options)


def execute(path: Path) -> float:
    """Run a notebook top to bottom and write the outputs into it.

    Returns:
        Seconds, the kernel's start included.

    Raises:
        WorkbenchError: a cell failed; the message ends with its last line.
    """
    began = time.perf_counter()
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    try:
        client(notebook, resources={"metadata": {"path": str(path.parent)}}).execute(env=environment())
    except (CellExecutionError, CellTimeoutError) as error:
        last = str(error).strip().splitlines()[-1]
        raise WorkbenchError(f"{path.name}: {last}", f"Open it: the traceback is in {path}.") from error
    finally:
        nbformat.write(notebook, path)
    return time.perf_counter() - began


def bring_up_to_date(
    sources: Sequence[Path],
    into: Path = EXECUTED,
    again: bool = False,
    jobs: int = 2,
    say: Callable[[str], Any] = lambda line: None,
) -> list[Path]:
    """Execute what changed since it was executed last; some lessons side by side.

    Args:
        sources: notebooks without outputs.
        into: folder of the executed copies.
        jobs: how many lessons are executed side by side.
        again: execute all, whether they changed or not (the package may have).
        say: gets a line for each notebook that was executed.

    Returns:
        The executed notebooks, in the order of `sources`.

    Raises:
        WorkbenchError: a cell failed.
    """

    def one(source: Path) -> Path:
        target = into / source.name
        if again or not is_current(target, source):
            seconds = execute(copy_to_execute(source, into))
            say(f"{source.name}: {seconds:.0f} s")
        return target

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, sources))
