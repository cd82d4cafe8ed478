"""`workbench notebooks`: pairs in step, outputs stripped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.options import Debug
from workbench.core.errors import WorkbenchError


def notebooks(
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
    if check:
        if found := [problem for name in pairs.names(where) for problem in pairs.problems(name, where)]:
            raise WorkbenchError(f"{'; '.join(found)}.", "Run `workbench notebooks`.")
        return
    for name in pairs.names(where):
        for path in pairs.tidy(name, where):
            print(path.name)
