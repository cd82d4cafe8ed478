"""`workbench notebooks` on test pairs: stripped metadata, the file that wins, and reported problems."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workbench.cli import main
from workbench.site import notebook_pairs

NAME = "00_first"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a consistent pair of one sentence and one code cell."""
    book = new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell("x = 1")])
    nbformat.write(book, tmp_path / f"{NAME}.ipynb")
    notebook_pairs.synchronise(NAME, tmp_path)
    assert notebook_pairs.problems(NAME, tmp_path) == []
    return tmp_path


def edit(folder: Path, change: object = None, **cell: object) -> None:
    """Change the last cell of the notebook, as running or editing does."""
    path = folder / f"{NAME}.ipynb"
    book = nbformat.read(path, as_version=4)
    book.cells[-1].update(cell)
    if change:
        book.metadata.update(change)  # pyright: ignore[reportArgumentType]
    nbformat.write(book, path)
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 10))


def sources(folder: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(folder / f"{NAME}.ipynb", as_version=4).cells]


def test_a_notebook_gets_the_first_cell_and_a_pair(folder: Path) -> None:
    assert sources(folder) == [notebook_pairs.FIRST_CELL, "# Title", "x = 1"]
    text = jupytext.read(folder / f"{NAME}.py")
    assert [cell.source for cell in text.cells] == sources(folder)


def test_tidying_twice_changes_nothing(folder: Path) -> None:
    assert notebook_pairs.synchronise(NAME, folder) == []


def test_outputs_are_detected_and_stripped(folder: Path) -> None:
    edit(folder, execution_count=3, outputs=[new_output("stream", name="stdout", text="1")])
    assert notebook_pairs.problems(NAME, folder) == [f"the notebook {NAME}.ipynb contains outputs"]
    assert [path.name for path in notebook_pairs.synchronise(NAME, folder)] == [f"{NAME}.ipynb"]
    assert notebook_pairs.problems(NAME, folder) == []


def test_state_of_widgets_is_detected_and_stripped(folder: Path) -> None:
    edit(folder, {"widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}}})
    assert "widgets" in notebook_pairs.problems(NAME, folder)[0]
    notebook_pairs.synchronise(NAME, folder)
    assert "widgets" not in nbformat.read(folder / f"{NAME}.ipynb", as_version=4).metadata


def test_times_of_execution_are_detected_and_stripped_but_tags_are_kept(folder: Path) -> None:
    edit(folder, metadata={"tags": ["solution"], "jupyter": {"source_hidden": True}, "execution": {"x": "2026"}})
    assert len(notebook_pairs.problems(NAME, folder)) == 2  # the traces, and the .py lacks the tag
    notebook_pairs.synchronise(NAME, folder)
    cell = nbformat.read(folder / f"{NAME}.ipynb", as_version=4).cells[-1]
    assert cell.metadata == {"tags": ["solution"], "jupyter": {"source_hidden": True}}
    assert 'tags=["solution"]' in (folder / f"{NAME}.py").read_text()
    assert notebook_pairs.problems(NAME, folder) == []


def test_the_file_edited_last_wins(folder: Path) -> None:
    edit(folder, source="x = 2")
    assert notebook_pairs.problems(NAME, folder) == [f"{NAME}.ipynb and {NAME}.py have different cells"]
    notebook_pairs.synchronise(NAME, folder)
    assert "x = 2" in (folder / f"{NAME}.py").read_text()

    text = folder / f"{NAME}.py"
    text.write_text(text.read_text().replace("x = 2", "x = 3"))
    later = (folder / f"{NAME}.ipynb").stat().st_mtime + 20
    os.utime(text, (later, later))
    ids = [cell.id for cell in nbformat.read(folder / f"{NAME}.ipynb", as_version=4).cells]
    notebook_pairs.synchronise(NAME, folder)
    assert sources(folder)[-1] == "x = 3"
    kept = [cell.id for cell in nbformat.read(folder / f"{NAME}.ipynb", as_version=4).cells]
    assert kept[:2] == ids[:2]


def test_another_first_cell_is_detected_and_replaced(folder: Path) -> None:
    path = folder / f"{NAME}.ipynb"
    book = nbformat.read(path, as_version=4)
    book.cells[0].source = "import os"
    nbformat.write(book, path)
    assert any("first cell" in problem for problem in notebook_pairs.problems(NAME, folder))
    notebook_pairs.synchronise(NAME, folder)
    assert sources(folder)[0] == notebook_pairs.FIRST_CELL


def test_a_missing_file_of_a_pair_is_detected_and_created(folder: Path) -> None:
    for ending in (".ipynb", ".py"):
        (folder / NAME).with_suffix(ending).unlink()
        assert notebook_pairs.problems(NAME, folder) == [f"{NAME}{ending} is missing"]
        notebook_pairs.synchronise(NAME, folder)
        assert notebook_pairs.problems(NAME, folder) == []


def test_the_command_checks_and_updates_its_notebooks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder, execution_count=1)
    assert main(["notebooks", "--folder", str(folder), "--check"]) == 1
    assert "Run `workbench notebooks`" in capsys.readouterr().err
    assert main(["notebooks", "--folder", str(folder), NAME]) == 0
    assert main(["notebooks", "--folder", str(folder), "--check"]) == 0
    assert main(["notebooks", "--folder", str(folder), "07_nothing"]) == 2


def test_the_first_cell_does_nothing_here() -> None:
    before = set(sys.modules)
    exec(compile(notebook_pairs.FIRST_CELL, "first cell", "exec"), {})
    assert not {module for module in set(sys.modules) - before if module.startswith("google")}
