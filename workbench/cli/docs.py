"""`workbench docs`: regenerate the parts of README and boards that are computed from code and measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.methods import markdown_table
from workbench.cli.options import Debug
from workbench.core.errors import WorkbenchError
from workbench.decoders.declarations import DRAFTERS
from workbench.models.masked_lm import MASKED_LM
from workbench.trace.files import write_atomically
from workbench.trace.metrics import DEFINITIONS

if TYPE_CHECKING:
    from workbench.methods.method_info import MethodInfo

SPEED = "speed.md"
"""File name of the board (table of measurements) with speed reports of `workbench bench`."""
KINDS = {
    "": "with nothing but the target",
    "drafter": "with a draft model",
    "head": "with trained heads",
    "pictures": "for targets that read images",
    MASKED_LM: "for masked-diffusion models",
    "simulation": "to study acceptance, not speed",
}
"""Phrases for the requirements that a method may have besides a target model, by requirement."""
DISCARDED = """Discarded draft tokens (after a rejection, or off the accepted path) were never tested. They do not count
against the drafter's acceptance rate, but they count in draft utilisation. Every metric is computed from the trace in
one module, `workbench/trace/metrics.py`."""


def docs(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if a generated part is out of date.")
    ] = False,
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="Add this report of `workbench bench --out FILE.md` to the speed board; repeatable."),
    ] = None,
    readme: Annotated[Path, typer.Option(help="File whose marked parts are generated.")] = Path("README.md"),
    boards: Annotated[Path, typer.Option(help="Folder of the results boards.")] = Path("assets/boards"),
    debug: Debug = False,
) -> None:
    """Regenerate parts of the README, the boards, the claim keys and the prompts (for developers)."""
    from workbench.bench import (
        answers_suite,
        board,
        claimsboard,
        headsboard,
        hostcosts,
        recorded_board,
        verifier_suite,
        workload_board,
    )  # import PyTorch
    from workbench.cli import claims
    from workbench.methods import method_info
    from workbench.training import claim_prompts, workload_prompts

    sources = [(claims, claims.text()), *((each, each.render_prompts()) for each in (claim_prompts, workload_prompts))]
    for source, content in sources:
        if not source.FILE.is_file() or content != source.FILE.read_text(encoding="utf-8"):
            if check:
                raise WorkbenchError(
                    f"{source.FILE.name} is out of date: the code it is generated from has changed.",
                    "Run `workbench docs`.",
                )
            write_atomically(source.FILE, content.encode())
    files = {
        readme: replace_part(readme.read_text(encoding="utf-8"), "methods", methods_by_need(method_info.methods()))
    }
    files |= {boards / name: text for name, text in pages(method_info.methods()).items()}
    files[boards / "claims.md"] = claimsboard.markdown(claimsboard.rows(board.read(claimsboard.BOARD, boards)))
    files[boards / "work.md"] = workload_board.markdown(
        workload_board.targets(board.read(workload_board.BOARD, boards))
    )
    if heads := board.read(headsboard.BOARD, boards):
        files[boards / "heads.md"] = headsboard.markdown(heads)
    files |= recorded_board.pages(boards)
    for suite in (answers_suite, verifier_suite):
        if (entry := boards / suite.BOARD).is_file():
            files[entry.with_suffix(".md")] = suite.page(json.loads(entry.read_text(encoding="utf-8")))
    if (host_board := boards / hostcosts.BOARD).is_file():
        entry = json.loads(host_board.read_text(encoding="utf-8"))
        files |= {
            host_board.with_suffix(".md"): hostcosts.page(entry),
            host_board.with_suffix(".svg"): hostcosts.plot(entry),
        }
    if bench:
        reports = "\n".join(report.read_text(encoding="utf-8").strip() + "\n" for report in bench)
        files[boards / SPEED] = replace_part((boards / SPEED).read_text(encoding="utf-8"), "bench", reports)
    for file, text in files.items():
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        if check:
            raise WorkbenchError(f"{file} is stale.", "Run `workbench docs`.")
        write_atomically(file, text.encode())


def pages(methods: Sequence[MethodInfo]) -> dict[str, str]:
    """Return the texts of the Markdown files in the folder of boards that are fully generated, by file name."""
    from workbench.methods.method_info import PROMISES

    return {
        "methods.md": f"# Methods\n\n{PROMISES}\n\n{markdown_table(methods)}\n\n{differences(methods)}\n",
        "definitions.md": f"# Definitions of the metrics\n\n{definitions_table()}\n\n{DISCARDED}\n",
    }


def differences(methods: Sequence[MethodInfo]) -> str:
    """Return a Markdown list of the differences between each method and its paper."""
    lines = ["## What differs from the papers"]
    for method in methods:
        if method.differs:
            lines += ["", f"### `{method.name}`", "", *(f"- {words}" for words in method.differs)]
    return "\n".join(lines)


def methods_by_need(methods: Sequence[MethodInfo]) -> str:
    """Return the names of the methods as Markdown, grouped by the models that they need besides the target."""
    names_by_kind: dict[str, list[str]] = {}
    for method in methods:
        names_by_kind.setdefault(_kind(method), []).append(f"`{method.name}`")
    return "\n".join(
        f"- {words}: {', '.join(names_by_kind[kind])}" for kind, words in KINDS.items() if kind in names_by_kind
    )


def _kind(method: MethodInfo) -> str:
    if method.promise == "simulation":
        return "simulation"
    if "pictures" in method.needs or "sight" in method.needs:
        return "pictures"
    if MASKED_LM in method.needs:
        return MASKED_LM
    return "drafter" if DRAFTERS & set(method.needs) else "head" if set(method.needs) - {"trees"} else ""


def definitions_table() -> str:
    """Return a Markdown table with the definitions of all measured quantities, such as the acceptance rate."""
    rows = [f"| `{name}` | {title} | {meaning} |" for name, (title, meaning) in DEFINITIONS.items()]
    return "\n".join(["| name | title | definition |", "|---|---|---|", *rows])


def replace_part(text: str, marker: str, part: str) -> str:
    """Replace the part of `text` between the markers `<!-- marker -->` and `<!-- /marker -->`.

    Raises:
        WorkbenchError: a marker is missing.
    """
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if begin not in text or end not in text:
        raise WorkbenchError(
            f"The file has no marked part {marker!r}.", f"Put the markers {begin} and {end} where the part belongs."
        )
    head, tail = text.split(begin, 1)
    return f"{head}{begin}\n{part}\n{end}{tail.split(end, 1)[1]}"
