"""Suites of bundled prompts by kind of work (workload), for choosing a drafter. No bundled model was trained on them.

`workbench.training.workload_prompts` writes the file: held-out problems of the generators, and hand-written prompts.
Four kinds also exist in Spec-Bench: with a folder of data sets, the prompts of these kinds are Spec-Bench's questions.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workbench.bench.prompts import BenchPrompt, load_prompts

WORK = "work"
"""Name of the suite with the prompts of all kinds of work."""
FILE = Path(__file__).with_name("work.jsonl")
KINDS = {
    "copy-edit": "copy and edit",
    "summary": "summary with quotes",
    "retrieval": "answers from given texts",
    "refactoring": "code refactoring",
    "json": "JSON from text",
    "chat": "chat",
    "stories": "stories",
    "maths": "maths",
    "repeat": "text repeated three times",
}
"""Kinds of work with their descriptions; a kind is also the name of a suite and of its group of prompts."""
SPEC_BENCH_NAMES = {"summary": "summarization", "retrieval": "rag", "chat": "mt_bench", "maths": "math_reasoning"}
"""Kinds of work that also exist in Spec-Bench, with the names that Spec-Bench uses."""


def bundled_prompts(name: str) -> list[BenchPrompt]:
    """Return the bundled prompts of one kind of work, or of all kinds.

    Args:
        name: `WORK`, or one of `KINDS`.
    """
    prompts = load_prompts(FILE)
    return [prompt for kind in KINDS for prompt in prompts if prompt.group == kind and name in (WORK, kind)]


def with_spec_bench(name: str, questions: list[BenchPrompt]) -> list[BenchPrompt]:
    """Return the prompts of one kind or of all kinds, with Spec-Bench's questions for the kinds that Spec-Bench has.

    Args:
        name: one of `KINDS`, or `WORK` for all kinds.
        questions: Spec-Bench's questions.
    """
    kind_of_group = {group: kind for kind, group in SPEC_BENCH_NAMES.items()}
    external = [replace(q, group=kind_of_group[q.group]) for q in questions if q.group in kind_of_group]
    internal = [prompt for prompt in bundled_prompts(WORK) if prompt.group not in SPEC_BENCH_NAMES]
    return [p for kind in KINDS for p in (*external, *internal) if p.group == kind and name in (WORK, kind)]
