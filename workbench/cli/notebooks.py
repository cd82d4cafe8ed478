"""`workbench notebooks`: synchronise the notebooks with their .py files and strip their outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.options import Debug
from workbench.core.errors import UnknownNameError, WorkbenchError


def notebooks(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Notebooks to generate, for example 02_rejection_sampling; by default all."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if a notebook is out of date.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="Folder of the notebooks; by default the repository's.")] = None,
    debug: Debug = False,
) -> None:
    """Synchronise notebooks with their .py files, strip outputs and rewrite the first cell (for developers)."""
    try:
        from workbench.site import notebook_pairs
    except ModuleNotFoundError as error:
        raise WorkbenchError(
            f"The package {error.name} is missing.",
            'Install the packages for notebooks: pip install -e ".[notebooks]".',
        ) from error

    target_folder = folder or notebook_pairs.FOLDER
    chosen = [Path(name).stem for name in names or notebook_pairs.names(target_folder)]
    if unknown := set(chosen) - set(notebook_pairs.names(target_folder)):
        raise UnknownNameError.of("notebook", unknown.pop(), notebook_pairs.names(target_folder))
    if check:
        if messages := [problem for name in chosen for problem in notebook_pairs.problems(name, target_folder)]:
            raise WorkbenchError(f"{'; '.join(messages)}.", "Run `workbench notebooks`.")
        return
    for name in chosen:
        for path in notebook_pairs.synchronise(name, target_folder):
            print(path.name)
