from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from workbench.cli import main


@dataclass
class Result:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Result]


@pytest.fixture
def workbench(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process."""

    def run(*args: str) -> Result:
        status = main(args)
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return run
