"""Problems whose answers a program checks: small word problems, and records to be written or read as JSON.

The problems show how many answers remain right under approximate verifiers, whose text may differ from the target's. A
seeded random generator fills in the templates, so that numbers and names are the same on every machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from workbench.bench.prompts import ARITHMETIC, BenchPrompt, load_prompts

WORD_PROBLEMS, RECORDS = "word problems", "records"
PROBLEMS_PER_GROUP = 24
"""Number of problems of each group: word problems, and JSON records."""
FEW_SHOT_EXAMPLES: dict[str, tuple[str, ...]] = {
    WORD_PROBLEMS: (
        "Anna has 6 pears. Leo gives Anna 3 more pears. How many pears does Anna have now?",
        "6 + 3 = 9. The answer is 9.",
        "There are 4 bags with 5 nuts in each bag. How many nuts are there in total?",
        "4 * 5 = 20. The answer is 20.",
        "Finn had 8 balls and lost 2 of them. How many balls are left?",
        "8 - 2 = 6. The answer is 6.",
    ),
    RECORDS: (
        "Write this record as JSON: name: Anna, age: 31, color: red",
        '{"name": "Anna", "age": 31, "color": "red"}',
        'What is the "color" in this JSON? {"name": "Leo", "age": 64, "color": "blue"}',
        '{"color": "blue"}',
    ),
}
"""Example conversations before a problem, which show how short an answer should be."""
_NAMES = ("Mia", "Tom", "Nora", "Ben", "Lucy", "Sam", "Rosa", "Paul", "Ella", "Jack")
_THINGS = ("apples", "books", "pencils", "marbles", "stickers", "coins", "shells", "cards")
_FIELDS: dict[str, tuple[str, ...]] = {
    "city": ("Oslo", "Paris", "Rome", "Madrid", "Vienna", "Lisbon"),
    "job": ("teacher", "baker", "pilot", "nurse", "painter", "farmer"),
    "pet": ("dog", "cat", "rabbit", "horse", "goat", "duck"),
}


def all_problems() -> list[BenchPrompt]:
    """Return all problems with checked answers: arithmetic problems, word problems and JSON records."""
    return [*load_prompts(ARITHMETIC), *problems()]


def problems(seed: int = 0) -> Iterator[BenchPrompt]:
    """Yield all problems: `PROBLEMS_PER_GROUP` of each group; the templates of a group take turns.

    Args:
        seed: seed of names and numbers.
    """
    for group, templates in ((WORD_PROBLEMS, WORD_PROBLEM_TEMPLATES), (RECORDS, RECORD_TEMPLATES)):
        rng = random.Random(f"{group}/{seed}")
        for i in range(PROBLEMS_PER_GROUP):
            prompt, answer = templates[i % len(templates)](rng)
            yield BenchPrompt(
                f"{group}-{i + 1}", prompt, group, chat=True, before=FEW_SHOT_EXAMPLES[group], answer=answer
            )


Template = Callable[[random.Random], tuple[str, str]]
"""Type of a function that makes a problem from a random generator: it returns user message and right answer."""


def _here_and_there(rng: random.Random) -> tuple[str, str]:
    things, a, b = rng.choice(_THINGS), rng.randint(2, 9), rng.randint(2, 9)
    question = f"There are {a} {things} on the table and {b} {things} in the bag. How many {things} are there in total?"
    return question, str(a + b)


def _lost(rng: random.Random) -> tuple[str, str]:
    name, things, b, rest = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(2, 5), rng.randint(2, 6)
    return f"{name} had {rest + b} {things} and lost {b} of them. How many {things} are left?", str(rest)


def _boxes(rng: random.Random) -> tuple[str, str]:
    things, a, b = rng.choice(_THINGS), rng.randint(2, 10), rng.randint(2, 9)
    return f"There are {b} boxes with {a} {things} in each box. How many {things} are there in total?", str(a * b)


def _price(rng: random.Random) -> tuple[str, str]:
    name, things, a, b = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(2, 9), rng.randint(2, 6)
    return f"{name} buys {b} {things} for {a} dollars each. How many dollars does {name} pay in total?", str(a * b)


def _days(rng: random.Random) -> tuple[str, str]:
    name, a, b = rng.choice(_NAMES), rng.randint(2, 10), rng.randint(2, 7)
    return f"{name} reads {a} pages every day. How many pages does {name} read in {b} days?", str(a * b)


def _and_more(rng: random.Random) -> tuple[str, str]:
    name, item, a, b = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(2, 6), rng.randint(2, 5)
    c = rng.randint(2, 9)
    text = f"{name} has {b} boxes with {a} {item} in each box, and {c} more {item}. How many {item} does {name} have?"
    return text, str(a * b + c)


WORD_PROBLEM_TEMPLATES: tuple[Template, ...] = (_here_and_there, _lost, _boxes, _price, _days, _and_more)


def _record(rng: random.Random) -> dict[str, str | int]:
    field = rng.choice(sorted(_FIELDS))
    return {"name": rng.choice(_NAMES), "age": rng.randint(18, 80), field: rng.choice(_FIELDS[field])}


def _write(rng: random.Random) -> tuple[str, str]:
    record = _record(rng)
    plain = ", ".join(f"{field}: {value}" for field, value in record.items())
    return f"Write this record as JSON: {plain}", json.dumps(record)


def _read(rng: random.Random) -> tuple[str, str]:
    record = _record(rng)
    field = rng.choice(list(record))
    return f'What is the "{field}" in this JSON? {json.dumps(record)}', json.dumps({field: record[field]})


def _extract_record(rng: random.Random) -> tuple[str, str]:
    name, age, city = rng.choice(_NAMES), rng.randint(18, 80), rng.choice(_FIELDS["city"])
    question = f'{name} is {age} years old and lives in {city}. Write "name", "age" and "city" as JSON.'
    return question, json.dumps({"name": name, "age": age, "city": city})


RECORD_TEMPLATES: tuple[Template, ...] = (_write, _read, _extract_record)
