"""`workbench methods`: what is registered, and what of it can run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from workbench.cli.loading import open_workbench
from workbench.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    Connect,
    Debug,
    Device,
    Drafter,
    Json,
    Target,
    only_here,
)


def methods(
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    device: Device = "cpu",
    connect: Connect = None,
    markdown: Annotated[bool, typer.Option(help="Print the table of the README; loads no model.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the methods: name, title, paper, promise, parameters, needs, and whether each can run on the target."""
    if markdown:
        from workbench.methods import registry

        print(markdown_table(list(registry.methods())))
        return
    only_here(connect, device=(device, "cpu"))
    with open_workbench(connect, target, drafter, device, "auto") as bench:
        bench.load(target, drafter)
        rows = [to_row(method) for method in bench.methods(target, drafter)]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        _print_table(rows, target)


def to_row(method: dict[str, Any]) -> dict[str, Any]:
    """A method as the command prints it: what the API says, with `parameters` written out."""
    return {name: value for name, value in method.items() if name != "params"} | {"parameters": method["params"]}


def markdown_table(found: list[Any]) -> str:
    """The README's table, generated from the registry."""
    lines = ["| method | promise | needs | parameters (defaults) | from |", "|---|---|---|---|---|"]
    for method in found:
        parameters = ", ".join(f"`{s.name}={s.default}`" for s in method.params.values()) or "–"
        source = method.source
        paper = f"{source.authors} {source.year}" if source.year else source.title
        paper = f"[{paper}]({_link(source.url)})" if source.url else paper
        needs = ", ".join(method.needs) or "–"
        lines.append(
            f"| `{method.name}`: {method.title}. {method.teaches} | {method.promise.value} | {needs} | {parameters} "
            f"| {paper} |"
        )
    return "\n".join(lines)


def _link(url: str) -> str:
    return f"https://arxiv.org/abs/{url.removeprefix('arXiv:')}" if url.startswith("arXiv:") else url


def _print_table(rows: list[dict[str, Any]], target: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Methods on {target}", title_justify="left", show_lines=True)
    for column in ("method", "promise", "parameters", "runs here"):
        table.add_column(column, overflow="fold")
    for row in rows:
        source = row["source"]
        paper = f"{source['authors']} {source['year']}" if source["year"] else source["title"]
        about = Text.assemble((row["name"], "bold"), f"\n{row['title']}\n", (paper, "dim"))
        parameters = "\n".join(_parameter(p) for p in row["parameters"]) or "none"
        table.add_row(about, row["promise"], Text(parameters), Text("yes" if row["available"] else row["reason"]))
    Console().print(table)


def _parameter(spec: dict[str, Any]) -> str:
    allowed = "|".join(spec["choices"]) if spec["choices"] else f"{spec['ge']}…{spec['le']}"
    allowed = "true|false" if spec["kind"] == "bool" else allowed
    return f"{spec['name']}={spec['default']} ({allowed}) {spec['doc']}"
