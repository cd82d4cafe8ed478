"""Problems whose answers a program checks: the same on every machine, each with its correct answer."""

from __future__ import annotations

import json
import re

import pytest

from workbench.bench.datasets import load_suite
from workbench.bench.prompts import BenchPrompt, groups_of
from workbench.bench.verifiable_problems import PROBLEMS_PER_GROUP, RECORDS, WORD_PROBLEMS, problems


def test_problems_are_determined_by_the_seed() -> None:
    found, other = list(problems()), list(problems(1))
    assert found == list(problems())
    assert [p.group for p in found] == [WORD_PROBLEMS] * PROBLEMS_PER_GROUP + [RECORDS] * PROBLEMS_PER_GROUP
    assert len({p.prompt for p in found} & {p.prompt for p in other}) < PROBLEMS_PER_GROUP
    assert groups_of(load_suite("answers")) == ["arithmetic", WORD_PROBLEMS, RECORDS]


def test_every_answer_follows_from_the_problem_text() -> None:
    """Sums use the problem's numbers in one or two operations; records use its fields and values."""
    for problem in problems():
        if problem.group == WORD_PROBLEMS:
            a, b, *c = map(int, re.findall(r"\d+", problem.prompt))
            assert int(problem.answer) in {a + b, a - b, a * b, *(a * b + more for more in c)}, problem.prompt
        else:
            said = re.findall(r"\w+", problem.prompt)
            assert all(str(x) in said for item in json.loads(problem.answer).items() for x in item), problem.prompt


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('```json\n{\n  "b": 2,\n  "a": 1\n}\n```', True),
        ('{"a": 1, "b": 2} and {"a": 3}', True),
        ('{"a": 1, "b": "2"}', False),
        ('{"a": 1, "b": 2', False),
        ("no object", False),
        ("", False),
    ],
)
def test_a_json_answer_is_right_in_any_order_and_with_text_around_it(text: str, right: bool) -> None:
    assert BenchPrompt("r", "As JSON", answer='{"a": 1, "b": 2}').is_right(text) is right
