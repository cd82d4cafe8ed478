"""Workloads: bundled prompts that no training used, and Spec-Bench's questions as replacements."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from workbench.bench import workloads
from workbench.bench.datasets import NAMES, load_suite
from workbench.bench.prompts import groups_of
from workbench.training import generators, workload_prompts


def test_each_kind_is_a_suite_and_all_kinds_together_are_one() -> None:
    everything = load_suite(workloads.WORK)
    assert groups_of(everything) == list(workloads.KINDS)
    assert [p for kind in workloads.KINDS for p in load_suite(kind)] == everything
    assert all(len(load_suite(kind)) == workload_prompts.N for kind in workloads.KINDS)
    assert len({p.prompt for p in everything}) == len({p.name for p in everything}) == len(everything)
    assert {workloads.WORK, *workloads.KINDS} <= set(NAMES)


def test_the_file_equals_the_generators_held_out_output(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()
    drawn = generators.Task.draw

    def draw(task: generators.Task, rng: random.Random, *, held_out: bool) -> generators.Instance:
        asked.append(held_out)
        return drawn(task, rng, held_out=held_out)

    monkeypatch.setattr(generators.Task, "draw", draw)
    assert workloads.FILE.read_text(encoding="utf-8") == workload_prompts.render_prompts(), "run `workbench docs`"
    assert asked
    assert all(asked)


def test_training_data_contains_none_of_the_stories_and_records() -> None:
    learnt = {
        instance.prompt
        for name in ("story", "json", "extract", "summary", "replace", "copy", "multiplication")
        for instance in itertools.islice(generators.TASKS[name].stream(workload_prompts.SEED, held_out=False), 300)
    }
    assert not learnt & {p.prompt for p in load_suite(workloads.WORK)}


def test_spec_benchs_questions_replace_the_kinds_that_it_covers(tmp_path: Path) -> None:
    rows = [
        {"question_id": i, "category": category, "turns": [f"Question {i}."]}
        for i, category in enumerate(("writing", "rag", "summarization", "math_reasoning", "translation"))
    ]
    (tmp_path / "spec_bench.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = load_suite(workloads.WORK, tmp_path)
    assert {p.prompt: p.group for p in found if p.question is not None} == {
        "Question 0.": "chat", "Question 1.": "retrieval", "Question 2.": "summary", "Question 3.": "maths",
    }  # fmt: skip
    assert groups_of(found) == list(workloads.KINDS)
    assert load_suite("stories", tmp_path) == load_suite("stories"), (
        "kinds without its questions keep the bundled prompts"
    )
    assert [p.prompt for p in load_suite("retrieval", tmp_path)] == ["Question 1."]
