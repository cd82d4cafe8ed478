"""The files of the package, seen from above: no two of them need each other, be it for a type or inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "workbench"
FACADES = {"workbench"}
"""`from workbench import Workbench`, resolved when it is asked for; the import contract leaves it out too."""


def modules(package: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules."""
    names = {path: ".".join(path.relative_to(package.parent).with_suffix("").parts) for path in package.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Names that a file imports anywhere: at its top, under `TYPE_CHECKING`, in functions. From a module or of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def graph(package: Path) -> dict[str, set[str]]:
    """For each module those of the package that it imports from; an import of a package is one of its `__init__`."""
    files = modules(package)
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        home = name if path.name == "__init__.py" else name.rpartition(".")[0]
        wanted = imported(ast.parse(path.read_text(encoding="utf-8")), home)
        found[name] = {w if w in files else w.rpartition(".")[0] for w in wanted} & files.keys() - {name, *FACADES}
    return {name: found[name] for name in found.keys() - FACADES}


LONGEST = 300
"""Lines of a file that still reads as one idea."""


def too_long(folder: Path) -> dict[str, int]:
    """Files of a folder, by name, that have more lines than that."""
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py")}
    return {name: n for name, n in lines.items() if n > LONGEST}


def circle(package: Path) -> list[str]:
    """Modules that import each other in a ring, the first one again at the end; empty where none do."""
    try:
        TopologicalSorter(graph(package)).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(PACKAGE) == []


def test_no_file_of_the_engine_holds_a_second_idea(tmp_path: Path) -> None:
    """Split on what it is about; see how `runner.py`, `segment.py` and `geometry.py` stand beside each other."""
    assert too_long(PACKAGE / "engine") == {}
    (tmp_path / "long.py").write_text("pass\n" * (LONGEST + 1))
    (tmp_path / "short.py").write_text("pass\n" * LONGEST)
    assert too_long(tmp_path) == {"long.py": LONGEST + 1}


@pytest.mark.parametrize(
    "back",
    [
        "from house.a import A",
        "from .a import A",
        "import house.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.a import A",
        "def late():\n    from house import a",
    ],
)
def test_a_circle_is_seen_however_it_is_tied(tmp_path: Path, back: str) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").write_text("")
    (house / "a.py").write_text("from house.b import B\n")
    (house / "b.py").write_text("import os\n")
    assert circle(house) == []
    (house / "b.py").write_text(back)
    assert set(circle(house)) == {"house.a", "house.b"}
