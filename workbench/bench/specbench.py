"""Spec-Bench's answer files, JSON Lines: reading and writing.

An answer is a line `{"question_id", "category", "answer_id", "model_id", "choices": [{"index", "turns",
"decoding_steps", "new_tokens", "wall_time", "accept_lengths"}], "tstamp"}`: one entry per turn in each list of a
choice, one choice per repetition, and `accept_lengths` are the tokens of every round of all turns, including the
corrected or bonus token. `datasets` reads the questions (suite `spec-bench`). Source: Xia et al. 2024,
arXiv:2401.07851, github.com/hemingkx/Spec-Bench, evaluation/eval.py and speed.py.

Speed-ups are those of `workbench.trace.speedup`: a question is a prompt, a choice a repeat. Spec-Bench's own speed-up
is reported too, under its name: total tokens / total time of the first choices, divided by the baseline's quotient. Its
speed.py counts a method's generated tokens, but tokenises the baseline's text again to count its tokens; here both
counts are those in the files.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.bench.datasets import MT_BENCH
from workbench.bench.markdown import format_value, markdown_table
from workbench.bench.report import BenchReport
from workbench.bench.statistics import share
from workbench.core.errors import WorkbenchError, system_reason
from workbench.trace.files import read_regular, write_atomically
from workbench.trace.speedup import speedup

_REMEDY = "Give answer files of Spec-Bench: JSON Lines with question_id, model_id and choices."


def write_answers(report: BenchReport, folder: Path, decode: Callable[[list[int]], str]) -> list[Path]:
    """Write a Spec-Bench answer file for every method of a report, named after model and method; return the paths.

    Args:
        report: report of a suite with numbered questions; questions with no run of any turn are left out.
        folder: folder of the files; created if it is missing.
        decode: converts token ids to text.

    Raises:
        WorkbenchError: no run belongs to a numbered question, or the files cannot be written.
    """
    methods: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in report.runs:
        if run["question"] is not None:
            methods[run["contender"]][run["question"]].append(run)
    if not methods:
        raise WorkbenchError(
            "Spec-Bench's answer files need numbered questions, and this suite has none.",
            "Use a suite such as spec-bench.",
        )
    model = str(report.settings.get("target") or "model")
    paths = []
    for method, questions in methods.items():
        name = re.sub(r"[^\w.-]+", "-", f"{Path(model).name}-{method}-{report.settings.get('dtype')}")
        lines = [_answer(number, runs, name, decode) for number, runs in questions.items()]
        path = folder / f"{name}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode())
        except OSError as error:
            raise WorkbenchError(
                f"{path} cannot be written: {system_reason(error)}.", "Choose another folder."
            ) from None
        paths.append(path)
    return paths


def _answer(number: int, runs: list[dict[str, Any]], model: str, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    choices = []
    for index in sorted({run["repeat"] for run in runs}):
        turns = sorted((run for run in runs if run["repeat"] == index), key=lambda run: run["turn"])
        choices.append(
            {
                "index": index,
                "turns": [decode(run["token_ids"]) for run in turns],
                "decoding_steps": [run["rounds"] for run in turns],
                "new_tokens": [run["tokens"] for run in turns],
                "wall_time": [run["seconds"] for run in turns],
                "accept_lengths": [n for run in turns for n in run["steps"]],
            }
        )
    return {
        "question_id": number,
        "category": runs[0]["category"] or runs[0]["group"],
        "answer_id": uuid.uuid4().hex,
        "model_id": model,
        "choices": choices,
        "tstamp": time.time(),
    }


def read_answers(path: Path) -> dict[int, dict[str, Any]]:
    """Read a Spec-Bench answer file; return the answers by question number, the last one if a question has several.

    Raises:
        WorkbenchError: the file cannot be read, or a line is not an answer.
    """
    try:
        lines = read_regular(path).decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        raise WorkbenchError(f"{path} cannot be read: {reason}.", _REMEDY) from None
    answers: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            answer = _parse(line)
            if answer is None:
                raise WorkbenchError(f"Line {number} of {path} is not a Spec-Bench answer.", _REMEDY)
            answers[answer["question_id"]] = answer
    if not answers:
        raise WorkbenchError(f"{path} contains no answers.", _REMEDY)
    return answers


def _parse(line: str) -> dict[str, Any] | None:
    try:
        answer = json.loads(line)
        for choice in answer["choices"]:
            choice["new_tokens"], choice["wall_time"] = map(list, (choice["new_tokens"], choice["wall_time"]))
            choice["accept_lengths"] = [int(n) for n in choice.get("accept_lengths", [])]
            if not all(n >= 0 for n in choice["new_tokens"]) or not all(s > 0 for s in choice["wall_time"]):
                return None
        return answer | {"question_id": int(answer["question_id"]), "category": str(answer["category"])}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def speeds(answers: dict[int, dict[str, Any]], baseline: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the speed of one answer file relative to another: a row per Spec-Bench category, then a row for all.

    Only questions that both files answer count.

    Returns:
        Rows with category, questions, mean_accepted (mean of accept_lengths; None if the file has none),
        tokens_per_second and baseline_tokens_per_second (total tokens / total time), speedup (an `Estimate`), and
        spec_bench_speedup (tokens_per_second / baseline_tokens_per_second).

    Raises:
        WorkbenchError: the files share no question.
    """
    shared = [number for number in answers if number in baseline]
    if not shared:
        raise WorkbenchError("The files have no question in common.", "Give answers to the same questions.")
    groups: dict[str, list[int]] = defaultdict(list)
    for number in shared:
        category = answers[number]["category"]
        groups["mt_bench" if category in MT_BENCH else category].append(number)
    rows = [_speed(name, numbers, answers, baseline) for name, numbers in groups.items()]
    return rows if len(rows) == 1 else [*rows, _speed("overall", shared, answers, baseline)]


