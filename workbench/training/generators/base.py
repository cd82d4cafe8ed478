"""Generator tasks: seeded sources of (prompt, answer) pairs whose right answer is known.

A hash of an instance's content assigns the instance to the *train* or *held-out* split, so the same problem is always
in the same split, whatever the seed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workbench.models.chat_markers import ASSISTANT, END, USER

HELD_OUT_PERCENT = 4


@dataclass(frozen=True)
class Instance:
    """One problem with its known answer.

    Attributes:
        task: Name of the instance's task.
        prompt: User message.
        answer: The one right answer (for stories: one good answer).
        key: Text that identifies the problem; a hash of the text determines the split.
    """

    task: str
    prompt: str
    answer: str
    key: str

    @property
    def held_out(self) -> bool:
        """Return whether this problem belongs to the held-out split."""
        return is_held_out(self.key)

    def render(self) -> str:
        """Return the problem with its answer as one training document in the chat format."""
        return f"{USER}{self.prompt}{ASSISTANT}{self.answer}{END}"


@dataclass(frozen=True)
class Task:
    """A generator task: makes problems with known answers, and checks answers.

    Attributes:
        name: Registry name of the task.
        make: Function that generates one instance from a random generator.
        check: Function that returns whether an output answers an instance; exact match unless the task is open-ended.
        share: Share of the generator tokens in the training mixture.
        goal: Desired exact-match rate; 0: none.
    """

    name: str
    make: Callable[[random.Random], Instance]
    check: Callable[[Instance, str], bool]
    share: float
    goal: float = 0.0

    def draw(self, rng: random.Random, *, held_out: bool) -> Instance:
        """Generate problems until one belongs to the requested split (training or held-out), and return it."""
        while True:
            instance = self.make(rng)
            if instance.held_out == held_out:
                return instance

    def stream(self, seed: int, *, held_out: bool) -> Iterator[Instance]:
        """Yield an endless, reproducible stream of problems from one split (training or held-out)."""
        rng = random.Random(f"{self.name}/{seed}/{held_out}")
        while True:
            yield self.draw(rng, held_out=held_out)


def is_held_out(key: str) -> bool:
    """Return whether a problem is held out of training.

    The task is not part of the hash: a story that is held out as a story is also held out as a text to summarise.

    >>> is_held_out("12+34") == is_held_out("12+34")
    True
    """
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def is_exact_match(instance: Instance, output: str) -> bool:
    """Return whether an output is exactly the answer, apart from white space at the ends."""
    return output.strip() == instance.answer.strip()
