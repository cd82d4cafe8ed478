"""pytest imports every file here, in each of its processes, to look for doctests: importing one must do nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)
FILES = [path for path in HERE.rglob("*.py") if path.name != "conftest.py" and not path.name.startswith("test_")]


def works(statement: ast.stmt) -> bool:
    """Whether a statement at the top of a file does more than define something, or look for what it needs."""
    match statement:
        case ast.If():
            return "__name__" not in ast.unparse(statement.test) and any(map(works, statement.body + statement.orelse))
        case ast.Expr(value=ast.Constant()):
            return False  # a docstring
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value))):
            return ast.unparse(value) != "sys.path"
        case _:
            return not isinstance(statement, DEFINITIONS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_a_script_beside_the_tests_does_nothing_when_it_is_imported(path: Path) -> None:
    """One that ran as it was imported had a Ray cluster started by each process of pytest, for a minute."""
    assert [ast.unparse(s) for s in ast.parse(path.read_text(encoding="utf-8")).body if works(s)] == []
