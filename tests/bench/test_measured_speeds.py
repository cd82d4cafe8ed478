"""Measured speeds of methods for lists: computed from the boards' runs, paired with plain decoding by prompt."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from workbench.bench import workload_board
from workbench.bench.measured_speeds import measured_speeds


def write_boards(folder: Path) -> None:
    """Write two boards of [tokens, passes, seconds]: method "copy" is 2× faster on edits and 0.5× on chats."""
    kinds = {
        "edit": ([[10, 5, 1.0], [20, 10, 2.0]], [[10, 10, 2.0], [20, 20, 4.0]]),
        "chat": ([[8, 8, 4.0]], [[8, 8, 2.0]]),
    }
    work = {
        f"{kind} on t": {
            "kind": kind, "target": "t", "date": "2026-01-02",
            "methods": {"autoregressive": {"runs": plain}, "copy": {"runs": runs}},
        }
        for kind, (runs, plain) in kinds.items()
    }  # fmt: skip
    heads = {
        "t": {
            "target": "t", "prompts": ["edit-1", "chat-1"], "plain": [[10, 10, 2.0], [0, 0, 0.0]],
            "heads": {"a": {"method": "head", "runs": [[10, 4, 0.5], [0, 0, 0.0]]},
                      "b": {"method": "copy", "runs": [[10, 4, 0.1], [0, 0, 0.0]]}},
        }
    }  # fmt: skip
    for name, rows in (("work", work), ("heads", heads)):
        (folder / f"{name}.json").write_text(json.dumps({"board": name, "rows": rows}))


def test_speed_is_the_geometric_mean_over_prompts_and_tau_the_pooled_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_boards(tmp_path)
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    found = measured_speeds("t")
    copying = found["copy"]
    assert copying.speedup.value == pytest.approx(math.prod([2.0, 2.0, 0.5]) ** (1 / 3))
    assert copying.tau == pytest.approx((10 + 20 + 8) / (5 + 10 + 8))
    assert [(kind, round(value, 9)) for kind, value in copying.by_kind] == [("edit", 2.0), ("chat", 0.5)]
    assert (copying.board, copying.date) == ("work", "2026-01-02"), "workloads take precedence over heads"
    assert found["head"].speedup.value == pytest.approx(4.0), "a prompt without text does not count"
    assert "autoregressive" not in found


def test_an_unmeasured_target_has_no_speeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    assert measured_speeds("t") == {}


def test_the_speeds_are_those_of_the_workload_board() -> None:
    board = next(entry for entry in workload_board.targets() if entry["target"] == "text-target")
    found = measured_speeds("text-target")
    for method in board["methods"]:
        assert found[method["method"]].speedup.value == pytest.approx(method["all"]["speedup"]["value"])
