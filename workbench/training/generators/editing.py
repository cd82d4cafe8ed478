"""Generator tasks of copying, quoting, editing and extractive summaries: answers consist of text from the prompt."""

from __future__ import annotations

import random
import re

from workbench.training.generators.base import Instance
from workbench.training.generators.lexicon import NAMES, PLAIN_WORDS, SYLLABLES
from workbench.training.generators.stories import make_story

_ORDINALS = ["first", "second", "third"]
_COPY = ["Repeat this text:\n{text}", "Copy this text:\n{text}", "Say this again, word for word:\n{text}"]


def _nonsense(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))


def make_passage(rng: random.Random) -> str:
    """Generate text to copy: sentences, plain words, invented words, numbers or a mixture."""
    kind = rng.choice(["sentences", "sentences", "words", "nonsense", "numbers", "mixed"])
    if kind == "sentences":
        story = make_story(rng)
        start = rng.randrange(len(story.sentences) - 2)
        return " ".join(story.sentences[start : start + rng.randint(1, 3)])
    count = rng.randint(3, 14)
    if kind == "words":
        return " ".join(rng.choice(PLAIN_WORDS) for _ in range(count))
    if kind == "nonsense":
        return " ".join(_nonsense(rng) for _ in range(min(count, 8)))
    if kind == "numbers":
        return " ".join(str(rng.randint(0, 999)) for _ in range(min(count, 8)))
    makers = [lambda: rng.choice(PLAIN_WORDS), lambda: _nonsense(rng), lambda: str(rng.randint(0, 99))]
    return " ".join(rng.choice(makers)() for _ in range(count))


def make_copy(rng: random.Random) -> Instance:
    """Generate a request to repeat a text once, with the answer."""
    text = make_passage(rng)
    return Instance("copy", rng.choice(_COPY).format(text=text), text, text)


def make_repeat(rng: random.Random) -> Instance:
    """Generate a request to repeat a short text twice or three times, once per line, with the answer."""
    words = make_passage(rng).split()
    text = " ".join(words[: rng.randint(2, 7)])
    times = rng.choice([2, 3])
    prompt = f"Repeat this text {'twice' if times == 2 else 'three times'}:\n{text}"
    return Instance("repeat", prompt, "\n".join([text] * times), text)


def make_replace(rng: random.Random) -> Instance:
    """Generate a request to replace a word everywhere in a passage, with the answer."""
    story = make_story(rng)
    start = rng.randrange(len(story.sentences) - 2)
    text = " ".join(story.sentences[start : start + 2])
    candidates = sorted(
        {story.facts[k] for k in ("toy", "color", "animal", "place", "hero", "friend", "food")}
        & set(re.findall(r"\w+", text))
    )
    if not candidates:
        return make_replace(rng)
    old = rng.choice(candidates)
    pool = NAMES if old in NAMES else PLAIN_WORDS
    new = rng.choice([word for word in pool if word not in text])
    answer = re.sub(rf"\b{old}\b", new, text)
    return Instance("replace", f"Replace {old} with {new}:\n{text}", answer, f"{old}>{new}:{text}")


def make_quote(rng: random.Random) -> Instance:
    """Generate a request to quote one of the three sentences of a passage, with the answer."""
    story = make_story(rng)
    plain = [s for s in story.sentences if s.count(".") == 1 and '"' not in s and "!" not in s]
    if len(plain) < 3:
        return make_quote(rng)
    start = rng.randrange(len(plain) - 2)
    passage = plain[start : start + 3]
    index = rng.randrange(3)
    prompt = f"Copy the {_ORDINALS[index]} sentence:\n{' '.join(passage)}"
    return Instance("quote", prompt, passage[index], " ".join(passage))


def make_summary(rng: random.Random) -> Instance:
    """Generate a request to summarise a story, with the answer: the sentences of opening, problem and ending."""
    story = make_story(rng)
    answer = " ".join(story.sentences[i] for i in story.key_slots)
    prompt = f"Summarize this story with three of its sentences:\n{story.text}"
    return Instance("summary", prompt, answer, story.key)
