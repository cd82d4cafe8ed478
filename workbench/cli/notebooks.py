"""`workbench notebooks`: pairs in step, outputs stripped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.options import Debug
from workbench.core.errors import UnknownNameError, WorkbenchError


def notebooks(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these, as 02_rejection_sampling; all by default.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit code 1 if something is to do.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where they are; by default the repository's.")] = None,
    debug: Debug = False,
) -> None:
    """Bring the notebooks in order: in step with their .py, outputs stripped, the same first cell (for developers)."""
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
