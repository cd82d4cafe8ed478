"""`python tests/mutate.py`: the list applies, operators make their stated changes, and trials report test results."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import mutate
import pytest
from mutation_operators import (
    Argument,
    BinOp,
    BoolOp,
    Bypass,
    Callee,
    Change,
    Compare,
    Constant,
    DropStatement,
    DropUnary,
    Force,
    Function,
    MutationError,
    Negate,
    Return,
    SwapOperands,
    all_changes,
)
from mutations import MUTATIONS, ROOT, Mutation

TOY = '''"""A module."""
import math
LIMIT = 3

class Box:
    def fits(self, size: "float", others: "list[float]" = [1, 2]) -> "bool":
        """Return whether 0 < size - 1."""
        total = 0.5
        for other in sorted(others):  # a comment about ä < b
            if not other:
                continue
            total += abs(other) * 2
        label = "a" if f"{total + 1}" else "b"
        print(label)
        return 0 < (
            math.floor(total) - size
        ) <= LIMIT and total != max(size, 7, key=None)
'''


@pytest.fixture
def toy(tmp_path: Path) -> Function:
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    return Function.find("toy:Box.fits", tmp_path)


EACH: dict[str, tuple[Change, str, str]] = {
    "compare": (Compare(1, "<=", ">"), "0 < math.floor(total) - size <= LIMIT", "0 < math.floor(total) - size > LIMIT"),
    "binop": (BinOp(1, "*", "/"), "abs(other) * 2", "abs(other) / 2"),
    "augmented": (BinOp(0, "+", "-"), "total += abs", "total -= abs"),
    "swap": (SwapOperands(2, "-"), "math.floor(total) - size", "size - math.floor(total)"),
    "bool": (BoolOp(0, "and", "or"), "<= LIMIT and total", "<= LIMIT or total"),
    "unary": (DropUnary(0, "not"), "if not other:", "if other:"),
    "number": (Constant(1, 2, 3), "abs(other) * 2", "abs(other) * 3"),
    "text": (Constant(1, "b", "c"), "else 'b'", "else 'c'"),
    "negate": (Negate(0, "if"), "if not other:", "if not not other:"),
    "force": (Force(1, "if-else", new=True), "if f'{total + 1}'", "if True"),
    "drop": (DropStatement(0, "call"), "print(label)", "pass"),
    "bypass-function": (Bypass(0, "floor"), "math.floor(total)", "total"),
    "bypass-builtin": (Bypass(0, "sorted"), "sorted(others)", "others"),
    "callee": (Callee(0, "max", "min"), "max(size", "min(size"),
    "argument": (Argument(0, "max", 1, "{} + 1"), "max(size, 7,", "max(size, 7 + 1,"),
    "keyword": (Argument(0, "max", "key", "len"), "key=None", "key=len"),
}


@pytest.mark.parametrize(("change", "old", "new"), EACH.values(), ids=EACH)
def test_operator_changes_one_place_and_keeps_line_numbers(change: Change, old: str, new: str, toy: Function) -> None:
    plain, changed = ast.unparse(ast.parse(TOY)), change.apply(toy)
    assert plain.count(old) == 1
    assert ast.unparse(ast.parse(changed)) == plain.replace(old, new)
    assert changed.count("\n") == TOY.count("\n")
    differ = [i for i, (a, b) in enumerate(zip(TOY.split("\n"), changed.split("\n"), strict=True), 1) if a != b]
    assert differ[0] >= change.line(toy)


def test_body_is_replaced_by_an_expression_of_its_parameters(toy: Function) -> None:
    changed = Return("size > LIMIT + math.pi").apply(toy)
    assert "return size > LIMIT + math.pi" in changed
    assert "Return whether" in changed
    assert changed.count("\n") == TOY.count("\n")
    with pytest.raises(MutationError, match="has no name total"):
        Return("total").apply(toy)


def test_address_stays_valid_after_renames_and_moves(tmp_path: Path, toy: Function) -> None:
    other = (
        TOY.replace("total", "sum_of_all")
        .replace("Return whether", "Say whether 1 + 1 and")
        .replace("LIMIT =", "\nLIMIT =")
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "toy.py").write_text(other, encoding="utf-8")
    moved = Function.find("elsewhere.toy:Box.fits", tmp_path)
    for change, _, _ in EACH.values():
        expected = ast.unparse(ast.parse(change.apply(toy))).replace("total", "sum_of_all")
        found = ast.unparse(ast.parse(change.apply(moved)))
        assert found.replace("Say whether 1 + 1 and", "Return whether") == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Compare(0, ">", ">="), "is '<' and not '>'"),
        (Compare(9, "<", "<="), "has 3 comparisons"),
        (BinOp(0, "-", "+"), "is '\\+' and not '-'"),
        (SwapOperands(0, "+"), "no operands"),
        (Constant(0, 1, 2), "0.5"),
        (Force(0, "while", new=True), "is 'if' and not 'while'"),
        (DropStatement(0, "raise"), "has 0 statements"),
        (Bypass(0, "ceil"), "has 0 calls"),
        (Argument(0, "max", 5, "1"), "has no argument 5"),
        (Constant(1, 2, 2), "has no effect"),
    ],
)
def test_place_with_other_contents_is_an_error(change: Change, says: str, toy: Function) -> None:
    with pytest.raises(MutationError, match=says):
        change.apply(toy)


@pytest.mark.parametrize("address", ["toy:Box.fit", "toy:fits", "toy:Box", "toy", "play:Box.fits"])
def test_missing_function_is_an_error(address: str, toy: Function) -> None:
    with pytest.raises(MutationError, match="there is no"):
        Function.find(address, toy.path.parent)


def test_every_operator_is_tried_at_each_of_its_places(toy: Function) -> None:
    found = all_changes(toy)
    kinds = {type(change) for change in found}
    assert kinds == {type(change) for change, _, _ in EACH.values()} - {Argument} | {Return}
    assert [change.k for change in found if type(change) is Compare] == [0, 1, 2]
    assert Bypass(0, "print") not in found, "a call for its side effect is a statement"
    assert DropStatement(0, "assign") not in found, "without a local variable the function only crashes"
    for change in found:
        ast.parse(change.apply(toy))


def test_all_mutations_apply_and_differ() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 40
    assert len({(mutation.function, mutation.change) for mutation in MUTATIONS}) == len(MUTATIONS)
    assert {mutation.name: mutation.problem() for mutation in MUTATIONS if mutation.problem()} == {}
    assert all(mutation.why and mutation.tests for mutation in MUTATIONS)


@pytest.mark.parametrize(
    "rot",
    [
        {"change": Compare(0, "is", "is not")},
        {"function": "workbench.core.rejection:no_such_function"},
        {"function": "workbench.no_such_module:walk"},
        {"tests": ("tests/test_mutations.py::test_of_nothing",)},
        {"tests": ("tests/no_such_file.py",)},
    ],
    ids=["place", "function", "module", "test", "file"],
)
def test_check_runs_no_test_and_names_outdated_mutations(
    rot: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = MUTATIONS[0]
    rotten = dataclasses.replace(whole, name="rotten", **rot)
    monkeypatch.setattr(mutate, "start_tests", lambda *_: pytest.fail("a test was run"))
    for there, words, code in (([whole], "1 of 1 apply", 0), ([whole, rotten], "1 of 2 apply", 2)):
        monkeypatch.setattr(mutate, "MUTATIONS", there)
        monkeypatch.setattr(sys, "argv", ["mutate.py", "--check"])
        assert mutate.main() == code
        output = capsys.readouterr().out
        assert words in output
        assert (f"{mutate.OUTDATED}" in output, "rotten" in output) == (code == 2, code == 2)


TRIALS = """
import sys
from pathlib import Path
import mutate
import xdist.plugin  # once, and not in every fork
from mutation_operators import Compare, Constant
from mutations import Mutation

