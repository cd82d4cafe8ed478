"""Structure of every lesson: .py and .ipynb agree, outputs are stripped, all parts are present. nbmake runs them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from workbench.site import notebook_pairs, testing

NAMES = notebook_pairs.names()
ANSWERS = Path(__file__).parent / "answers"
PARAMETERS = ("FAST", "SERVER")
MODELS = ("TARGET", "DRAFTER", "DEVICE")
BUNDLED_ONLY = {
    "07_heads": ("TARGET", "DRAFTER"),
    "12_teachers_guide": MODELS,
    "13_several_drafts": MODELS,
    "14_target_drafts_itself": ("DRAFTER",),
    "15_train_a_drafter": ("TARGET", "DRAFTER"),
}
"""Settings that a lesson does not offer, because it would not use them: heads fit one target, the guide and lesson 13
run no model, and the target of lesson 14 is its own drafter."""
GUIDE = "12_teachers_guide"
TIMED = re.compile(r"(?:^|_)(?:s|ms|seconds|elapsed|time|slope|gains?|costs?|speedups?|duration)$")
"""Names of values that are times or computed from times."""
CERTAIN = (
    "seconds >= roof",  # 01: both speeds are the maxima of these points
    "busy <= 1 / knee",  # 01: the same
    "launched < finished",  # 10: one clock, read twice
    "finished >= 0.049",  # 10: a sleep of 50 ms does not end earlier
    "r.seconds - (r.draft_s",  # 10: the rest is defined as the difference
    "forward_s(5, h100",  # 01: computed from data sheets
    "computing_s",  # 01: the same
    "best_K(alpha, cost)",  # 05: the cost is a given number
    "best_depth(alpha, cost)",  # 05: the same
    "gain[4]",  # 07: of levels
)
"""Assertions with times in them that no machine can break."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def lesson(name: str) -> NotebookNode:
    return nbformat.read(notebook_pairs.FOLDER / f"{name}.ipynb", as_version=4)


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def words(lesson: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in lesson.cells if cell.cell_type == "markdown")


def code(lesson: NotebookNode) -> str:
    return "\n".join(cell.source for cell in lesson.cells if cell.cell_type == "code")


def test_there_are_sixteen() -> None:
    assert [int(name[:2]) for name in NAMES] == list(range(16))


def test_py_and_ipynb_agree_and_outputs_are_stripped(name: str) -> None:
    """When this fails: run `workbench notebooks`."""
    assert notebook_pairs.problems(name) == []


def test_begins_with_a_title_and_learning_goals(lesson: NotebookNode) -> None:
    title = next(cell for cell in lesson.cells if cell.cell_type == "markdown").source
    assert title.startswith("# ")
    assert "able to" in title
    assert re.search(r"^[-*] ", title, re.MULTILINE)
    assert len(re.findall(r"^# ", re.sub(r"```.*?```", "", words(lesson), flags=re.DOTALL), re.MULTILINE)) == 1


def test_has_one_cell_of_parameters_before_anything_is_computed(name: str, lesson: NotebookNode) -> None:
    codes = [cell for cell in lesson.cells if cell.cell_type == "code"]
    assert ["parameters" in tags(cell) for cell in codes].index(True) == 1
    assert sum("parameters" in tags(cell) for cell in codes) == 1
    for parameter in PARAMETERS:
        assert re.search(rf"^{parameter} = ", codes[1].source, re.MULTILINE), parameter
    assert 'os.environ.get("WORKBENCH_FAST", "1") == "1"' in codes[1].source
    rest = "\n".join(cell.source for cell in codes[2:])
    for parameter in MODELS:
        asked = re.search(rf"^{parameter} = ", codes[1].source, re.MULTILINE) is not None
        assert asked == (parameter not in BUNDLED_ONLY.get(name, ())), parameter
        assert not asked or re.search(rf"\b{parameter}\b", rest), f"{parameter} is asked for, and not used"


