"""`workbench bench --suite answers` and the board that `workbench docs` makes of its reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.conftest import Command
from ui.conftest import ROOT

from workbench.bench import answers_suite
from workbench.bench.answers_suite import Scale, page


def test_each_target_has_its_table_and_docs_make_the_board(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(models: Any, scale: Scale, progress: Any, resume: Any) -> dict[str, Any]:
        assert resume is None
        rows = [{"verifier": "lossless", "tau": 2.0, "right": {"sums": [1, 1]}}]
        machine = {"cpu": "C", "cores": 2, "torch": "2", "transformers": "5", "date": "d", "load": 0.5}
        said = {"target": models.target_name, "dtype": "float32", "command": f"seed {scale.seed}", "machine": machine}
        said |= {"temperature": scale.temperature, "tokens": scale.tokens}
        return {"rows": rows, "problems": {"sums": 2}} | said

    monkeypatch.setattr(answers_suite, "run_suite", run)
    monkeypatch.setattr("workbench.cli.bench.load", lambda target, *more: SimpleNamespace(target_name=names.pop()))
    where, names = tmp_path / "answers.json", ["one", "two", "one"]
    for seed in ("1", "2", "3"):
        done = workbench("bench", "--suite", "answers", "--temperature", "0.7", "--seed", seed, "--out", str(where))
        assert done.status == 0, done.err
    held = json.loads(where.read_text(encoding="utf-8"))
    assert [(r["target"], r["command"], r["temperature"]) for r in held] == [
        ("two", "seed 2", 0.7),
        ("one", "seed 3", 0.7),
    ]
    boards = shutil.copytree(ROOT / "assets" / "boards", tmp_path / "boards")
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copy(where, boards)
    assert workbench("docs", "--readme", str(tmp_path / "README.md"), "--boards", str(boards)).status == 0
    assert (boards / "answers.md").read_text(encoding="utf-8") == page(held)
    refused = workbench("bench", "--suite", "answers", "--out", str(tmp_path / "a.csv"))
    assert "writes .json or .md" in refused.err
