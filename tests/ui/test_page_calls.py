"""Calls of pages with invalid values: each is refused with a message, none is reported as an internal error."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from ui.fake_client import FakeWorkbench

from workbench.client.wire import error_to_wire
from workbench.ui import build, hosting

ODD: tuple[Any, ...] = (["x"], {"a": [1]}, 5, "\ud800")
UNFORESEEN = error_to_wire(RuntimeError("x"))["message"]


@pytest.fixture(scope="module")
def calls() -> dict[str, tuple[Any, Any]]:
    """Return the pages' functions by name, as defined and as Gradio calls them."""
    found, safely = {}, hosting.return_errors

    def noted(answer: Any) -> Any:
        call = safely(answer)
        found[answer.__qualname__] = answer, call
        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosting, "return_errors", noted)
        build(FakeWorkbench())  # type: ignore[arg-type]
    return found


def test_every_call_refuses_wrong_types_with_a_message(calls: dict[str, tuple[Any, Any]]) -> None:
    assert len(calls) > 30
    wrong = []
    for name, (answer, call) in calls.items():
        keys = {"run", "name", *re.findall(r'request(?:\.get\(|\[)"(\w+)"', inspect.getsource(answer))}
        for asked in (*({key: value} for key in sorted(keys) for value in ODD), None, 5, ["x"]):
            said = call(asked)
            error = said.get("error") if isinstance(said, dict) else None
            if isinstance(error, dict) and error["message"] == UNFORESEEN:
                wrong.append((name, asked))
    assert wrong == []
