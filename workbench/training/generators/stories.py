"""Short simple-English stories with consistent characters.

A plot is a list of slots; a slot is a list of wordings of the same event. Names, pronouns, things and places are
drawn once per story, so that these words are the same from the first sentence to the last.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from workbench.training.generators.base import Instance
from workbench.training.generators.lexicon import ANIMALS, BOYS, COLORS, FOODS, GIRLS, PLACES, TOYS, WEATHER
from workbench.training.generators.plots import OPENINGS, PLOTS

_ADJECTIVES = ["little", "kind", "brave", "happy", "clever", "quiet", "young", "good"]


@dataclass(frozen=True)
class Story:
    """A story and its facts.

    Attributes:
        sentences: The story, one entry per slot of the plot.
        facts: Values of the placeholders in the plot's templates (names, things, places).
        plot: Name of the plot.
        key_slots: Indices of the sentences that summarise the plot (opening, problem, ending).
    """

    sentences: tuple[str, ...]
    facts: dict[str, str]
    plot: str
    key_slots: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return the story in two paragraphs."""
        middle = (len(self.sentences) + 1) // 2
        return " ".join(self.sentences[:middle]) + "\n\n" + " ".join(self.sentences[middle:])

    @property
    def key(self) -> str:
        """Return the text that identifies the story for the split: plot, characters and things, not the wording."""
        return "|".join([self.plot, *(self.facts[name] for name in ("hero", "friend", "color", "toy", "place"))])


def make_story(rng: random.Random) -> Story:
    """Generate a short story from a random plot with random characters, places and things."""
    hero_is_girl = rng.random() < 0.5
    friend_is_girl = rng.random() < 0.5
    hero = rng.choice(GIRLS if hero_is_girl else BOYS)
    friend = rng.choice([n for n in (GIRLS if friend_is_girl else BOYS) if n != hero])
    he, his, him = ("she", "her", "her") if hero_is_girl else ("he", "his", "him")
    facts = {
        "hero": hero,
        "friend": friend,
        "kid": "girl" if hero_is_girl else "boy",
        "friendkid": "girl" if friend_is_girl else "boy",
        "he": he,
        "He": he.capitalize(),
        "his": his,
        "His": his.capitalize(),
        "him": him,
        "adjective": rng.choice(_ADJECTIVES),
        "animal": rng.choice(ANIMALS),
        "color": rng.choice(COLORS),
        "toy": rng.choice(TOYS),
        "food": rng.choice(FOODS),
        "place": rng.choice(PLACES),
        "weather": rng.choice(WEATHER),
        "parent": rng.choice(["mother", "father"]),
    }
    plot = rng.choice(sorted(PLOTS))
    slots = PLOTS[plot]
    opening = rng.choice(OPENINGS)
    sentences = [opening, *(rng.choice(slot) for slot in slots)]
    filled = tuple(_articles(sentence.format(**facts)) for sentence in sentences)
    return Story(filled, facts, plot, (0, 2, len(filled) - 1))


def _articles(text: str) -> str:
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


_PROMPTS = [
    "Write a short story about {hero} and a {color} {toy}.",
    "Tell me a story about a {kid} called {hero} and a {color} {toy}.",
    "Write a story about {hero} and {friend}. Put a {color} {toy} in it.",
]


def make_story_instance(rng: random.Random) -> Instance:
    """Generate a request for a story together with one story that answers it."""
    story = make_story(rng)
    prompt = _articles(rng.choice(_PROMPTS).format(**story.facts))
    return Instance("story", prompt, story.text, story.key)


def check_story(instance: Instance, output: str) -> bool:
    """Return whether a story is complete and consistent.

    It must contain every name in the prompt and the requested thing, contain no other names, end with a full sentence
    and not repeat a sentence (except short pieces of direct speech).
    """
    names = set(GIRLS + BOYS)
    required = names & set(re.findall(r"[A-Z][a-z]+", instance.prompt))
    present = names & set(re.findall(r"[A-Z][a-z]+", output))
    thing = re.findall(rf"({'|'.join(COLORS)}) ({'|'.join(TOYS)})", instance.prompt)
    sentences = [s.strip() for s in re.split(r"(?<=[.!?\"])\s+", output.strip()) if len(s.strip()) > 24]
    return (
        required <= present
        and len(present) <= 2
        and all(" ".join(pair) in output for pair in thing)
        and len(sentences) >= 5
        and len(set(sentences)) == len(sentences)
        and output.strip().endswith((".", "!", '"'))
    )
