"""Generator tasks of sorting words and two-digit numbers."""

from __future__ import annotations

import random

from workbench.training.generators.base import Instance
from workbench.training.generators.lexicon import SORT_WORDS


def make_sort_words(rng: random.Random) -> Instance:
    """Generate a request to sort three to six words with different first letters, with the answer."""
    count = rng.randint(3, 6)
    words: list[str] = []
    for word in rng.sample(SORT_WORDS, len(SORT_WORDS)):
        if word[0] not in {other[0] for other in words}:
            words.append(word)
        if len(words) == count:
            break
    backwards = rng.random() < 0.3
    order = "from Z to A" if backwards else "from A to Z"
    ordered = sorted(words, reverse=backwards)
    prompt = rng.choice(["Sort these words {}: {}", "Put these words in order {}: {}"]).format(order, ", ".join(words))
    return Instance("sort_words", prompt, "Sorted: " + ", ".join(ordered), " ".join(sorted(words)))


def make_sort_numbers(rng: random.Random) -> Instance:
    """Generate a request to sort three to five different two-digit numbers, with the answer."""
    numbers = rng.sample(range(10, 100), rng.randint(3, 5))
    backwards = rng.random() < 0.3
    order = "largest to smallest" if backwards else "smallest to largest"
    text = ", ".join(map(str, numbers))
    prompt = f"Sort these numbers from {order}: {text}"
    answer = "Sorted: " + ", ".join(map(str, sorted(numbers, reverse=backwards)))
    return Instance("sort_numbers", prompt, answer, " ".join(map(str, sorted(numbers))))
