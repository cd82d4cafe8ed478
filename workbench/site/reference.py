"""The reference's pages of the site: one for each module, filled from its docstrings without importing it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from workbench.site.pairs import ROOT

PACKAGES = ("client", "widgets", "core", "trace", "engine", "methods", "bench", "interop", "views")
"""The parts of `workbench` that programs and notebooks use, from the face inwards."""
WITH_SOURCE = ("core", "methods")
"""Those whose code is there to be read beside its description."""
ADDING, HEADS = "reference/adding.md", "reference/heads.md"
"""The pages that show how a part is added, and how heads that others trained are used."""


def pages() -> dict[str, str]:
    """Markdown of each page by its path; mkdocstrings replaces the line that begins with `:::`."""
    found = {}
    lines = [
        "# API reference",
        "",
        "Made from the docstrings. Imports go downward: `client` and `widgets` are what programs and notebooks use, "
        "`core` are pure functions on tensors.",
        "",
    ]
    for package in PACKAGES:
        lines += [f"## workbench.{package}", "", _says(_modules(package)[0]), ""]
        options = "    options:\n      show_source: true\n" if package in WITH_SOURCE else ""
        for path in _modules(package):
            name = _name(path)
            if path.name != "__init__.py":
                lines.append(f"- [`{name.removeprefix(f'workbench.{package}.')}`]({name}.md): {_says(path)}")
            found[f"reference/{name}.md"] = f"# {name}\n\n::: {name}\n{options}"
        lines.append("")
    lines += ["[Adding a drafter, a verifier, a grower, a policy, a head](adding.md)", ""]
    lines += ["[Heads that others trained](heads.md)", ""]
    written = {page: (ROOT / ".site" / Path(page).name).read_text("utf-8") for page in (ADDING, HEADS)}
    return {"reference/index.md": "\n".join(lines), **written} | found


def navigation() -> list[Any]:
    """The part of the site's navigation that holds these pages: a section for each package."""
    sections: list[Any] = ["reference/index.md", {"Adding a part": ADDING}, {"Heads of others": HEADS}]
    for package in PACKAGES:
        names = [_name(path) for path in _modules(package)]
        short = [name.removeprefix(f"workbench.{package}.") for name in names]
        entries: list[Any] = [f"reference/{names[0]}.md"]
        entries += [{s: f"reference/{name}.md"} for s, name in zip(short[1:], names[1:], strict=True)]
        sections.append({f"workbench.{package}": entries})
    return sections


def _modules(package: str) -> list[Path]:
    """The package's `__init__.py`, then its public modules by name."""
    folder = ROOT / "workbench" / package
    public = (path for path in folder.rglob("*.py") if not path.name.startswith("_"))
    inner = (path for path in folder.rglob("__init__.py") if path.parent != folder)
    return [folder / "__init__.py", *sorted([*public, *inner], key=_name)]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _says(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
