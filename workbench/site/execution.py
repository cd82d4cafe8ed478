"""Execute notebooks into `dist/notebooks` (ignored by git), for the tests and for `workbench site`."""

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
from workbench.site import notebook_pairs

EXECUTED = notebook_pairs.ROOT / "dist" / "notebooks"
LIMIT_S = 300
"""Time limit in seconds for one notebook cell, and for starting a kernel.

A whole lesson should take 60 s on two CPU cores.
"""


class _Channel(AsyncZMQSocketChannel):
    """Message channel of a notebook's kernel that polls every second.

    Sending on a socket, as widgets do while a cell runs, can lose the event that a message has arrived on this socket
    (jupyter_client issue 436). The reader would then wait until its timeout, although the kernel has answered.
    """

    async def get_msg(self, timeout: float | None = None) -> dict[str, Any]:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while (remaining := end - time.monotonic()) > 1:
            with suppress(Empty):
                return await super().get_msg(1)
        return await super().get_msg(max(0.0, remaining))


class _Client(AsyncKernelClient):
    shell_channel_class = Type(_Channel)  # pyright: ignore[reportAssignmentType]
    iopub_channel_class = Type(_Channel)  # pyright: ignore[reportAssignmentType]


class _Manager(AsyncKernelManager):
    @default("client_factory")
    def _client_factory_default(self) -> type:
        return _Client


def environment() -> dict[str, str]:
    """Return the environment variables for a lesson's kernel: those of this process, with some defaults added.

    The defaults switch on the fast mode of the lessons, with fewer repetitions, and restrict the kernel to one thread.
    """
    return {"OMP_NUM_THREADS": "1", "WORKBENCH_FAST": "1", "TOKENIZERS_PARALLELISM": "false"} | dict(os.environ)


def copy_to_execute(source: Path, into: Path = EXECUTED) -> Path:
    """Copy a notebook to the folder of executed notebooks, and return the path of the copy.

    So the original stays without outputs.

    Args:
        source: notebook without outputs.
        into: folder of the executed copies.
    """
    into.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(source, into / source.name))


def is_current(executed: Path, source: Path) -> bool:
    """Return whether the notebook `executed` has the same cells as `source`, all of them executed without errors."""
    if not executed.is_file():
        return False
    executed_book, source_book = nbformat.read(executed, as_version=4), nbformat.read(source, as_version=4)
    return (
        [(cell.cell_type, cell.source) for cell in executed_book.cells]
        == [(cell.cell_type, cell.source) for cell in source_book.cells]
        and all(cell.execution_count for cell in executed_book.cells if cell.cell_type == "code" and cell.source)
        and not any(output.output_type == "error" for cell in executed_book.cells for output in cell.get("outputs", []))
    )


def client(notebook: NotebookNode, **options: Any) -> NotebookClient:
    """Return a client that executes a notebook, with time limits that suit a busy machine."""
    defaults: dict[str, Any] = {"timeout": LIMIT_S, "startup_timeout": LIMIT_S}
    defaults["kernel_manager_class"] = _Manager
    defaults["extra_arguments"] = ["--IPKernelApp.log_level=ERROR"]  # hides the warning about its local port
    return NotebookClient(notebook, **defaults | options)


def execute(path: Path) -> float:
    """Execute a notebook from top to bottom, and write the outputs into its file.

    Returns:
        Time in seconds that the execution took, including the start of the kernel.

    Raises:
        WorkbenchError: a cell failed; the message ends with the last line of its error.
    """
    start_s = time.perf_counter()
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    try:
        client(notebook, resources={"metadata": {"path": str(path.parent)}}).execute(env=environment())
    except (CellExecutionError, CellTimeoutError) as error:
        last = str(error).strip().splitlines()[-1]
        raise WorkbenchError(f"{path.name}: {last}", f"The file {path} contains the traceback.") from error
    finally:
        nbformat.write(notebook, path)
    return time.perf_counter() - start_s


def bring_up_to_date(
    sources: Sequence[Path],
    into: Path = EXECUTED,
    again: bool = False,
    jobs: int = 2,
    progress: Callable[[str], Any] = lambda line: None,
) -> list[Path]:
    """Execute the notebooks that have changed since their last execution, several in parallel.

    Args:
        sources: notebooks without outputs.
        into: folder of the executed copies.
        jobs: number of notebooks executed in parallel.
        again: whether to execute unchanged notebooks, too (the package may have changed).
        progress: function that is called with a line of text for each executed notebook.

    Returns:
        The executed notebooks, in the order of `sources`.

    Raises:
        WorkbenchError: a cell failed.
    """

    def one(source: Path) -> Path:
        target = into / source.name
        if again or not is_current(target, source):
            seconds = execute(copy_to_execute(source, into))
            progress(f"{source.name}: {seconds:.0f} s")
        return target

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, sources))