def test_has_a_prediction_and_an_assertion(name: str, lesson: NotebookNode) -> None:
    assert "assert" in code(lesson)
    if name != GUIDE:
        assert re.search(r"predict|what do you expect|write (it|your|down)|guess", words(lesson), re.IGNORECASE)


def test_every_prediction_is_answered(name: str, lesson: NotebookNode) -> None:
    """An explanation comes after the cells that compute it, or their output says which answer is right."""
    unanswered = []
    for i, cell in enumerate(lesson.cells):
        if cell.cell_type == "markdown" and re.search(r"\*\*[^*]*Predict", cell.source) and name != GUIDE:
            after = lesson.cells[i + 1 :]
            explanation = next((k for k, later in enumerate(after) if later.cell_type == "markdown"), len(after))
            printed = "\n".join(later.source for later in after[:explanation])
            text = after[explanation].source if explanation < len(after) else "#"
            if text.startswith("#") and "Answer" not in printed:
                unanswered.append(cell.source)
    assert unanswered == []


@pytest.mark.parametrize("name", [name for name in NAMES if name[:2] in ("02", "13", "14", "15")], indirect=True)
def test_the_word_answer_follows_every_prediction(lesson: NotebookNode) -> None:
    """Predictions of these lessons had an explanation that did not say which answer is right."""
    _, *asked = re.split(r"\*\*[^*\n]*Predict", "\n".join(cell.source for cell in lesson.cells))
    assert asked
    assert [text[:80] for text in asked if not re.search("answer", text.split("## Exercises")[0], re.IGNORECASE)] == []


def test_ends_with_references(lesson: NotebookNode) -> None:
    closing = re.split(r"^## (?:References|Where to read on)$", words(lesson), flags=re.MULTILINE)
    assert len(closing) == 2
    assert re.search(r"(19|20)\d\d, ", closing[1])


def test_ends_with_questions_to_answer_from_memory(lesson: NotebookNode) -> None:
    assert len(re.findall(r"^## Close this page and answer$", words(lesson), re.MULTILINE)) == 1
    questions = words(lesson).split("## Close this page and answer")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d\. ", questions, re.MULTILINE)) >= 3


def test_three_exercises_have_an_answer_cell_a_check_and_a_solution(name: str, lesson: NotebookNode) -> None:
    """A check inspects the reader's answer, rejects a typical mistake, and accepts the solution."""
    codes = [cell for cell in lesson.cells if cell.cell_type == "code"]
    kinds = [kind for cell in codes for kind in ("answer", "check", "solution") if kind in tags(cell)]
    exit_ticket = ["solution"] if name == GUIDE else []
    assert kinds == exit_ticket + 3 * ["answer", "check", "solution"]
    for i, cell in enumerate(codes):
        if "answer" not in tags(cell):
            continue
        asked, solved = codes[i + 1].source, codes[i + 2].source
        own = names_bound(cell.source)
        check = re.search(r"^@w\.check\ndef (\w+)", asked, re.MULTILINE)
        assert check, asked
        called = re.search(rf"^{check[1]}\((.*)\)$", asked, re.MULTILINE)
        assert called, f"{check[1]} is not asked about the reader's answer"
        assert {part.strip() for part in called[1].split(",")} <= own, "it is asked about something else"
        claims = [ast.unparse(node.test) for node in ast.walk(ast.parse(solved)) if isinstance(node, ast.Assert)]
        called_right = re.compile(rf"{check[1]}\(.*\)\.right", re.DOTALL)
        assert any(called_right.fullmatch(claim) for claim in claims), "the solution is not checked"
        assert any(called_right.fullmatch(claim.removeprefix("not ")) for claim in claims if "not " in claim[:4]), (
            "no typical mistake is tried"
        )
        assert not own & names_bound(solved), "the solution overwrites the reader's answer"


