"""The board of the VocabTrim study: verdicts follow from the intervals, and the page has all tables."""

from __future__ import annotations

from typing import Any

from workbench.bench.trimmingboard import claims, page
from workbench.models.machine import machine_facts


def synthetic_report() -> dict[str, Any]:
    """Return a report in which 512 tokens accept as much and are twice as fast, and 16 tokens accept half."""
    plain = {"emitted": [20] * 6, "rounds": [20] * 6, "rates": [[10.0, 11.0]] * 6}

    def cell(counted: str, kept: int, rounds: int, rate: float) -> dict[str, Any]:
        return {
            "kind": "eagle", "counted": counted, "kept": kept, "accepted": [20 - rounds] * 6, "tested": [20] * 6,
            "emitted": [20] * 6, "rounds": [rounds] * 6, "drafted": [40] * 6, "draft_s": [0.02] * 6,
            "outside": [int(kept == 16)] * 6, "rates": [[rate + i / 10, rate + 1] for i in range(6)],
        }  # fmt: skip

    cells = [
        cell("", 4096, 10, 20),
        cell("target", 512, 10, 40),
        cell("target", 16, 20, 15),
        cell("given", 512, 16, 30),
    ]
    return {"target": "t", "form": "chain", "prompts": 6, "max_new_tokens": 20, "counted": {"target": 5, "given": 4},
            "options": {"each": "1"}, "machine": machine_facts(), "plain": plain, "cells": cells}  # fmt: skip


def test_verdicts_follow_from_the_synthetic_report() -> None:
    found = {row["claim"]: row for row in claims(synthetic_report())}
    assert [row["verdict"] for row in found.values()] == ["holds", "holds", "holds"]
    assert "eagle: some size is faster than the whole vocabulary (the best of 2: 512)" in found
    assert next(row for claim, row in found.items() if "ratio of τ" in claim)["found"].startswith("1.60")
    worse = synthetic_report()
    for cell in worse["cells"][1:3]:
        cell["rates"] = [[10.0, 10.0]] * 6
    worse["cells"][1]["rounds"] = [12] * 6
    assert [row["verdict"] for row in claims(worse)][:2] == ["open", "does not hold"]


def test_the_board_has_a_table_for_each_kind_with_the_whole_vocabulary_first() -> None:
    text = page(synthetic_report())
    rows = [line for line in text.splitlines() if line.startswith(("| 4,096", "| 512"))]
    assert rows[0].startswith("| 4,096 | not trimmed | 0.0% | 0.50 [0.50–0.50] | – |")
    assert "2.0" in rows[1]
    assert "| 5.0% |" in text
    assert "--set each=1" in text
    assert "5 tokens of the target's answers and 4 tokens of the text's own answers" in text
