"""Boards of finished studies, rendered from JSON files with their texts and tables. The studies' code was removed.

The file of a board has a `title` and `sections`. A section has `parts`: paragraphs and tables. A paragraph is Markdown,
in which `{command}` and `{machine}` stand for these entries of the section. A table has `columns`, `left` (columns
aligned left besides the first) and `rows` of texts. A section may also have the `command` and the `machine` of the
study, and `results`: the numbers from which the tables were computed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.bench.markdown import markdown_table
from workbench.core.errors import WorkbenchError
from workbench.models.machine import describe


def pages(boards_folder: Path) -> dict[Path, str]:
    """Return the Markdown of all boards of finished studies in a folder, by file."""
    reports = {path: _read(path) for path in sorted(boards_folder.glob("*.json"))}
    return {path.with_suffix(".md"): page(board) for path, board in reports.items() if _is_recorded(board)}


def page(board: dict[str, Any]) -> str:
    """Return the board of a finished study as Markdown."""
    parts = [_part(part, section) for section in board["sections"] for part in section["parts"]]
    return "\n\n".join([f"# {board['title']}", *parts]) + "\n"


def _part(part: str | dict[str, Any], section: dict[str, Any]) -> str:
    """Return a paragraph or a table in a section of a finished study's board as Markdown."""
    if isinstance(part, str):
        machine = describe(section["machine"]) if "machine" in section else ""
        return part.replace("{command}", section.get("command", "")).replace("{machine}", machine)
    columns = {title: lambda row, i=i: row[i] for i, title in enumerate(part["columns"])}
    return markdown_table(columns, part["rows"], part["left"])


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkbenchError(f"{path} cannot be read: {error}", "Restore the file from the repository.") from None


def _is_recorded(board: Any) -> bool:
    return isinstance(board, dict) and {"title", "sections"} <= board.keys()
