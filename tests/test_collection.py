"""Collection of the tests: which ones are collected, in which order files are distributed, and type checks in them.

Importing a test file, as pytest does, must have no side effects.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import file_order
import jaxtyping
import pytest
import torch
import typechecker
from jaxtyping import TypeCheckError

from workbench.core.sampling import SamplingParams, to_probs

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


def has_side_effects(statement: ast.stmt) -> bool:
    """Return whether a statement at the top of a file does more than define names or find dependencies."""
    match statement:
        case ast.If():
            return "__name__" not in ast.unparse(statement.test) and any(
                map(has_side_effects, statement.body + statement.orelse)
            )
        case ast.Expr(value=ast.Constant()):
            return False  # a docstring
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value))):
            return ast.unparse(value) != "sys.path"
        case _:
            return not isinstance(statement, DEFINITIONS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_importing_a_script_beside_the_tests_has_no_side_effects(path: Path) -> None:
    """Importing one of them used to start a Ray cluster in each process of pytest, for a minute."""
    assert [ast.unparse(s) for s in ast.parse(path.read_text(encoding="utf-8")).body if has_side_effects(s)] == []


UNCHECKED = ("slow", "unchecked")
TESTS = """
def test_on_a_device(device):
    assert device == DEVICE
def test_of_words(): pass
"""


@pytest.mark.parametrize(
    ("options", "device", "ran"),
    [
        ([], "cpu", {"test_on_a_device": "passed", "test_of_words": "passed"}),
        (["-m", "gpu"], "cuda", {"test_on_a_device": "passed" if torch.cuda.is_available() else "skipped"}),
        (["-m", "not (hub or gpu)"], "cpu", {"test_on_a_device": "passed", "test_of_words": "passed"}),
        (["--device", "cuda"], "cuda", {"test_on_a_device": "passed", "test_of_words": "passed"}),
    ],
    ids=["by default", "the mark", "all but the mark", "a device"],
)
def test_gpu_run_selects_all_tests_that_take_a_device(
    options: list[str], device: str, ran: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found: dict[str, str] = {}

    class Outcomes:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or report.skipped:
                found[report.location[2]] = report.outcome

    (tmp_path / f"test_{tmp_path.name}.py").write_text(f"DEVICE = {device!r}\n{TESTS}", encoding="utf-8")
    ini = '[pytest]\naddopts = --import-mode=importlib -m "not gpu"\nmarkers = gpu\n'
    (tmp_path / "pytest.ini").write_text(ini, encoding="utf-8")
    ours = request.config.pluginmanager.get_plugin(str(HERE / "conftest.py"))
    assert ours is not None
    # settings of the process, not of a session, stay with the outer session
    quiet = [f"-pno:{name}" for name in ("benchmark", "cacheprovider", "faulthandler", "terminal", "timeout", "xdist")]
    pytest.main([*quiet, "--capture=no", *options, str(tmp_path)], plugins=[ours, Outcomes()])
    assert found == ran


def test_long_files_come_first_and_waiting_ones_are_mixed_in(
    pytestconfig: pytest.Config,
) -> None:
    files = {"quick": (1.0, False), "long": (30.0, False), "lesson": (20.0, True), "page": (40.0, True),
             "short": (2.0, False)}  # fmt: skip
    assert file_order.order_files(files) == ["page", "long", "lesson", "short", "quick"]
    assert not pytestconfig.getoption("loadscopereorder"), "xdist would order them by their number of tests"


def test_files_of_this_run_are_in_that_order(request: pytest.FixtureRequest) -> None:
    again = list(request.session.items)
    file_order.sort_tests(again)
    assert again == request.session.items


@pytest.mark.parametrize("checked", [True, *(pytest.param(False, marks=getattr(pytest.mark, m)) for m in UNCHECKED)])
def test_shapes_are_checked_except_in_tests_with_thousands_of_calls(checked: bool) -> None:
    nothing: Any = None
    with pytest.raises((TypeError, AttributeError)) as refused:
        to_probs(nothing, SamplingParams(temperature=1.0))
    assert isinstance(refused.value, TypeCheckError) is checked


def same(x: int) -> int:
    return x


def raises_type_check_error(function: Callable[[Any], Any]) -> bool:
    try:
        return function("word") != "word"
    except TypeCheckError:
        return True


def test_first_calls_in_a_test_are_checked_and_then_every_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", False)
    checked = jaxtyping.jaxtyped(typechecker=typechecker.beartype)(same)  # as decorated by the import hook
    wanted = [*range(1, typechecker.FIRST_CALLS + 1), typechecker.CHECK_EVERY, 2 * typechecker.CHECK_EVERY]
    for _ in range(2):
        typechecker.reset_call_counts()
        assert [i for i in range(1, 2 * typechecker.CHECK_EVERY + 1) if raises_type_check_error(checked)] == wanted


def test_nested_function_is_checked_at_its_first_definition_and_every_hundredth_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiling its checker each time takes longer than most of these functions run."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", False)

    def defined() -> Callable[[Any], Any]:
        @jaxtyping.jaxtyped(typechecker=typechecker.beartype)
        def inner(x: int) -> int:
            return x

        return inner

    wanted = [*range(1, typechecker.FIRST_CALLS + 1), typechecker.CHECK_EVERY, 2 * typechecker.CHECK_EVERY]
    assert [i for i in range(1, 2 * typechecker.CHECK_EVERY + 1) if raises_type_check_error(defined())] == wanted
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    assert not any(raises_type_check_error(defined()) for _ in range(typechecker.CHECK_EVERY))


def test_fields_of_a_dataclass_are_checked() -> None:
    word: Any = "word"
    typechecker.reset_call_counts()
    with pytest.raises(TypeCheckError):
        SamplingParams(temperature=word)
