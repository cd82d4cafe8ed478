"""`workbench runs`, and `workbench bench` without measuring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.bench.report_files import read_report
from workbench.bench.store_benchmark import bench_store, report
from workbench.trace.store import RunStore

from .conftest import Command

SHORT = ("--max-new-tokens", "6", "--device", "cpu")


def test_a_run_is_saved_found_changed_exported_and_deleted(workbench: Command, tmp_path: Path) -> None:
    folder = str(tmp_path / "store")
    store = ("--store", folder)
    made = workbench(
        "generate", "one two one two one two", "--method", "prompt-lookup", "--tag", "first", *store, *SHORT
    )
    assert "saved as" in made.err
    (row,) = workbench("runs", "list", "--where", "tokens==6", "--text", "TWO", "--json", *store).json
    assert (row["method"], row["tags"], row["prompt"]) == ("prompt-lookup", ["first"], "one two one two one two")
    run, end = row["id"], row["id"][-6:]
    assert run in workbench("runs", "list", *store).out
    assert workbench("runs", "tag", end, "--add", "blue", "--remove", "first", *store).out.split() == [run, "blue"]
    workbench("runs", "note", end, "look \x1b[31mhere", *store)
    shown = workbench("runs", "show", end, *store).out
    assert "look \u20391B\u203a[31mhere" in shown, "control characters of a note are not sent to the terminal"
    assert f"http://127.0.0.1:7860/r/{run}\n" in shown
    assert f"/r/{run}+{run}" in workbench("runs", "show", end, end, *store).out, "two runs share an address"
    file = workbench("runs", "export", str(tmp_path / "out"), "--tag", "blue", *store).out.strip()
    other = ("--store", str(tmp_path / "other"))
    assert workbench("runs", "import", file, "--tag", "copy", *other).out.strip() == run
    assert "is already in the store" in workbench("runs", "import", file, *other).err
    assert RunStore(tmp_path / "other").load(run) == RunStore(folder).load(run)
    assert workbench("runs", "delete", end, "--yes", *store).status == 0
    assert workbench("runs", "list", "--json", *store).json == []


def test_the_folder_of_saved_runs_can_be_set(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "mine"))
    workbench("generate", "Hello", "--method", "autoregressive", "--keep", *SHORT)
    assert len(workbench("runs", "list", "--json").json) == 1
    assert (tmp_path / "mine" / "runs").is_dir()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["runs", "show", "nothing"], "No run id ends with"),
        (["runs", "show", "20200101-000000-00000000"], "No run"),
        (["runs", "list", "--since", "yesterday"], "is not a date"),
        (["runs", "list", "--where", "taau>1"], "Did you mean 'tau'"),
        (["runs", "export", "out.parquet"], "No saved run was selected"),
        (["runs", "import", "/no/such/file"], "There is no"),
        (["bench", "--suite", "gsm8k"], "--data"),
        (["bench", "--suite", "gsm8k", "--data", "/no/such/folder"], "contains no file gsm8k_test.jsonl"),
        (["bench", "--suite", "gms8k"], "Did you mean 'gsm8k'"),
        (["bench", "--out", "report.docx"], "must end in"),
        (["bench", "--compare", "/no/old.json", "/no/new.json"], "cannot be read"),
        (["bench", "--read-answers", "/no/a.jsonl", "/no/b.jsonl"], "cannot be read"),
    ],
)  # fmt: skip
def test_errors_are_one_line(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = workbench(*args)
    assert result.status in (1, 2)
    assert words in result.err
    assert result.err.count("\n") == 1


@pytest.mark.slow
def test_a_suite_is_measured_written_in_every_format_and_compared(workbench: Command, tmp_path: Path) -> None:
    questions = [{"question_id": i, "category": "qa", "turns": [f"What is {i} and {i}?"]} for i in range(3)]
    (tmp_path / "spec_bench.jsonl").write_text("".join(f"{json.dumps(q)}\n" for q in questions))
    forms = {kind: tmp_path / f"report.{kind}" for kind in ("md", "csv", "json", "parquet", "html")}
    out = [arg for path in forms.values() for arg in ("--out", str(path))]
    common = ("--method", "prompt-lookup", "--repeats", "1", "--max-new-tokens", "6", "--device", "cpu")
    suite = ("--suite", "spec-bench", "--data", str(tmp_path), "--per-group", "2")
    result = workbench("bench", *suite, *common, *out, "--answers", str(tmp_path / "answers"))
    assert result.status == 0, result.err
    assert "suite spec-bench" in result.out
    assert read_report(forms["json"]) == read_report(forms["parquet"])
    assert read_report(forms["json"]).settings["prompts"] == 2
    assert all(path.stat().st_size for path in forms.values())
    same = workbench("bench", "--compare", str(forms["json"]), str(forms["parquet"]))
    assert same.status == 0
    assert "**0 of" in same.out
    base, fast = sorted((tmp_path / "answers").iterdir())
    (row,) = workbench("bench", "--read-answers", str(base), str(fast), "--json").json
    assert (row["category"], row["questions"]) == ("qa", 2)
    assert row["speedup"]["value"] > 0


def test_the_speed_of_the_run_store_can_be_measured() -> None:
    found = {query.name: query for query in bench_store(40, repeats=2)}
    assert found["newest"].rows == 40
    assert found["one method"].rows == 10
    assert found["all of these"].rows <= found["a tag"].rows == 2
    assert found["search for a word that does not occur"].rows == 0
    assert found["newest runs, directly after a save"].rows == 42
    assert "| newest | 40 |" in report(list(found.values()), 40)
