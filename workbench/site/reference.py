"""Generate the web site's API reference: one page per module, from its docstrings, without importing it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from workbench.site.notebook_pairs import ROOT

PACKAGES = (
    "client",
    "widgets",
    "core",
    "trace",
    "kernels",
    "models",
    "engine",
    "decoders",
    "methods",
    "bench",
    "interop",
    "views",
)
"""Subpackages of `workbench` in the API reference, from the highest layer to the lowest."""
WITH_SOURCE = ("core", "methods")
"""Subpackages whose pages in the API reference include the source code."""
ADDING, HEADS = "reference/adding.md", "reference/heads.md"
"""Markdown files of two pages of the API reference: "Adding a drafter, a verifier, …" and "Third-party heads"."""


def pages() -> dict[str, str]:
    """Return the Markdown of the API reference's pages by path; mkdocstrings replaces lines that begin with `:::`."""
    module_pages = {}
    lines = [
        "# API reference",
        "",
        "Generated from the docstrings. Packages form layers, and each imports only from lower layers. Programs "
        "and notebooks use the top layers, `client` and `widgets`; the lowest layer, `core`, contains pure "
        "functions on tensors.",
        "",
    ]
    for package in PACKAGES:
        lines += [f"## workbench.{package}", "", _summary(_modules(package)[0]), ""]
        options = "    options:\n      show_source: true\n" if package in WITH_SOURCE else ""
        for path in _modules(package):
            name = _name(path)
            if path.name != "__init__.py":
                lines.append(f"- [`{name.removeprefix(f'workbench.{package}.')}`]({name}.md): {_summary(path)}")
            module_pages[f"reference/{name}.md"] = f"# {name}\n\n::: {name}\n{options}"
        lines.append("")
    lines += ["[Adding a drafter, a verifier, a tree builder, a policy, a head](adding.md)", ""]
    lines += ["[Third-party heads](heads.md)", ""]
    extra_pages = {page: (ROOT / ".site" / Path(page).name).read_text("utf-8") for page in (ADDING, HEADS)}
    return {"reference/index.md": "\n".join(lines), **extra_pages} | module_pages


def navigation() -> list[Any]:
    """Return the entries of the web site's navigation for the API reference, with one section per package."""
    sections: list[Any] = ["reference/index.md", {"Adding a part": ADDING}, {"Third-party heads": HEADS}]
    for package in PACKAGES:
        names = [_name(path) for path in _modules(package)]
        short = [name.removeprefix(f"workbench.{package}.") for name in names]
        entries: list[Any] = [f"reference/{names[0]}.md"]
        entries += [{s: f"reference/{name}.md"} for s, name in zip(short[1:], names[1:], strict=True)]
        sections.append({f"workbench.{package}": entries})
    return sections


def _modules(package: str) -> list[Path]:
    """Return the files of a package: its `__init__.py`, then its public modules by name."""
    folder = ROOT / "workbench" / package
    public = (path for path in folder.rglob("*.py") if not path.name.startswith("_"))
    inner = (path for path in folder.rglob("__init__.py") if path.parent != folder)
    return [folder / "__init__.py", *sorted([*public, *inner], key=_name)]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _summary(path: Path) -> str:
    """Return the first line of the docstring of a module."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
