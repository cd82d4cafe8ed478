"""What-if, claims and doctor on the command line, without a model where none is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.trace import export
from workbench.views import recorded


def test_whatif_says_why_and_loads_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "token-recycling", "autoregressive"]) == 0
    out = capsys.readouterr().out
    assert "×: one run, which cannot tell faster from slower" in out
    assert "8 / 57" in out  # accepted / tested
    assert "8 / 720" in out  # SGLang's denominator


def test_whatif_reads_what_was_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, parquet = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    lines.write_text(export.json_lines(recorded.trace("draft-model")), encoding="utf-8")
    parquet.write_bytes(export.parquet(recorded.trace("medusa")))
    assert main(["whatif", str(lines), str(parquet), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["combinations"][0]["second"] == "medusa"
    assert found["budget"]["plain_s"] is None


def test_whatif_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    assert main(["whatif", str(tmp_path / "x.jsonl")]) == 1
    assert "no event of a trace" in capsys.readouterr().err
    assert main(["whatif", "nobody"]) == 2
    assert "one of the recordings" in capsys.readouterr().err


def test_the_claims_board_is_shown_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["draft-model/main"]["command"] == "workbench claims --method draft-model"
    assert rows["draft-tree/over-static"]["verdict"] == "not measurable here"


@pytest.mark.slow
def test_a_claim_is_really_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from workbench.bench import text_claims
    from workbench.bench.claims import Claim

    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    quick = Claim("autoregressive", "τ", "any", 1.0, 1.0, "definition", text_claims.tau("autoregressive", ("maths",)))
    monkeypatch.setattr(text_claims, "CLAIMS", (quick,))
    assert main(["claims", "--method", "autoregressive", "--report"]) == 0
    assert "reproduced in size" in capsys.readouterr().out
    assert "**1 (1–1, n = 3)**" in (tmp_path / "claims.md").read_text()
    assert main(["claims", "--method", "nobody"]) == 2


def test_doctor_reads_a_recorded_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = recorded.trace("draft-tree-sampled")
    (tmp_path / "a.jsonl").write_text(export.json_lines(trace), encoding="utf-8")
    assert main(["doctor", "--trace", str(tmp_path / "a.jsonl")]) == 2
    assert "temperature" in capsys.readouterr().err
