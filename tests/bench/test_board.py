"""Boards: a method without evidence is unproven, one failure breaks a promise, rows survive a stopped run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from workbench.bench import board
from workbench.bench.finding import FAIL, MEASURED, PASS, SKIPPED, Finding
from workbench.core.errors import WorkbenchError
from workbench.methods import registry

GREEDY = {"equal": 9, "tried": 9, "prompts": 3, "tokens": 24}
FIT = {"statistic": 20.5, "freedom": 19, "p_value": 0.36, "runs": 1000, "total_variation": 0.02, "impossible": 0}


def finding(kind: str, verdict: str = PASS, **figures: object) -> Finding:
    known = {"greedy": GREEDY, "families": {"equal": 2, "tried": 2, "families": ["llama", "gpt2"]}, "distribution": FIT}
    return Finding(
        "m", "exact", f"sampling distribution ({kind})", verdict, "words", 1.0, kind, known.get(kind, {}) | figures
    )


def wire(*findings: Finding) -> list[dict]:
    return json.loads(json.dumps([{name: getattr(f, name) for name in f.__slots__} for f in findings]))


@pytest.fixture(autouse=True)
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path / "boards"))
    return tmp_path / "boards"


@pytest.mark.parametrize(
    ("promise", "findings", "standing"),
    [
        ("exact", [], board.UNPROVEN),
        ("exact", [finding("greedy")], board.UNPROVEN),
        ("exact", [finding("distribution")], board.UNPROVEN),
        ("exact", [finding("greedy"), finding("distribution")], board.SHOWN),
        ("exact", [finding("greedy"), finding("distribution"), finding("families", FAIL)], board.BROKEN),
        ("exact", [finding("availability", SKIPPED)], board.UNPROVEN),
        ("greedy-exact", [finding("greedy")], board.SHOWN),
        ("greedy-exact", [finding("greedy", FAIL)], board.BROKEN),
        ("approximate", [finding("distribution", MEASURED)], board.NO_PROMISE),
        ("approximate", [finding("greedy", FAIL), finding("distribution", MEASURED)], board.BROKEN),
        ("simulation", [finding("greedy"), finding("distribution")], board.NO_PROMISE),
        ("simulation", [], board.UNPROVEN),
    ],
)
def test_status_of_a_promise_follows_from_the_evidence(promise: str, findings: list[Finding], standing: str) -> None:
    assert board.standing(promise, wire(*findings)) == standing


def test_every_registered_method_has_a_row_and_is_unproven_before_evidence(boards: Path) -> None:
    rows = board.exactness_rows()
    assert [row["method"] for row in rows] == registry.names()
    assert {row["standing"] for row in rows} == {board.UNPROVEN}
    assert "**unproven**" in board.exactness_markdown(rows)
    assert not boards.exists()


def test_every_row_of_the_committed_board_has_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_BOARDS")
    rows = [*board.exactness_rows(), *board.choice_rows()]
    assert len(rows) > len(registry.names())
    assert {row["standing"] for row in rows} <= {board.SHOWN, board.NO_PROMISE}


def test_evidence_is_saved_row_by_row_with_date_and_commit(boards: Path) -> None:
    for name in ("prompt-lookup", "draft-model"):
        board.save_exactness(registry.get(name), "t", [finding("greedy"), finding("families"), finding("distribution")])
    rows = {row["method"]: row for row in board.exactness_rows()}
    row = rows["prompt-lookup"]
    assert row["standing"] == rows["draft-model"]["standing"] == board.SHOWN
    assert (row["greedy"]["equal"], row["greedy"]["tried"]) == (11, 11)
    assert (row["greedy"]["prompts"], row["greedy"]["families"]) == (3, 3)
    assert row["date"].endswith("UTC")
    assert row["commit"] == board.commit()
    assert row["commit"] or not (board._ROOT / ".git").exists(), "a copy without git has no commit to name"
    text = (boards / "exactness.md").read_text()
    assert "| `prompt-lookup` | exact | **shown** | 11 / 11 | 3 · 3 | 20.5 (19), p = 0.36, n = 1000 |" in text
    assert text.count("**unproven**") == len(registry.names()) - 2


def test_a_distribution_test_names_its_number_of_settings_and_skipped_tests_are_left_out() -> None:
    row = {"promise": "exact", "findings": wire(finding("distribution", tests=4), finding("distribution", SKIPPED))}
    row["findings"][1]["figures"] = {}
    rows = board.exactness_rows([("m", "M", "exact")], {"m": row})
    assert [board.describe_fit(test) for test in rows[0]["distributions"]] == [
        "20.5 (19), p = 0.36, worst fit of 4 settings, n = 1000"
    ]


def test_evidence_for_another_promise_does_not_count() -> None:
    board.save_exactness(registry.get("draft-model"), "t", [finding("greedy"), finding("distribution")])
    rows = board.exactness_rows([("draft-model", "Draft model", "greedy-exact")])
    assert rows[0]["standing"] == board.UNPROVEN
    assert rows[0]["date"] == ""


def test_a_damaged_board_is_reported(boards: Path) -> None:
    boards.mkdir()
    (boards / "exactness.json").write_text("{")
    with pytest.raises(WorkbenchError, match="cannot be read"):
        board.exactness_rows()


def test_concurrent_measurements_of_another_process_are_not_lost(boards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand in for processes: the lock is a file lock, and each thread opens the file itself."""
    both, theirs = threading.Barrier(2), board.read

    def read(*args: Any) -> dict[str, Any]:
        found = theirs(*args)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # until the other thread has read, too: under the lock it cannot
        return found

    monkeypatch.setattr(board, "read", read)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda key: board.save("b", key, {}, str), ["one", "other"]))
    assert sorted(theirs("b")) == ["one", "other"]


@pytest.mark.skipif(not board.commit(), reason="needs the repository's history")
def test_a_row_names_its_commit_and_whether_it_is_from_an_earlier_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_BOARDS")
    rows = [row for name in ("claims", "exactness", "families", "vision") for row in board.read(name).values()]
    assert any("history" in row for row in rows)
    for commit, history in sorted({(row["commit"], row.get("history", "")) for row in rows if row.get("commit")}):
        here = ["git", "-C", str(Path(board.__file__).parent), "cat-file", "-e", commit.rstrip("+")]
        is_here = not subprocess.run(here, capture_output=True, check=False).returncode
        said = board.commit_of({"commit": commit, "history": history})
        assert said == (commit if is_here else f"{commit} (a commit that is not in this repository's history)")
