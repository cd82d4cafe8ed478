"""The bundled prompts by workload: held-out problems of the generators, and hand-written prompts.

`bench/work.jsonl` is the output of `render_prompts`, so that `workbench.bench` does not need `workbench.training`;
`workbench docs` writes it.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from workbench.training.generators import TASKS, Instance, Story, is_held_out, make_story
from workbench.training.generators.lexicon import CITIES, FOODS, JOBS, NAMES, TOYS
from workbench.training.generators.records import make_record

FILE = Path(__file__).resolve().parents[1] / "bench" / "work.jsonl"
SEED, N = 18, 8
"""Seed of the generated workload prompts, and number of prompts of each kind of work."""
CHAT = (
    "What is a good way to learn the names of the stars?",
    "My neighbour plays loud music at night. What should I say to her?",
    "Plan a quiet Sunday for a family with two small children.",
    "Why do leaves turn yellow in autumn?",
    "I have onions, eggs and old bread. What can I cook?",
    "Explain to a ten-year-old how a bicycle stays up.",
    "Give me four ideas for a birthday present for my grandfather.",
    "Is it better to study in the morning or in the evening?",
)
"""Chat messages as workload prompts, written for this project."""
_STORY_FACTS = ("animal", "toy", "food", "place", "friend")
"""Facts of a generated story that a retrieval prompt may ask about."""


def render_prompts() -> str:
    """Return all workload prompts as JSON Lines, which `workbench.bench.prompts.load_prompts` reads."""
    lines = list[str]()
    for kind, makers in MAKERS.items():
        rng = random.Random(f"{kind}/{SEED}")
        for i in range(N):
            prompt = makers[i % len(makers)](rng)
            lines.append(prompt_line(f"{kind}-{i + 1}", kind, prompt))
    return "".join([*lines, *(prompt_line(f"chat-{i + 1}", "chat", prompt) for i, prompt in enumerate(CHAT))])


def prompt_line(name: str, group: str, prompt: str, chat: bool = True) -> str:
    """Return a workload prompt as one line of JSON with the fields of `workbench.bench.prompts.BenchPrompt`."""
    line = {"name": name, "group": group, "chat": chat, "prompt": prompt}
    return f"{json.dumps(line, ensure_ascii=False)}\n"


def _task(name: str) -> Callable[[random.Random], str]:
    """Return a function (random generator) → a held-out prompt of the generator task `name`."""
    return lambda rng: _held_out(name, rng).prompt


def _held_out(name: str, rng: random.Random) -> Instance:
    return TASKS[name].draw(rng, held_out=True)


def _story(rng: random.Random) -> Story:
    return next(story for story in iter(lambda: make_story(rng), None) if is_held_out(story.key))


def _sentences(rng: random.Random, n: int) -> str:
    story = _story(rng)
    start = rng.randrange(len(story.sentences) - n)
    return " ".join(story.sentences[start : start + n])


# -- prompts for which the generators have no task ---------------------------------------------------------------------


def _repeat_prompt(rng: random.Random) -> str:
    return f"Write the same again three times, word for word:\n{_sentences(rng, 2)}"


def _rename_hero_prompt(rng: random.Random) -> str:
    """Return a prompt to rename the hero throughout a story."""
    story = _story(rng)
    new = rng.choice([name for name in NAMES if name not in story.text])
    return f"Replace {story.facts['hero']} with {new}:\n{story.text}"


def _two_texts_prompt(rng: random.Random) -> str:
    """Return a prompt with two texts and a question that sentences of one of the texts answer."""
    story, other_story = (_story(rng) for _ in range(2))
    words = [w for w in _words(other_story) if not re.search(rf"\b{w}\b", story.text)]
    texts = [story.text, other_story.text] if rng.random() < 0.5 else [other_story.text, story.text]
    if not words:
        return _two_texts_prompt(rng)
    question = f"What does the text say about {rng.choice(words)}? Answer with sentences of the text."
    return "\n\n".join([*(t.replace("\n\n", " ") for t in texts), f"Question: {question}"])


def _words(story: Story) -> Iterator[str]:
    facts = dict.fromkeys(story.facts[name] for name in _STORY_FACTS)
    return (word for word in facts if re.search(rf"\b{word}\b", story.text))


def _records_prompt(rng: random.Random) -> str:
    records = list({r["name"]: r for r in itertools.islice(_records(rng), 5)}.values())
    lines = "\n".join(map(json.dumps, records))
    return f"{lines}\nQuestion: What is known of {rng.choice(records)['name']}? Answer with the whole record."


def _records(rng: random.Random) -> Iterator[dict[str, str | int]]:
    return (record for record in iter(lambda: make_record(rng), None) if is_held_out(json.dumps(record)))


def _to_json(rng: random.Random) -> str:
    return next(p for p in iter(lambda: _task("json")(rng), None) if not p.startswith("Write this JSON"))


def _record_prompt(rng: random.Random) -> str:
    """Return a prompt to write a record, given in sentences, as JSON."""
    name, job, city, food = (rng.choice(pool) for pool in (NAMES, JOBS, CITIES, FOODS))
    sentences = f"{name} is {rng.randint(18, 80)} years old and works as a {job} in {city}. {name} likes {food} best."
    return f"{sentences}\nWrite this as JSON with name, age, job, city and food."


def _rename_function_prompt(rng: random.Random) -> str:
    """Return a prompt to rename one of two functions."""
    code = _functions(rng)
    old = re.findall(r"def (\w+)\(", code)[0]
    return f"Rename {old} to {rng.choice(_NAMES_OF_CODE)}_{old} in this code and leave the rest:\n{code}"


def _with_types(rng: random.Random) -> str:
    return f"Add type hints to this Python code and leave the rest:\n{_functions(rng)}"


def _functions(rng: random.Random) -> str:
    first = _held_out("code", rng)
    second = next(candidate for candidate in iter(lambda: _held_out("code", rng), None) if candidate.key != first.key)
    return f"{first.answer}\n\n\n{second.answer}"


_NAMES_OF_CODE = ("get", "find", "make", "new", "safe")


def _word_problem_prompt(rng: random.Random) -> str:
    giver, receiver = rng.sample(NAMES, 2)
    item, b, c = rng.choice([toy for toy in TOYS if toy != "box"]), rng.randint(3, 15), rng.randint(2, 6)
    return (
        f"{giver} has {b + c * rng.randint(3, 9)} {item}s and gives {b} of them to {receiver}. Then {giver} packs the "
        f"rest into {c} boxes. How many {item}s does {giver} have left, and how many go into each box? "
        "Show the steps."
    )


MAKERS: dict[str, tuple[Callable[[random.Random], str], ...]] = {
    "copy-edit": (_rename_hero_prompt, _task("replace"), _task("copy"), _rename_hero_prompt),
    "summary": (_task("summary"), _task("summary"), _task("quote")),
    "retrieval": (_two_texts_prompt, _records_prompt),
    "refactoring": (_rename_function_prompt, _with_types),
    "json": (_record_prompt, _to_json, _task("extract")),
    "stories": (_task("story"),),
    "maths": (_word_problem_prompt, _task("addition"), _task("multiplication"), _task("subtraction")),
    "repeat": (_repeat_prompt, _repeat_prompt, _task("repeat")),
}
"""Functions that generate prompts, by kind of work (chat messages are in `CHAT`); a kind's functions take turns."""
