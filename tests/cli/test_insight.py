"""`whatif`, `claims` and `doctor` on the command line, without a model if none is needed."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.cli.doctor import doctor
from workbench.cli.generate import generate
from workbench.trace import export
from workbench.views import recorded_runs


def test_whatif_explains_a_run_and_loads_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "token-recycling", "autoregressive"]) == 0
    out = capsys.readouterr().out
    assert "×: one run, which is not conclusive" in out
    assert "8 / 57" in out  # accepted / tested
    assert "8 / 720" in out  # SGLang's denominator


def test_whatif_reads_exported_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, parquet = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    lines.write_text(export.to_json_lines(recorded_runs.trace("draft-model")), encoding="utf-8")
    parquet.write_bytes(export.to_parquet(recorded_runs.trace("medusa")))
    assert main(["whatif", str(lines), str(parquet), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["combinations"][0]["second"] == "medusa"
    assert found["budget"]["plain_s"] is None


def test_whatif_reports_invalid_traces_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    assert main(["whatif", str(tmp_path / "x.jsonl")]) == 1
    assert "not an event of a trace" in capsys.readouterr().err
    assert main(["whatif", "nobody"]) == 2
    assert "one of the bundled recordings" in capsys.readouterr().err


def test_the_claims_board_is_shown_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["draft-model/main"]["command"] == "workbench claims --method draft-model"
    assert rows["kangaroo/main"]["verdict"] == "not measurable here"
    assert [column["target"] for column in rows["msd/main"]["elsewhere"]] == ["smollm2"]
    assert rows["msd/main"]["elsewhere"][0]["lacking"] == "a method for images"


def test_claims_that_cannot_be_measured_or_saved_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["claims", "--target", "smollm2"]) == 1
    assert "Name methods with --method, or give --all" in capsys.readouterr().err
    assert main(["claims", "--all", "--target", "smolm2"]) == 2
    assert "--target: There is no model 'smolm2'" in capsys.readouterr().err
    assert main(["claims", "--all", "--target", "text-drafter", "--report"]) == 2
    assert "no column for text-drafter" in capsys.readouterr().err
    assert main(["claims", "--method", "msd", "--key", "main", "--target", "smollm2", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["column"], row["verdict"], row["lacking"]) == (
        "smollm2",
        "not measurable here",
        "a method for images",
    )


def test_a_claim_is_named_on_standard_error_before_its_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A claim about time takes minutes, during which the command would print nothing."""
    from workbench.bench import claims, labs

    shown = []

    def measure(claim: claims.Claim, scale: claims.Scale) -> claims.Measurement:
        shown.append(capsys.readouterr().err)
        return claims.Measurement(1.5, 1.4, 1.6, 25, "a test")

    monkeypatch.setattr(labs, "measure", measure)
    assert main(["claims", "--method", "eagle"]) == 0
    assert shown == ["note: eagle/main: measuring speed-up over plain decoding\n"]


def test_doctor_examines_the_models_that_generate_runs() -> None:
    """Another number format would explain a difference that `generate` does not have."""
    of_generate, of_doctor = (inspect.signature(command).parameters for command in (generate, doctor))
    for name in ("target", "drafter", "device", "dtype"):
        assert of_doctor[name].default == of_generate[name].default, name


@pytest.mark.slow
def test_a_claim_is_really_measured_in_the_column_of_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second target stands in for a chat model: its measurements do not change the first column."""
    from workbench.bench import claims, claimsboard
    from workbench.bench.text_lab import TextLab
    from workbench.core.errors import WorkbenchError
    from workbench.decoders.declarations import Claim
    from workbench.methods import registry

    def fails(lab: TextLab) -> claims.Measurement:
        raise WorkbenchError(f"{lab.scale.target} is out of order.")

    other = "text-drafter"
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    monkeypatch.setattr(claims, "COLUMNS", columns := {claims.BUNDLED: "toys", other: "a real one"})
    monkeypatch.setattr(claimsboard, "COLUMNS", columns)
    plain = Claim("τ", "any", 1.0, 1.0, "definition", lambda lab: lab.on_groups("maths").tau())
    sampled = Claim("τ / τ", "any", None, None, "p", lambda lab: lab.tau_over("autoregressive", {}, {}, 1.0))
    broken = Claim("", "", 1, 1, "", fails)
    for name, claim in (("autoregressive", plain), ("prompt-lookup", sampled), ("oracle", broken)):
        method = dataclasses.replace(registry.get(name), claims=(claim,))
        monkeypatch.setitem(registry._methods, name, method)
    assert main(["claims", "--method", "autoregressive", "--report", "--max-new-tokens", "16", "--per-group", "1"]) == 0
    assert "reproduced in size" in capsys.readouterr().out
    first = json.loads((tmp_path / "claims.json").read_text())["rows"]
    asked = ["--target", other, "--dtype", "bfloat16", "--per-group", "1", "--max-new-tokens", "8", "--draws", "2"]
    ours = ["--method", "oracle", "--method", "autoregressive", "--method", "prompt-lookup"]
    assert main(["claims", *ours, *asked, "--report"]) == 1
    assert "oracle/main was not measured: text-drafter is out of order." in capsys.readouterr().err
    rows = json.loads((tmp_path / "claims.json").read_text())["rows"]
    assert rows["autoregressive/main"] == first["autoregressive/main"], "another target never overwrites it"
    assert rows.keys() == {"autoregressive/main", f"autoregressive/main@{other}", f"prompt-lookup/main@{other}"}
    drawn = rows[f"prompt-lookup/main@{other}"]["measured"]
    assert drawn["n"] == 7, "one prompt of each kind"
    assert drawn["setting"].startswith("text-drafter, bfloat16, bundled prompts, at most 1")
    assert "at most 8 tokens, temperature 1.0, 2 sampled runs per prompt" in drawn["setting"]
    lines = (tmp_path / "claims.md").read_text().splitlines()
    line = next(x for x in lines if x.startswith("| `autoregressive`"))
    assert [cell.split("<br>")[1].removesuffix(" |") for cell in line.split(" | ")[3:5]] == ["1 (1–1, n = 7)"] * 2
    figures = [x for x in lines if x.startswith("| `autoregressive/main`")]
    assert "text-target with" in figures[0]
    assert "text-drafter, bfloat16" in figures[1]


def test_doctor_reads_a_recorded_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = recorded_runs.trace("draft-tree-sampled")
    (tmp_path / "a.jsonl").write_text(export.to_json_lines(trace), encoding="utf-8")
    assert main(["doctor", "--trace", str(tmp_path / "a.jsonl")]) == 2
    assert "temperature" in capsys.readouterr().err
