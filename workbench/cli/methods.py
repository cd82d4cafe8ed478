"""`workbench methods`: list the registered methods, and whether each can run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli import complete
from workbench.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    ApiKey,
    Connect,
    Debug,
    Drafter,
    Json,
    Target,
    check_key,
)
from workbench.cli.stream import harmless
from workbench.core.errors import UnknownNameError
from workbench.methods.method_info import describe_needs
from workbench.service.checks import check_models

if TYPE_CHECKING:
    from workbench.methods.method_info import MethodInfo


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Method to show with all its parameters, requirements and sources.", autocompletion=complete.methods
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    device: Annotated[str, typer.Option(hidden=True)] = "cpu",
    connect: Connect = None,
    api_key: ApiKey = None,
    markdown: Annotated[bool, typer.Option(help="Print the methods as a Markdown table.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the methods, and whether each can run on the target. No model is loaded.

    Examples: workbench methods; workbench methods medusa; workbench methods --json
    """
    from workbench.methods import method_info

    check_key(connect, api_key)
    if markdown:
        print(markdown_table(method_info.methods()))
        return
    if name is not None and connect is None:
        method_info.get(name)
    rows = [to_row(method) for method in describe_methods(target, drafter, connect, api_key)]
    if name is not None:
        rows = [row for row in rows if row["name"] == name]
        if not rows:
            raise UnknownNameError(
                f"{connect} has no method {name!r}.", "`workbench methods --connect URL` lists the server's methods."
            )
    if as_json:
        print(json.dumps(rows if name is None else rows[0], ensure_ascii=False, indent=2))
    elif name is not None:
        local_method = method_info.get(name) if connect is None else None
        _print_whole(rows[0], target, local_method)
    else:
        _print_lines(rows, target)


def describe_methods(
    target: str, drafter: str, connect: str | None, api_key: str | None = None
) -> list[dict[str, Any]]:
    """Return the descriptions of all methods in the API's format, from local files or from the server at `connect`."""
    if connect is not None:
        from workbench.cli.loading import connect_to_app

        with connect_to_app(connect, api_key) as bench:
            bench.load(target, drafter)
            return bench.methods(target, drafter)
    from workbench.methods import method_info
    from workbench.service.choices import describe, static_reasons

    pair = check_models(target, drafter, "auto", "auto")
    reason = static_reasons(*pair)
    return [describe(m, reason(m.needs)) for m in method_info.methods()]


def to_row(method: dict[str, Any]) -> dict[str, Any]:
    """Return a method's description in the API's format with the key `params` renamed to `parameters`."""
    return {name: value for name, value in method.items() if name != "params"} | {"parameters": method["params"]}


def markdown_table(known_methods: Sequence[Any]) -> str:
    """Return a Markdown table of decoding methods with their parameters and papers."""
    lines = ["| method | promise | needs | parameters (defaults) | from |", "|---|---|---|---|---|"]
    for method in known_methods:
        parameters = ", ".join(f"`{s.name}={s.default}`" for s in method.params.values()) or "–"
        paper = _paper(method.source)
        paper = f"[{paper}]({_link(method.source['url'])})" if method.source["url"] else paper
        needs = ", ".join(method.needs) or "–"
        lines.append(
            f"| `{method.name}`: {method.title}. {method.teaches} | {method.promise} | {needs} | {parameters} "
            f"| {paper} |"
        )
    return "\n".join(lines)


def _link(url: str) -> str:
    return f"https://arxiv.org/abs/{url.removeprefix('arXiv:')}" if url.startswith("arXiv:") else url


def _paper(source: dict[str, Any]) -> str:
    return f"{source['authors']} {source['year']}" if source["year"] else source["title"]


def _print_lines(rows: list[dict[str, Any]], target: str) -> None:
    """Print a line per method: a sign, name, guarantee, and its title or the reason why it cannot run."""
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        sign, words = ("✓", row["title"]) if row["available"] else ("–", row["reason"])
        print(f"{sign} {row['name']:<{width}}  {row['promise']:<12}  {harmless(words)}")
    runs = sum(row["available"] for row in rows)
    print(
        f"\n{runs} of {len(rows)} methods can run on {target}. `workbench methods NAME` shows all facts about a method."
    )


def _print_whole(row: dict[str, Any], target: str, local_method: MethodInfo | None) -> None:
    """Print the full description of a method: idea, verifier, guarantee, paper, requirements, parameters."""
    source = row["source"]
    paper = ", ".join(filter(None, (source["title"], _paper(source), source["where"])))
    facts = {
        "idea": local_method.idea if local_method else "",
        "rule": local_method.formula if local_method else "",
        "promise": row["promise"],
        "from": paper,
        "at": _link(source["url"]),
        "needs": describe_needs(row["needs"]),
        "here": f"runs on {target}" if row["available"] else row["reason"],
    }
    print(f"{row['name']}: {row['title']}\n{row['teaches']}\n")
    for fact, words in facts.items():
        if words:
            print(f"{fact:<8} {words}")
    if local_method and local_method.differs:
        print("\ndiffers from the paper")
        for words in local_method.differs:
            print(f"  · {words}")
    print("\nparameters (--set NAME=VALUE)" if row["parameters"] else "\nno parameters")
    for spec in row["parameters"]:
        print(f"  {_parameter(spec)}")


def _parameter(spec: dict[str, Any]) -> str:
    allowed = "|".join(spec["choices"]) if spec["choices"] else f"{spec['ge']}…{spec['le']}"
    allowed = "true|false" if spec["kind"] == "bool" else allowed
    condition = f" (where {spec['when']})" if spec.get("when") else ""
    return f"{spec['name']}={spec['default']} ({allowed}) {spec['doc']}{condition}"
