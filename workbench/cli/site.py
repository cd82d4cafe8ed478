"""`workbench site`: build the static site with the executed notebooks, the methods and the API reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.options import Debug
from workbench.core.errors import WorkbenchError


def site(
    out: Annotated[Path, typer.Option(help="Folder for the site; its content is replaced.")] = Path("dist/site"),
    again: Annotated[bool, typer.Option(help="Execute all notebooks, not only the changed ones.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of notebooks executed in parallel.")] = 2,
    debug: Debug = False,
) -> None:
    """Build the static site: executed notebooks, methods from the registry, API reference (for developers)."""
    try:
        from workbench.site import build, execution, notebook_pairs
    except ModuleNotFoundError as error:
        raise WorkbenchError(
            f"The package {error.name} is missing.", 'Install the packages for the site: pip install -e ".[docs]".'
        ) from error

    sources = [notebook_pairs.FOLDER / f"{name}.ipynb" for name in notebook_pairs.names()]
    executed = execution.bring_up_to_date(
        sources, again=again, jobs=jobs, progress=lambda line: print(line, flush=True)
    )
    pages = build.build(executed, out.resolve(), notebook_pairs.ROOT / "dist" / "site-source")
    print(f"{len(pages)} pages: {out / 'index.html'}")