def _speed(category: str, numbers: Sequence[int], answers: Any, baseline: Any) -> dict[str, Any]:
    steps = [n for number in numbers for choice in answers[number]["choices"] for n in choice["accept_lengths"]]
    rate, baseline_rate = (_first_choice(side, numbers) for side in (answers, baseline))
    return {
        "category": category,
        "questions": len(numbers),
        "mean_accepted": share(sum(steps), len(steps)),
        "tokens_per_second": rate,
        "baseline_tokens_per_second": baseline_rate,
        "speedup": speedup(_rates(answers, numbers), _rates(baseline, numbers)),
        "spec_bench_speedup": share(rate, baseline_rate),
    }


def _rates(side: Any, numbers: Sequence[int]) -> dict[tuple[int, int], float]:
    """Return the tokens per second over all turns of each answer, by (question, index of the repetition)."""
    return {
        (number, index): sum(choice["new_tokens"]) / sum(choice["wall_time"])
        for number in numbers
        for index, choice in enumerate(side[number]["choices"])
        if choice["wall_time"]
    }


def _first_choice(side: Any, numbers: Sequence[int]) -> float:
    """Return total tokens / total time of the answers' first repetitions, as Spec-Bench's speed.py does."""
    first = [side[number]["choices"][0] for number in numbers]
    return sum(sum(c["new_tokens"]) for c in first) / sum(sum(c["wall_time"]) for c in first)


COLUMNS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "category": lambda r: r["category"],
    "questions": lambda r: r["questions"],
    "mean accepted": lambda r: format_value(r["mean_accepted"], ".2f"),
    "tokens/s": lambda r: format_value(r["tokens_per_second"], ".1f"),
    "baseline tokens/s": lambda r: format_value(r["baseline_tokens_per_second"], ".1f"),
    "speed-up [95 %]": lambda r: r["speedup"] or "–",
    "Spec-Bench's speed-up, from total tokens and time": lambda r: format_value(r["spec_bench_speedup"], ".2f"),
}


def speeds_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the speeds of an answer file relative to another one (rows of `speeds`) as a Markdown table."""
    return markdown_table(COLUMNS, rows) + "\n"