def test_each_checker_is_tried_with_answers(name: str, lesson: NotebookNode) -> None:
    """The notebook's own run tries them in its kernel: at least two right ones, three wrong ones."""
    checks = {testing.checker_before(lesson, i) for i, cell in enumerate(lesson.cells) if "solution" in tags(cell)}
    answers = ast.parse((ANSWERS / f"{name}.py").read_text(encoding="utf-8"))
    found = {node.name.removeprefix("try_") for node in answers.body if isinstance(node, ast.FunctionDef)}
    assert found == checks - {None}
    assert len(found) == 3


@pytest.mark.slow
@pytest.mark.processes
def test_a_checker_that_accepts_a_wrong_answer_fails_its_notebook(tmp_path: Path) -> None:
    checker = "from workbench import widgets as w\n@w.check\ndef even(n):\n    assert n % 2 == 0\neven(my_n)"
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(source, metadata={"tags": [tag]})
            for tag, source in (("answer", "my_n = None"), ("check", checker), ("solution", "four = 4"))
        ]
    )
    before = [cell.source for cell in notebook.cells]
    answers = tmp_path / "answers.py"
    answers.write_text("def try_even(right, wrong):\n    right(2), right(four), wrong(1), wrong(3), wrong(5)\n")
    testing.client_with_trials(answers, notebook).execute()
    assert [cell.source for cell in notebook.cells] == before
    assert not notebook.cells[2].outputs, "the trial answers are not stored in the copy"
    for bad, message in (("wrong(6)", "even: .6,. should be False"), ("", "too few")):
        answers.write_text(f"def try_even(right, wrong):\n    right(2), right(four), wrong(1)\n    {bad}\n")
        with pytest.raises(AssertionError, match=message):
            testing.client_with_trials(answers, notebook).execute()


def names_bound(code: str) -> set[str]:
    """Return the names that a cell assigns or defines, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_no_time_is_asserted(lesson: NotebookNode) -> None:
    """Lessons assert counts and show times: an assertion on a time would fail on a busy machine."""
    for cell in lesson.cells:
        if cell.cell_type != "code":
            continue
        for node in ast.walk(ast.parse(cell.source)):
            if not isinstance(node, ast.Assert) or ast.unparse(node.test).endswith(".right"):
                continue
            inside = [n for n in ast.walk(node.test) if isinstance(n, ast.Name | ast.Attribute)]
            names = {n.id if isinstance(n, ast.Name) else n.attr for n in inside}
            said = ast.unparse(node.test)
            assert not any(map(TIMED.search, names)) or any(known in said for known in CERTAIN), said


def test_no_lesson_uses_interact_or_output_widgets(lesson: NotebookNode) -> None:
    """Their messages while drawing make stock executors miss the end of the cell (jupyter_client issue 436)."""
    assert not re.search(r"\binteract(ive)?(_output)?\(|\bOutput\(", code(lesson))


def test_solutions_are_folded_in_jupyterlab(lesson: NotebookNode) -> None:
    for cell in lesson.cells:
        if "solution" in tags(cell):
            assert cell.cell_type == "code"
            assert cell.metadata.get("jupyter", {}).get("source_hidden") is True


def test_links_to_the_app(lesson: NotebookNode) -> None:
    assert "app_link(" in code(lesson)


def test_loads_nothing_from_other_servers(lesson: NotebookNode) -> None:
    for cell in lesson.cells:
        assert not re.search(r"""<(script|img|link|iframe)[^>]*(src|href)\s*=\s*["']?(https?:)?//""", cell.source)
        assert not re.search(r"!\[[^\]]*\]\(https?:", cell.source)
    assert "trust_remote_code=True" not in code(lesson)


def test_links_between_lessons_and_files_resolve(lesson: NotebookNode) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", words(lesson)):
        assert (notebook_pairs.FOLDER / target).resolve().exists(), target


def test_every_notebook_was_found() -> None:
    """A misnamed file would be neither checked nor shown on the site."""
    found = {path.stem for path in notebook_pairs.FOLDER.iterdir() if path.suffix in (".ipynb", ".py")}
    assert found == set(NAMES)
    assert Path(notebook_pairs.FOLDER, "..", "pyproject.toml").is_file()
