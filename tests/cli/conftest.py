from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from workbench.cli import main
from workbench.methods import method_info
from workbench.training import known_recipes


@dataclass
class Result:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def _cache_method_facts() -> None:
    """Cache the facts about methods and recipes: the first command that needs them imports PyTorch."""
    if method_info.is_stale():
        method_info.save()
    known_recipes.recipes()


@pytest.fixture(autouse=True)
def _no_user_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CONFIG", os.devnull)


@pytest.fixture
def workbench(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command in this process."""

    def run(*args: str) -> Result:
        status = main(args)
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return run
