"""A few answers of the bundled target and their stored hidden states (readings), once per test file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.training.answers import AnswersOptions, write_answers
from workbench.training.family.readings import ReadingsOptions, make_readings

from .training_setups import quiet


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a few answers of the bundled target."""
    out = tmp_path_factory.mktemp("answers")
    options = AnswersOptions("text-target", out / "none", out, 700, max_new_tokens=24, per_task=12, rows=8,
                             dtype="float32", threads=1)  # fmt: skip
    write_answers(options, quiet)
    return out


@pytest.fixture(scope="module")
def options(answers: Path, tmp_path_factory: pytest.TempPathFactory) -> ReadingsOptions:
    """Return the options of readings of these answers, with two captured layers, computed in two runs."""
    out = tmp_path_factory.mktemp("readings")
    options = ReadingsOptions("text-target", answers, out, taps=(1, 3), dtype="float32", threads=1)
    make_readings(replace(options, tokens=300), quiet)
    for name in ("ids", "features", "rows"):  # as if the first run had been killed while it wrote the next answer
        with (out / f"{name}.bin").open("ab") as file:
            file.write(b"\x01" * 7)
    make_readings(options, quiet)
    return options
