"""`workbench lab`: open the notebooks in JupyterLab."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.options import Debug
from workbench.core.errors import UnknownNameError, WorkbenchError

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
INSTALL = 'pip install "speculative-decoding-workbench[notebooks]"'
QUIET = ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.extension_manager=readonly"]
"""Options that turn off JupyterLab's checks for updates and extensions, which would use the network."""


def lab(
    notebook: Annotated[
        str, typer.Argument(help="Notebook to open, by number or name: 02 or 02_rejection_sampling.")
    ] = "",
    folder: Annotated[Path, typer.Option(help="Folder of the notebooks, if not the repository's.")] = NOTEBOOKS,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8888,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    debug: Debug = False,
) -> None:
    """Open the notebooks in JupyterLab. It listens only on this machine, requires a token, and stays offline."""
    if find_spec("jupyterlab") is None:
        raise WorkbenchError("JupyterLab is not installed.", f"Install JupyterLab: {INSTALL}")
    status = subprocess.call(command(folder, notebook, port, browser))
    if status:
        raise WorkbenchError(f"JupyterLab ended with status {status}.", "See JupyterLab's messages above.")


def command(folder: Path, notebook: str, port: int, browser: bool) -> list[str]:
    """Return the command line that starts JupyterLab's server.

    Raises:
        WorkbenchError: the folder has no notebooks, or no notebook with the given name.
    """
    root = folder.expanduser().resolve()
    names = sorted(path.stem for path in root.glob("*.ipynb"))
    if not names:
        raise WorkbenchError(f"There are no notebooks in {root}.", "Give --folder, or clone the repository.")
    page = f"/lab/tree/{_named(notebook, names)}.ipynb" if notebook else "/lab"
    options = [f"--ServerApp.root_dir={root}", f"--ServerApp.port={port}", f"--LabApp.default_url={page}"]
    root_user = hasattr(os, "geteuid") and os.geteuid() == 0  # as in a container; it listens on this machine only
    options += ["--allow-root"] if root_user else []
    return [sys.executable, "-m", "jupyterlab", *options, *QUIET, *([] if browser else ["--no-browser"])]


def _named(wanted: str, names: list[str]) -> str:
    stem = wanted.removesuffix(".ipynb").removesuffix(".py")
    matches = [name for name in names if name == stem] or [name for name in names if name.startswith(f"{stem}_")]
    if len(matches) != 1:
        raise UnknownNameError.of("notebook", wanted, names)
    return matches[0]
