"""`workbench docs`: the parts of the README that the program knows better."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.methods import markdown_table
from workbench.cli.options import Debug
from workbench.core.errors import WorkbenchError
from workbench.trace.metrics import DEFINITIONS


def docs(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit code 1 if something is stale.")] = False,
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="Put this report (written by `workbench bench --out FILE.md`) in; repeatable."),
    ] = None,
    readme: Annotated[Path, typer.Option(help="The file whose marked parts are generated.")] = Path("README.md"),
    debug: Debug = False,
) -> None:
    """Bring up to date what is generated from the registry: the README's tables, the catalogue (for developers)."""
    from workbench.methods import known

    catalogue = known.text()
    if catalogue != known.FILE.read_text(encoding="utf-8"):
        if check:
            raise WorkbenchError(f"{known.FILE.name} is stale: a method or parameter changed.", "Run `workbench docs`.")
        known.FILE.write_text(catalogue, encoding="utf-8")
    before = readme.read_text(encoding="utf-8")
    after = before
    for marker, text in generated().items():
        after = replace_part(after, marker, text)
    if bench:
        after = replace_part(
            after, "bench", "\n".join(report.read_text(encoding="utf-8").strip() + "\n" for report in bench)
        )
    if check and after != before:
        raise WorkbenchError(f"{readme} is stale.", "Run `workbench docs`.")
    if not check:
        readme.write_text(after, encoding="utf-8")


def generated() -> dict[str, str]:
    """Text of each generated part, by the name of its markers."""
    from workbench.bench import board, vision_suite
    from workbench.methods import known

    return {
        "methods": markdown_table(known.methods()),
        "definitions": definitions_table(),
        "vision": vision_suite.markdown(board.read(vision_suite.BOARD)).rstrip(),
    }


def definitions_table() -> str:
    """What every figure divides by what."""
    rows = [f"| `{name}` | {title} | {meaning} |" for name, (title, meaning) in DEFINITIONS.items()]
    return "\n".join(["| name | in words | definition |", "|---|---|---|", *rows])


def replace_part(text: str, marker: str, part: str) -> str:
    """`text` with what stands between the markers `<!-- marker -->` and `<!-- /marker -->` replaced.

    Raises:
        WorkbenchError: the markers are missing.
    """
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if begin not in text or end not in text:
        raise WorkbenchError(f"The file has no part {marker!r}.", f"Put {begin} and {end} where it belongs.")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{part}\n{end}{rest.split(end, 1)[1]}"
