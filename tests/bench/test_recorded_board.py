"""Recorded boards of finished studies: text and tables are data of the file, and the pages stay as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.bench import recorded_board
from workbench.bench.boardfiles import folder
from workbench.core.errors import WorkbenchError
from workbench.models.machine import describe, machine_facts

FINISHED = ("distilling", "rollouts", "scaling", "trimming")


def test_the_pages_of_the_finished_studies_follow_from_their_files() -> None:
    pages = recorded_board.pages(folder())
    assert sorted(path.stem for path in pages) == sorted(FINISHED), "rows of other boards are no recorded boards"
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, path.name
        assert f"`workbench train {path.stem} --set " in text


@pytest.mark.parametrize("name", FINISHED)
def test_a_recorded_board_keeps_the_results_of_each_run(name: str) -> None:
    """Counts by prompt stay in the file: every figure can be computed again without the study's code."""
    board = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
    measured = [section for section in board["sections"] if "command" in section]
    assert measured
    for section in measured:
        assert section["results"].get("cells") or section["results"].get("steps")
        assert section["machine"]["date"].startswith("2026-11-27")


def test_a_section_names_its_command_and_machine_and_escapes_its_cells(tmp_path: Path) -> None:
    facts = machine_facts()
    table = {"columns": ["method", "words", "τ"], "left": ["words"], "rows": [["a|b", "text", "1.5"]]}
    run = {"command": "workbench train x", "machine": facts, "parts": ["`{command}` on {machine}.", table]}
    (tmp_path / "x.json").write_text(json.dumps({"title": "X", "sections": [{"parts": ["Intro."]}, run]}))
    (tmp_path / "rows.json").write_text(json.dumps({"board": "rows", "rows": {}}))
    assert recorded_board.pages(tmp_path) == {
        tmp_path / "x.md": f"# X\n\nIntro.\n\n`workbench train x` on {describe(facts)}.\n\n"
        "| method | words | τ |\n|---|---|--:|\n| a\\|b | text | 1.5 |\n"
    }
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(WorkbenchError, match=r"x\.json cannot be read"):
        recorded_board.pages(tmp_path)
