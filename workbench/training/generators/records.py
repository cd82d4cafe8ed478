"""Generator tasks about JSON records: write a record from a description, read a field, reformat a record."""

from __future__ import annotations

import json
import random

from workbench.training.generators.base import Instance
from workbench.training.generators.lexicon import ANIMALS, CITIES, COLORS, FOODS, JOBS, NAMES

_FIELDS = {
    "name": NAMES,
    "city": CITIES,
    "job": JOBS,
    "pet": ANIMALS,
    "color": COLORS,
    "food": FOODS,
}

_WRITE = ["Write this record as JSON: {text}", "Turn this into JSON: {text}", "Make a JSON object from this: {text}"]


def make_record(rng: random.Random) -> dict[str, str | int]:
    """Generate a random record of three to five fields, the first of which is `name`."""
    optional = ["age", "id", *(name for name in _FIELDS if name != "name")]
    names = rng.sample(optional, rng.randint(2, 4))
    record: dict[str, str | int] = {"name": rng.choice(NAMES)}
    for name in names:
        if name == "age":
            record[name] = rng.randint(5, 90)
        elif name == "id":
            record[name] = rng.randint(100, 999)
        else:
            record[name] = rng.choice(_FIELDS[name])
    return record


def _plain(record: dict[str, str | int]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in record.items())


def make_json(rng: random.Random) -> Instance:
    """Generate a request to write a record, given in words or lines, as JSON, or the reverse, with the answer."""
    record = make_record(rng)
    dumped, plain = json.dumps(record), _plain(record)
    kind = rng.choice(["write", "write", "write", "indent", "plain"])
    if kind == "write":
        prompt, answer = rng.choice(_WRITE).format(text=plain), dumped
    elif kind == "indent":
        prompt, answer = f"Write this JSON over several lines: {dumped}", json.dumps(record, indent=2)
    else:
        prompt, answer = f"Write this JSON as a plain list of fields: {dumped}", plain
    return Instance("json", prompt, answer, dumped)


def make_extract(rng: random.Random) -> Instance:
    """Generate a request to return one or two fields of a JSON record, with the answer."""
    record = make_record(rng)
    dumped = json.dumps(record)
    names = list(record)
    if rng.random() < 0.6:
        field = rng.choice(names)
        prompt = f'What is the "{field}" in this JSON? {dumped}'
        answer = json.dumps({field: record[field]})
    else:
        fields = sorted(rng.sample(names, 2), key=names.index)
        prompt = f'Keep only "{fields[0]}" and "{fields[1]}" in this JSON: {dumped}'
        answer = json.dumps({name: record[name] for name in fields})
    return Instance("extract", prompt, answer, dumped)
