"""Generators of training text: correct answers, reproducible by seed, held-out problems never in the mixture."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from workbench.training.generators import TASKS, mixture


@pytest.mark.parametrize("name", TASKS)
def test_checker_accepts_its_own_answer(name: str) -> None:
    task = TASKS[name]
    for held_out in (False, True):
        for instance in islice(task.stream(3, held_out=held_out), 100):
            assert task.check(instance, instance.answer)


@pytest.mark.parametrize("name", TASKS)
def test_checker_rejects_corrupted_answers(name: str) -> None:
    task = TASKS[name]
    for instance in islice(task.stream(4, held_out=True), 50):
        half = instance.answer[: len(instance.answer) // 3]
        assert not task.check(instance, half)
        assert not task.check(instance, instance.answer.replace("\n", " ").split(" ", 1)[-1][::-1])


def test_story_checker_rejects_a_new_character_and_a_repetition() -> None:
    instance = next(TASKS["story"].stream(5, held_out=True))
    stranger = "Tim" if "Tim" not in instance.answer else "Rosa"
    assert not TASKS["story"].check(instance, instance.answer + f" Then {stranger} and Paul and Kate came in.")
    last = next(line for line in instance.answer.replace("\n\n", " ").split(". ") if len(line) > 30)
    assert not TASKS["story"].check(instance, f"{instance.answer} {last}. {last}.")


@pytest.mark.parametrize("name", TASKS)
def test_seed_reproduces(name: str) -> None:
    first, again, other = (list(islice(TASKS[name].stream(s, held_out=False), 20)) for s in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", TASKS)
def test_split_is_disjoint(name: str) -> None:
    train = {instance.key for instance in islice(TASKS[name].stream(0, held_out=False), 400)}
    held = {instance.key for instance in islice(TASKS[name].stream(0, held_out=True), 100)}
    assert not train & held


def test_held_out_prompts_never_reach_the_mixture() -> None:
    held = {instance.render() for task in TASKS.values() for instance in islice(task.stream(0, held_out=True), 60)}
    assert not held & {document for _, document in islice(mixture(0), 3000)}


def test_mixture_follows_the_shares() -> None:
    written = dict.fromkeys(TASKS, 0)
    for name, document in islice(mixture(1), 6000):
        written[name] += len(document)
    total = sum(written.values())
    assert sum(task.share for task in TASKS.values()) == pytest.approx(1.0)
    for name, task in TASKS.items():
        assert written[name] / total == pytest.approx(task.share, abs=0.02)


def test_worked_sums_are_right() -> None:
    for instance in islice(TASKS["addition"].stream(2, held_out=False), 200):
        left, right = instance.answer.rsplit("Answer: ", 1)[1].split(" = ")
        a, b = map(int, left.split(" + "))
        assert a + b == int(right)


def test_json_answers_parse() -> None:
    for instance in islice(TASKS["extract"].stream(2, held_out=False), 100):
        assert isinstance(json.loads(instance.answer), dict)


def test_code_answers_run_and_their_examples_hold() -> None:
    for instance in islice(TASKS["code"].stream(2, held_out=False), 200):
        definition, example = instance.answer.split("# Example: ")
        space: dict[str, object] = {}
        exec(definition, space)
        call, value = example.split(" returns ")
        assert eval(call, space) == eval(value)
