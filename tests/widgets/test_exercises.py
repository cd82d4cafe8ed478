"""The check of an exercise distinguishes missing, wrong and right answers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("anywidget")
from workbench import widgets as w


@w.check
def doubled(function: Any) -> None:
    assert function(2) == 4, "two and two"
    assert function(3) == 6


def open_answer(x: int) -> int:
    raise NotImplementedError


@pytest.mark.parametrize("answer", [None, ..., open_answer])
def test_no_answer_is_neither_right_nor_wrong(answer: Any) -> None:
    assert doubled(answer).right is None
    assert "no answer yet" in repr(doubled(answer))


def test_a_wrong_answer_gets_the_reason() -> None:
    assert doubled(lambda x: x).right is False
    assert "two and two" in repr(doubled(lambda x: x))
    assert doubled(lambda x: x + 2).right is False
    assert repr(doubled(lambda x: 1 / 0)).startswith("✕ ZeroDivisionError")
    assert "&lt;b&gt;" in doubled(lambda x: {}["<b>"])._repr_html_(), "an error's message is escaped"


def test_a_right_answer_is_right() -> None:
    assert doubled(lambda x: 2 * x).right is True
