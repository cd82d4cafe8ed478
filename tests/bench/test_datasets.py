"""Third-party prompt suites, and Spec-Bench's answer files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from workbench.bench.datasets import DATASETS, MT_BENCH, first_of_each_group, load_suite
from workbench.bench.prompts import BenchPrompt, groups_of, with_follow_ups
from workbench.bench.report import RUN_COLUMNS, BenchReport
from workbench.bench.specbench import read_answers, speeds, speeds_table, write_answers
from workbench.bench.suites import Plan, bench_methods
from workbench.bench.tiny_models import tiny_models
from workbench.core.errors import PromptError, UnknownNameError, WorkbenchError
from workbench.methods import registry
from workbench.models.pretrained import load_tokenizer

ROWS: dict[str, dict[str, Any]] = {
    "spec-bench": {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    "mt-bench": {"question_id": 82, "category": "roleplay", "turns": ["Be a cat.", "Be a dog."]},
    "humaneval": {"task_id": "HumanEval/0", "prompt": "def f():\n"},
    "gsm8k": {"question": "How many eggs?", "answer": "#### 18"},
    "mbpp": {"task_id": 601, "text": "Write f.", "test_list": ["assert f() == 1"], "code": "def f(): return 1"},
}


def write(folder: Path, name: str, *rows: Any) -> Path:
    path = folder / DATASETS[name].file
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("name", DATASETS)
def test_a_row_becomes_a_prompt(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, ROWS[name])
    (prompt,) = load_suite(name, tmp_path)
    asked = next(ROWS[name][key] for key in ("turns", "prompt", "question", "text") if key in ROWS[name])
    assert (asked[0] if isinstance(asked, list) else asked) in prompt.prompt
    assert prompt.chat == (name != "humaneval"), "functions are completed, all other prompts are chat messages"
    assert prompt.question is not None
    assert "#### 18" not in prompt.prompt, "the prompt does not contain the answer"
    assert "return 1" not in prompt.prompt


def test_spec_bench_has_six_categories_and_conversations(tmp_path: Path) -> None:
    others = ("translation", "summarization", "qa", "math_reasoning", "rag")
    rows = [{"question_id": i, "category": c, "turns": ["a", "b"]} for i, c in enumerate((*MT_BENCH, *others))]
    write(tmp_path, "spec-bench", *rows)
    prompts = load_suite("spec-bench", tmp_path)
    assert groups_of(prompts) == ["mt_bench", *others]
    assert {p.category for p in prompts if p.group == "mt_bench"} == set(MT_BENCH)
    assert [p.group for p in first_of_each_group(prompts, 1)] == ["mt_bench", *others]
    turns = with_follow_ups(prompts[:1], lambda p: f"answer to {p.prompt}")
    assert [(t.prompt, t.before, t.turn, t.question) for t in turns] == [
        ("a", (), 0, 0), ("b", ("a", "answer to a"), 1, 0)
    ]  # fmt: skip
    text = load_tokenizer("text-target").decode(turns[1].encode(load_tokenizer("text-target")))
    assert text == "<|user|>a<|assistant|>answer to a<|endoftext|><|user|>b<|assistant|>"


def test_gzipped_files_and_single_files_are_read(tmp_path: Path) -> None:
    plain = write(tmp_path, "gsm8k", ROWS["gsm8k"])
    (tmp_path / "zipped").mkdir()
    packed = tmp_path / "zipped" / "gsm8k_test.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_suite("gsm8k", plain) == load_suite("gsm8k", packed) == load_suite("gsm8k", packed.parent)


def test_missing_files_and_unknown_suites_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="--data"):
        load_suite("gsm8k")
    with pytest.raises(PromptError, match=r"contains no file spec_bench\.jsonl.*hemingkx/Spec-Bench"):
        load_suite("spec-bench", tmp_path)
    with pytest.raises(UnknownNameError, match="Did you mean 'spec-bench'"):
        load_suite("specbench", tmp_path)
    write(tmp_path, "mbpp", ROWS["mbpp"], {"text": "Write g."})
    with pytest.raises(PromptError, match="Line 2"):
        load_suite("mbpp", tmp_path)
    (tmp_path / "humaneval.jsonl").write_text("\n")
    with pytest.raises(PromptError, match="no questions"):
        load_suite("humaneval", tmp_path)


def test_a_conversation_is_benched_turn_by_turn_and_long_prompts_are_counted() -> None:
    models = tiny_models(load_tokenizer("text-target"), vocabulary=4096)  # its context holds 64 tokens
    prompts = [
        BenchPrompt("q1", "one", "short", True, ("two",), question=1),
        BenchPrompt("q2", "word " * 100, "long", True, ("never",), question=2),
        BenchPrompt("q3", "three", "short", True, question=3),
        BenchPrompt("q4", "four", "short", True, question=4),
    ]
    plan = Plan(max_new_tokens=6, repeats=2, per_group=2)
    said: list[str] = []
    method = registry.get("prompt-lookup").with_params()
    report = bench_methods(models, [method], prompts, plan, lambda done, total, what: said.append(what))
    assert said[0] == "generating the answers that precede follow-up messages"
    ran = [(run["question"], run["turn"]) for run in report.runs if run["contender"] == "prompt-lookup"]
    assert sorted(set(ran)) == [(1, 0), (1, 1), (3, 0)]
    assert len(ran) == 6
    assert report.left_out == {"long, longer than the 58 tokens that the target's context leaves for a prompt": 1}
    assert all(sum(run["steps"]) == run["tokens"] == len(run["token_ids"]) for run in report.runs)
    with pytest.raises(PromptError, match="No prompt of the suite fits"):
        bench_methods(models, [], prompts[1:2], plan)


def run(method: str, question: int, turn: int, repeat: int, steps: list[int], seconds: float) -> dict[str, Any]:
    known = {
        "contender": method, "question": question, "turn": turn, "repeat": repeat, "steps": steps,
        "tokens": sum(steps), "token_ids": list(range(sum(steps))), "rounds": len(steps), "seconds": seconds,
        "group": "mt_bench" if question == 1 else "qa", "category": "writing" if question == 1 else "qa",
    }  # fmt: skip
    return {name: known.get(name) for name in RUN_COLUMNS}


def report() -> BenchReport:
    runs = []
    for repeat in range(2):
        runs += [run("autoregressive", 1, t, repeat, [1] * 6, 3.0) for t in (0, 1)]
        runs += [run("autoregressive", 2, 0, repeat, [1] * 8, 4.0)]
        runs += [run("draft-model", 1, t, repeat, [3, 2, 1], 1.5) for t in (0, 1)]
        runs += [run("draft-model", 2, 0, repeat, [4, 4], 1.0)]
    return BenchReport({"target": "models/text target", "dtype": "float32"}, {}, [], {}, runs=runs)


def test_answers_are_written_in_spec_benchs_format_and_read_back(tmp_path: Path) -> None:
    base, fast = write_answers(report(), tmp_path / "answers", lambda ids: f"{len(ids)} tokens")
    assert fast.name == "text-target-draft-model-float32.jsonl"
    first, _ = (json.loads(line) for line in fast.read_text().splitlines())
    assert set(first) == {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}
    assert (first["question_id"], first["category"]) == (1, "writing"), "its own category, by which speed.py sorts"
    assert [choice["index"] for choice in first["choices"]] == [0, 1]
    assert first["choices"][0] == {
        "index": 0,
        "turns": ["6 tokens", "6 tokens"],
        "decoding_steps": [3, 3],
        "new_tokens": [6, 6],
        "wall_time": [1.5, 1.5],
        "accept_lengths": [3, 2, 1, 3, 2, 1],
    }
    rows = {row["category"]: row for row in speeds(read_answers(fast), read_answers(base))}
    assert list(rows) == ["mt_bench", "qa", "overall"]
    assert rows["mt_bench"]["speedup"].value == pytest.approx(2.0)
    assert rows["qa"]["mean_accepted"] == 4.0
    assert rows["overall"]["tokens_per_second"] == pytest.approx(20 / 4)
    assert rows["overall"]["baseline_tokens_per_second"] == pytest.approx(20 / 10)
    assert rows["overall"]["speedup"].value == pytest.approx(8**0.5), "geometric mean of 2 and 4"
    assert rows["overall"]["spec_bench_speedup"] == pytest.approx(2.5), "Spec-Bench's definition: ratio of totals"
    assert "| overall | 2 |" in speeds_table(list(rows.values()))


def test_third_party_answer_files_are_read_and_invalid_ones_refused(tmp_path: Path) -> None:
    """Format of Spec-Bench's evaluation/inference_baseline.py: answer ids of 22 letters; the last line counts."""
    choice = {"index": 0, "turns": ["x"], "decoding_steps": [4], "new_tokens": [4], "wall_time": [2.0]}
    line = {"question_id": 7, "category": "rag", "answer_id": "a" * 22, "model_id": "m", "tstamp": 0.0}
    old = line | {"choices": [choice | {"accept_lengths": [1] * 4}]}
    new = line | {"choices": [choice | {"wall_time": [1.0], "accept_lengths": [4]}]}
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(old)}\n{json.dumps(new)}\n")
    answers = read_answers(path)
    assert answers[7]["choices"][0]["wall_time"] == [1.0]
    (row,) = speeds(answers, {7: old})
    assert (row["category"], row["speedup"].value, row["speedup"].low) == ("rag", 2.0, None)
    for text, says in (("", "no answers"), ("{}\n", "Line 1"), (json.dumps(line | {"choices": [{}]}), "Line 1")):
        path.write_text(text)
        with pytest.raises(WorkbenchError, match=says):
            read_answers(path)
    with pytest.raises(WorkbenchError, match="no question in common"):
        speeds(answers, {8: old})
    with pytest.raises(WorkbenchError, match="numbered"):
        write_answers(BenchReport({}, {}, [], {}), tmp_path, str)
