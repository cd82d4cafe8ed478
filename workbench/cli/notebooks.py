"""`workbench notebooks`: synchronise the notebooks with their .py files and strip their outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.options import Debug
from workbench.core.errors import UnknownNameError, WorkbenchError


def notebooks(
    names: Annotated[
        list[str] | None, typer.Argument(help="Notebooks, for example 02_rejection_sampling; by default all.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if something would change.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="Folder of the notebooks; by default the repository's.")] = None,
    debug: Debug = False,
) -> None:
    """Synchronise the notebooks with their .py files, strip outputs and renew the first cell (for developers)."""
    try:
        from workbench.site import pairs
    except ModuleNotFoundError as error:
        raise WorkbenchError(f"{error.name} is missing.", 'Install it: pip install -e ".[notebooks]".') from error

    where = folder or pairs.FOLDER
    chosen = [Path(name).stem for name in names or pairs.names(where)]
    if unknown := set(chosen) - set(pairs.names(where)):
        raise UnknownNameError.of("notebook", unknown.pop(), pairs.names(where))
    if check:
        if found := [problem for name in chosen for problem in pairs.problems(name, where)]:
            raise WorkbenchError(f"{'; '.join(found)}.", "Run `workbench notebooks`.")
        return
    for name in chosen:
        for path in pairs.tidy(name, where):
            print(path.name)
