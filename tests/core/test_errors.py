"""Messages of errors contain a reason, also if the operating system gives none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import workbench
from workbench.core.errors import system_reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("the disk is gone"), "the disk is gone"),
        (OSError(), "OSError"),
    ],
    ids=["a number", "a text", "nothing"],
)
def test_an_error_of_the_system_has_a_reason(error: OSError, reason: str) -> None:
    assert system_reason(error) == reason


def test_no_message_contains_strerror_itself() -> None:
    """It is None unless the error was created with a number: "cannot be written: None."."""
    for file in Path(workbench.__file__).parent.rglob("*.py"):
        found = re.search(r"[{(]\w+\.strerror\b", file.read_text(encoding="utf-8"))
        assert found is None, f"{file}: {found[0]}"
