"""`workbench bench --suite verifiers` and the board that `workbench docs` makes of its report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli.conftest import Command
from ui.conftest import ROOT

from workbench.bench import verifier_suite
from workbench.bench.verifier_suite import page


def test_the_suite_writes_its_report_and_docs_make_the_board(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier_suite, "NODES", 8)
    monkeypatch.setattr(verifier_suite.run_suite, "__defaults__", (7, (32,), (), lambda words: None))
    monkeypatch.setattr("workbench.models.model_index.local_folder", lambda model: None)
    monkeypatch.setattr("workbench.models.model_index.packaged_file", lambda model: None)
    where = tmp_path / "verifiers.json"
    done = workbench("bench", "--suite", "verifiers", "--repeats", "1", "--out", str(where))
    assert done.status == 0, done.err
    assert "not on this machine" in done.err
    report = json.loads(where.read_text())
    assert report["forwards"] == []
    assert page(report) in done.out
    boards = shutil.copytree(ROOT / "assets" / "boards", tmp_path / "boards")
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copy(where, boards)
    assert workbench("docs", "--readme", str(tmp_path / "README.md"), "--boards", str(boards)).status == 0
    assert (boards / "verifiers.md").read_text(encoding="utf-8") == page(report)
    assert "writes .json or .md" in workbench("bench", "--suite", "verifiers", "--out", str(tmp_path / "a.csv")).err
