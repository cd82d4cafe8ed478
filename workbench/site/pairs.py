"""Notebooks and their `py:percent` pairs: the same cells, no outputs, the same first cell.

Each lesson is a pair in `notebooks/`: the `.ipynb` that readers open, and the `.py` that is reviewed and linted. Either
may be edited; `workbench notebooks` brings the other in step, and strips what running left behind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jupytext
import nbformat
from jupytext.config import JupytextConfiguration
from nbformat import NotebookNode

from workbench.trace.files import write_whole

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"

FIRST_CELL = """\
# Google Colab: installs the workbench from its repository. Everywhere else this cell does nothing.
import importlib.util
import subprocess
import sys

if "google.colab" in sys.modules and importlib.util.find_spec("workbench") is None:
    clone = "/content/workbench-repository"
    address = input("Address of the workbench's git repository: ")
    subprocess.run(["git", "clone", "--depth", "1", address, clone], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--editable", f"{clone}[notebooks]"], check=True)
    sys.path.insert(0, clone)"""
"""What every notebook begins with. A clone is installed in place: the bundled models lie beside the package."""

_NOTEBOOK = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_CELL_KEYS = ("tags", "jupyter", "slideshow")  # what an author says about a cell; all else is a trace of running it
_TEXT = JupytextConfiguration(
    notebook_metadata_filter="kernelspec,jupytext,-jupytext.text_representation.jupytext_version"
)

_HEADER = re.compile(r"\A# ---\n(?:#.*\n)*?# ---\n\s*")


def names(folder: Path = FOLDER) -> list[str]:
    """Names of the lessons, without ending, in order: whatever has a notebook or a `.py`."""
    return sorted({path.stem for ending in ("ipynb", "py") for path in folder.glob(f"[0-9][0-9]_*.{ending}")})


def stripped(notebook: Mapping[str, Any]) -> NotebookNode:
    """A copy without outputs, counts, widget state and other traces of running it; ids stay, missing ones are made.

    Args:
        notebook: as nbformat 4 reads it.
    """
    taken: set[str] = set()
    cells = []
    for old in notebook["cells"]:
        cell = _node(
            {
                "cell_type": old["cell_type"],
                "id": _identity(old, taken),
                "metadata": {key: old["metadata"][key] for key in _CELL_KEYS if key in old["metadata"]},
                "source": old["source"].rstrip(),
            }
        )
        if cell.cell_type == "code":
            cell.update(execution_count=None, outputs=[])
        cells.append(cell)
    return _node({"cells": cells, "metadata": _NOTEBOOK, "nbformat": 4, "nbformat_minor": 5})


def as_text(notebook: NotebookNode) -> str:
    """The `py:percent` text of a notebook."""
    return jupytext.writes(_node(notebook), fmt="py:percent", config=_TEXT)


def tidy(name: str, folder: Path = FOLDER) -> list[Path]:
    """Bring one pair in order: in step, stripped, with the common first cell.

    The file that was edited last wins where both say something different.

    Returns:
        The files that changed.
    """
    book_path, text_path = folder / f"{name}.ipynb", folder / f"{name}.py"
    book = stripped(nbformat.read(book_path, as_version=4)) if book_path.is_file() else None
    if book is None or (text_path.is_file() and _differs(book, text_path) and _newer(text_path, book_path)):
        book = _from_text(text_path, book)
    _put_first_cell(book)
    changed = []
    for path, text in ((book_path, nbformat.writes(book) + "\n"), (text_path, as_text(book))):
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_whole(path, text.encode())
            changed.append(path)
    return changed


def problems(name: str, folder: Path = FOLDER) -> list[str]:
    """What `tidy` would mend in one pair, in words; empty if all is well. Changes nothing."""
    book_path, text_path = folder / f"{name}.ipynb", folder / f"{name}.py"
    if missing := [path.name for path in (book_path, text_path) if not path.is_file()]:
        return [f"{missing[0]} is missing"]
    book = nbformat.read(book_path, as_version=4)
    found = []
    if any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells):
        found.append(f"{book_path.name} has outputs")
    if "widgets" in book.metadata:
        found.append(f"{book_path.name} has the state of widgets (metadata.widgets)")
    clean = stripped(book)
    if not found and (clean.cells != book.cells or clean.metadata.language_info != book.metadata.get("language_info")):
        found.append(f"{book_path.name} has metadata that running it left")
    if not clean.cells or clean.cells[0].source != FIRST_CELL or "colab" not in _tags(clean.cells[0]):
        found.append(f"{book_path.name} does not begin with the common first cell")
    if _differs(clean, text_path):
        found.append(f"{book_path.name} and {text_path.name} are out of step")
    return found


def _node(data: Mapping[str, Any]) -> NotebookNode:
    """A copy as nbformat's own kind of dict."""
    return cast(NotebookNode, nbformat.from_dict(dict(data)))


def _differs(book: NotebookNode, text_path: Path) -> bool:
    """Whether the cells say different things; the header is jupytext's own affair."""
    return _HEADER.sub("", as_text(book)) != _HEADER.sub("", text_path.read_text(encoding="utf-8"))


def _newer(path: Path, than: Path) -> bool:
    return path.stat().st_mtime > than.stat().st_mtime


def _from_text(path: Path, old: NotebookNode | None) -> NotebookNode:
    """The notebook of a `.py`; cells that `old` has, too, keep their ids."""
    ids = {(cell.cell_type, cell.source): cell.id for cell in old.cells} if old else {}
    book = jupytext.read(path, fmt="py:percent")
    for cell in book.cells:
        cell["id"] = ids.get((cell.cell_type, cell.source), "")
    return stripped(book)


def _put_first_cell(book: NotebookNode) -> None:
    if not book.cells or "colab" not in _tags(book.cells[0]):
        book.cells.insert(0, _node({"cell_type": "code", "id": "colab", "execution_count": None, "outputs": []}))
    book.cells[0].update(source=FIRST_CELL, metadata=_node({"tags": ["colab"]}))


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _identity(cell: Mapping[str, Any], taken: set[str]) -> str:
    """The cell's id; one made from its text where it has none, so that converting twice gives the same file."""
    found = cell.get("id") or hashlib.sha256(cell["source"].encode()).hexdigest()[:8]
    while found in taken:
        found = hashlib.sha256(found.encode()).hexdigest()[:8]
    taken.add(found)
    return found
