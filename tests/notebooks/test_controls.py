"""Sliders and dropdowns of the lessons: moving a control changes its drawing."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest

from workbench.site import notebook_pairs

pytest.importorskip("anywidget")
import ipywidgets as ui

from workbench import widgets as w
from workbench.trace.theory import expected_tau


def panel(name: str, before: int = 0) -> dict[str, Any]:
    """Return the variables after the cell of controls and the cells before it: drawing cell and `before` more."""
    codes = [
        cell
        for cell in nbformat.read(notebook_pairs.FOLDER / f"{name}.ipynb", as_version=4).cells
        if cell.cell_type == "code"
    ]
    at = next(i for i, cell in enumerate(codes) if "drawing" in cell.metadata.get("tags", []))
    names: dict[str, Any] = {"ui": ui, "w": w, "expected_tau": expected_tau, "__name__": "__main__"}
    exec("from dataclasses import dataclass", names)
    for cell in codes[at - before : at + 2]:
        exec(compile(cell.source, f"{name}, a cell", "exec"), names)
    return names


@pytest.mark.parametrize(("name", "before", "controls"), [
    ("01_memory_bound", 1, "controls"),
    ("03_acceptance_and_speedup", 0, "sliders"),
])  # fmt: skip
def test_every_control_of_a_lesson_changes_its_drawing(name: str, before: int, controls: str) -> None:
    found = panel(name, before)
    board = found["board"]
    assert "<svg" in board.value
    assert len(found[controls]) >= 3
    for label, control in found[controls].items():
        seen = board.value
        for value in other_values(control):
            control.value = value
            assert board.value != seen, f"{label} = {value} draws what was drawn before"
            seen = board.value
    assert board.snapshot() == board.value, "the stored output without a kernel is the same"


def other_values(control: Any) -> list[Any]:
    """Return two values other than the control's, one near its minimum and one near its maximum."""
    if hasattr(control, "options"):
        options = [value for value in control.options if value != control.value]
        return list(dict.fromkeys([options[0], options[-1]]))
    return [control.min + control.step, control.max]