def of(name, change, *tests):
    return Mutation(name, "workbench.toy:is_large", change, tests or ("tests/test_toy.py",), "reason")

copy = Path(sys.argv[1])
whole = (copy / "workbench/toy.py").read_text()
assert mutate.run_unchanged(copy, [of("unchanged", None)]) == ""
chosen = [
    of("caught", Compare(0, ">", "<")),
    of("missed", Compare(0, ">", ">=")),
    of("alone", Compare(0, ">", "<"), "tests/test_toy.py::test_other"),
    of("lost", Constant(0, 3, 4), "tests/test_nothing.py"),
]
print(mutate.try_mutations(chosen, [copy]))
assert (copy / "workbench/toy.py").read_text() == whole
"""


@pytest.mark.processes
def test_trials_report_killed_mutations_and_restore_the_file(tmp_path: Path) -> None:
    files = {
        "workbench/__init__.py": "",
        "workbench/toy.py": 'def is_large(x):\n    """Return whether x > 3."""\n    return x > 3\n',
        "tests/test_toy.py": "from workbench.toy import is_large\n\n\ndef test_large():\n    assert is_large(9)\n\n\n"
        "def test_other():\n    assert is_large\n",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", TRIALS, str(tmp_path)]
    few = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
    where = ROOT / "tests"
    done = subprocess.run(command, cwd=where, env=few, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [mutate.KILLED, mutate.SURVIVED, mutate.SURVIVED, mutate.UNUSABLE]
    assert str(verdicts) in done.stdout
    assert "FAILED tests/test_toy.py::test_large" in done.stdout


def test_operators_of_one_function_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mutate.py", "--function", "workbench.core.tree:children_of", "--list"])
    assert mutate.main() == 0
    output = capsys.readouterr().out
    assert "BinOp(k=1, old='+', new='-')" in output
    assert "children[parent + 1].append(i)" in output
    monkeypatch.setattr(sys, "argv", ["mutate.py", "--function", "workbench.core.tree:no_such"])
    with pytest.raises(SystemExit):
        mutate.main()


@pytest.mark.slow
@pytest.mark.processes
def test_mutation_of_the_list_is_killed_in_a_copy_of_the_tree() -> None:
    tried: Mutation = next(mutation for mutation in MUTATIONS if mutation.name == "tree-mask-without-grandparents")
    command = [sys.executable, str(ROOT / "tests" / "mutate.py"), "--only", tried.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 killed" in done.stdout
    assert not tried.problem(), "the working tree is unchanged"
    unknown = subprocess.run([*command, "--only", "nothing-like-it"], capture_output=True, timeout=300, check=False)
    assert unknown.returncode == 2
