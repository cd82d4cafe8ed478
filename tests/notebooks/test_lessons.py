"""Every lesson as it lies in the repository: in step, stripped, and built as lessons are. nbmake runs them."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from workbench.site import pairs

NAMES = pairs.names()
PARAMETERS = ("FAST", "TARGET", "DRAFTER", "DEVICE", "SERVER")
GUIDE = "12_teachers_guide"


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def lesson(name: str) -> NotebookNode:
    return nbformat.read(pairs.FOLDER / f"{name}.ipynb", as_version=4)


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def words(lesson: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in lesson.cells if cell.cell_type == "markdown")


def code(lesson: NotebookNode) -> str:
    return "\n".join(cell.source for cell in lesson.cells if cell.cell_type == "code")


def test_there_are_thirteen() -> None:
    assert [int(name[:2]) for name in NAMES] == list(range(13))


def test_pair_is_in_step_and_stripped(name: str) -> None:
    """When this fails: run `workbench notebooks`."""
    assert pairs.problems(name) == []


def test_begins_with_a_title_and_what_one_will_be_able_to_do(lesson: NotebookNode) -> None:
    title = next(cell for cell in lesson.cells if cell.cell_type == "markdown").source
    assert title.startswith("# ")
    assert "able to" in title
    assert re.search(r"^[-*] ", title, re.MULTILINE)
    assert len(re.findall(r"^# ", re.sub(r"```.*?```", "", words(lesson), flags=re.DOTALL), re.MULTILINE)) == 1


def test_has_one_cell_of_parameters_before_anything_is_computed(lesson: NotebookNode) -> None:
    codes = [cell for cell in lesson.cells if cell.cell_type == "code"]
    assert ["parameters" in tags(cell) for cell in codes].index(True) == 1
    assert sum("parameters" in tags(cell) for cell in codes) == 1
    for parameter in PARAMETERS:
        assert re.search(rf"^{parameter} = ", codes[1].source, re.MULTILINE), parameter
    assert 'os.environ.get("WORKBENCH_FAST", "1") == "1"' in codes[1].source


def test_asks_for_a_prediction_and_asserts(name: str, lesson: NotebookNode) -> None:
    assert "assert" in code(lesson)
    if name != GUIDE:
        assert re.search(r"predict|what do you expect|write (it|your|down)|guess", words(lesson), re.IGNORECASE)


def test_ends_with_three_exercises_solved_and_references(name: str, lesson: NotebookNode) -> None:
    closing = re.split(r"^## (?:References|Where to read on)$", words(lesson), flags=re.MULTILINE)
    assert len(closing) == 2
    assert re.search(r"(19|20)\d\d, ", closing[1])
    solutions = sum("solution" in tags(cell) for cell in lesson.cells) + words(lesson).count("<summary>")
    if name != GUIDE:
        assert solutions >= 3


def test_solutions_are_folded_in_jupyterlab(lesson: NotebookNode) -> None:
    for cell in lesson.cells:
        if "solution" in tags(cell):
            assert cell.cell_type == "code"
            assert cell.metadata.get("jupyter", {}).get("source_hidden") is True


def test_links_to_the_app(lesson: NotebookNode) -> None:
    assert "app_link(" in code(lesson)


def test_loads_nothing_from_elsewhere_by_itself(lesson: NotebookNode) -> None:
    for cell in lesson.cells:
        assert not re.search(r"""<(script|img|link|iframe)[^>]*(src|href)\s*=\s*["']?(https?:)?//""", cell.source)
        assert not re.search(r"!\[[^\]]*\]\(https?:", cell.source)
    assert "trust_remote_code=True" not in code(lesson)


def test_links_between_lessons_and_files_lead_somewhere(lesson: NotebookNode) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", words(lesson)):
        assert (pairs.FOLDER / target).resolve().exists(), target


def test_every_notebook_was_found() -> None:
    """A misnamed file would be neither checked nor shown on the site."""
    found = {path.stem for path in pairs.FOLDER.iterdir() if path.suffix in (".ipynb", ".py")}
    assert found == set(NAMES)
    assert Path(pairs.FOLDER, "..", "pyproject.toml").is_file()
