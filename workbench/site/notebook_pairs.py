"""Keep each notebook and its `py:percent` file in sync: equal cells, no outputs, the common first cell.

Each lesson is a pair in `notebooks/`: the `.ipynb` for readers, and the `.py` for review and linting. Either may be
edited; `workbench notebooks` updates the other and removes outputs and other traces of execution.
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

from workbench.trace.files import write_atomically

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
"""First cell of every notebook, which installs the workbench on Colab.

The clone of the repository is installed in editable mode, because it contains the bundled models.
"""

_NOTEBOOK = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_CELL_KEYS = ("tags", "jupyter", "slideshow")  # metadata set by authors; all other metadata comes from execution
_TEXT = JupytextConfiguration(
    notebook_metadata_filter="kernelspec,jupytext,-jupytext.text_representation.jupytext_version"
)

_HEADER = re.compile(r"\A# ---\n(?:#.*\n)*?# ---\n\s*")


def names(folder: Path = FOLDER) -> list[str]:
    """Return the names of the lessons (stems of `.ipynb` and `.py` files), sorted."""
    return sorted({path.stem for ending in ("ipynb", "py") for path in folder.glob(f"[0-9][0-9]_*.{ending}")})


def strip_outputs(notebook: Mapping[str, Any]) -> NotebookNode:
    """Return a copy of a notebook without outputs, execution counts, widget state and other traces of execution.

    Missing cell ids are added.

    Args:
        notebook: notebook in nbformat 4.
    """
    used_ids: set[str] = set()
    cells = []
    for original in notebook["cells"]:
        cell = _node(
            {
                "cell_type": original["cell_type"],
                "id": _identity(original, used_ids),
                "metadata": {key: original["metadata"][key] for key in _CELL_KEYS if key in original["metadata"]},
                "source": original["source"].rstrip(),
            }
        )
        if cell.cell_type == "code":
            cell.update(execution_count=None, outputs=[])
        cells.append(cell)
    return _node({"cells": cells, "metadata": _NOTEBOOK, "nbformat": 4, "nbformat_minor": 5})


def as_text(notebook: NotebookNode) -> str:
    """Return a notebook as `py:percent` text."""
    return jupytext.writes(_node(notebook), fmt="py:percent", config=_TEXT)


def synchronise(name: str, folder: Path = FOLDER) -> list[Path]:
    """Synchronise the two files of a lesson (`.ipynb` and `.py`), remove outputs and set the common first cell.

    If the files differ, the one that was edited last is used.

    Args:
        name: name of the lesson, such as "02_rejection_sampling".
        folder: folder of the notebooks.

    Returns:
        The files that were changed.
    """
    book_path, text_path = folder / f"{name}.ipynb", folder / f"{name}.py"
    book = strip_outputs(nbformat.read(book_path, as_version=4)) if book_path.is_file() else None
    if book is None or (text_path.is_file() and _differs(book, text_path) and _newer(text_path, book_path)):
        book = _from_text(text_path, book)
    _put_first_cell(book)
    changed = []
    for path, text in ((book_path, nbformat.writes(book) + "\n"), (text_path, as_text(book))):
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text.encode())
            changed.append(path)
    return changed


def problems(name: str, folder: Path = FOLDER) -> list[str]:
    """Return descriptions of the problems in a lesson's two files that `synchronise` would fix. Changes no file.

    Args:
        name: name of the lesson.
        folder: folder of the notebooks.
    """
    book_path, text_path = folder / f"{name}.ipynb", folder / f"{name}.py"
    if missing := [path.name for path in (book_path, text_path) if not path.is_file()]:
        return [f"{missing[0]} is missing"]
    book = nbformat.read(book_path, as_version=4)
    messages = []
    if any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells):
        messages.append(f"the notebook {book_path.name} contains outputs")
    if "widgets" in book.metadata:
        messages.append(f"the notebook {book_path.name} contains widget state (metadata.widgets)")
    clean, language = strip_outputs(book), book.metadata.get("language_info")
    if not messages and (clean.cells != book.cells or clean.metadata.language_info != language):
        messages.append(f"the notebook {book_path.name} contains metadata from its execution")
    if not clean.cells or clean.cells[0].source != FIRST_CELL or "colab" not in _tags(clean.cells[0]):
        messages.append(f"the notebook {book_path.name} does not begin with the first cell that all notebooks share")
    if _differs(clean, text_path):
        messages.append(f"{book_path.name} and {text_path.name} have different cells")
    return messages


def _node(data: Mapping[str, Any]) -> NotebookNode:
    """Return a copy of notebook data as nbformat's dict type."""
    return cast(NotebookNode, nbformat.from_dict(dict(data)))


def _differs(book: NotebookNode, text_path: Path) -> bool:
    """Return whether a notebook and its `.py` file have different cells; jupytext's header is ignored."""
    return _HEADER.sub("", as_text(book)) != _HEADER.sub("", text_path.read_text(encoding="utf-8"))


def _newer(path: Path, than: Path) -> bool:
    return path.stat().st_mtime > than.stat().st_mtime


def _from_text(path: Path, old: NotebookNode | None) -> NotebookNode:
    """Convert a `.py` file to a notebook; cells that are also in the notebook `old` keep their ids."""
    ids = {(cell.cell_type, cell.source): cell.id for cell in old.cells} if old else {}
    book = jupytext.read(path, fmt="py:percent")
    for cell in book.cells:
        cell["id"] = ids.get((cell.cell_type, cell.source), "")
    return strip_outputs(book)


def _put_first_cell(book: NotebookNode) -> None:
    if not book.cells or "colab" not in _tags(book.cells[0]):
        book.cells.insert(0, _node({"cell_type": "code", "id": "colab", "execution_count": None, "outputs": []}))
    book.cells[0].update(source=FIRST_CELL, metadata=_node({"tags": ["colab"]}))


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _identity(cell: Mapping[str, Any], used_ids: set[str]) -> str:
    """Return the id of a notebook cell, or a hash of its text if it has no id.

    So repeated conversion gives the same file.

    Args:
        cell: cell of a notebook.
        used_ids: ids of other cells, which the result must not repeat; the new id is added to the set.
    """
    identity = cell.get("id") or hashlib.sha256(cell["source"].encode()).hexdigest()[:8]
    while identity in used_ids:
        identity = hashlib.sha256(identity.encode()).hexdigest()[:8]
    used_ids.add(identity)
    return identity
