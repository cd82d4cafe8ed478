"""Examples in docstrings outside `workbench/core`, which pytest collects itself: all in one process, as one test."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest
import torch
from conftest import ROOT


def modules_with_examples() -> list[str]:
    files = (path for path in sorted((ROOT / "workbench").rglob("*.py")) if ">>>" in path.read_text("utf-8"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]


def test_docstring_examples_show_their_results(capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in modules_with_examples() if not name.startswith("workbench.core")]
    assert len(names) > 30
    flags, failed = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, list[str]()
    for name in names:
        outcome = doctest.testmod(
            importlib.import_module(name), extraglobs={"torch": torch, "np": np}, optionflags=flags
        )
        if outcome.failed:
            failed.append(name)
    assert not failed, capsys.readouterr().out
