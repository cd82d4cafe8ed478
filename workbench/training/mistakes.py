"""Answers that are right, and the same made wrong in one place: what a judge of drafts learns from.

Right answers come from the generators, whose answers are known, and from rows of the public training text. A mistake is
a number replaced by another one of as many digits, a word replaced by one of another answer, or an end before the
answer has been given. Where a program can check the answer, a mistake that it does not notice is none. What a draft
model would put in the place of a right token is a mistake where the answer can have no other: see `is_wrong`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from workbench.core.errors import ParameterError
from workbench.engine.markers import ASSISTANT, END, USER
from workbench.training.corpus import row_held_out
from workbench.training.generators import TASKS, Instance, exact
from workbench.training.sources import SOURCES

NUMBER, WORD, CUT, DRAFTED = "number", "word", "end", "drafted"
KINDS = (NUMBER, WORD, CUT, DRAFTED)
TRIES = 8
"""Mistakes that are made up for each that is wanted, at most."""
_NUMBERS, _WORDS, _CUTS = re.compile(r"\d+"), re.compile(r"[A-Za-z]{3,}"), re.compile(r"(?<=[^\s.!?:]) (?=\S)")


@dataclass(frozen=True, slots=True)
class Mistake:
    """An answer with a mistake in it.

    Attributes:
        kind: one of `KINDS`, but for `DRAFTED`.
        text: the answer; of `CUT` what stands before the end.
        begin: first character that is wrong.
        end: behind the last one; equal to `begin` where the end itself is wrong.
    """

    kind: str
    text: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Graded:
    """A right answer, and the same with mistakes.

    Attributes:
        group: task or group of training text.
        prompt: what the user says.
        answer: the right one.
        mistakes: one in each.
    """

    group: str
    prompt: str
    answer: str
    mistakes: tuple[Mistake, ...]


def another_number(answer: str, rng: random.Random) -> Mistake | None:
    """One of its numbers replaced by another of as many digits.

    >>> another_number("4 + 4 = 8", random.Random(1))
    Mistake(kind='number', text='9 + 4 = 8', begin=0, end=1)
    """
    found = list(_NUMBERS.finditer(answer))
    if not found:
        return None
    at = rng.choice(found)
    n, old = len(at[0]), int(at[0])
    new = rng.choice(range(10 ** (n - 1) if n > 1 else 0, 10**n))
    if new == old:
        new = new - 1 if new % 10 else new + 1
    return _replaced(NUMBER, answer, at, f"{new:0{n}}")


def another_word(answer: str, words: Sequence[str], rng: random.Random) -> Mistake | None:
    """One of its words replaced by one of `words`, as small or capital as it was."""
    found = list(_WORDS.finditer(answer))
    if not found or not words:
        return None
    at, new = rng.choice(found), rng.choice(words)
    if new.lower() == at[0].lower():
        return None
    return _replaced(WORD, answer, at, new[0].upper() + new[1:] if at[0][0].isupper() else new[0].lower() + new[1:])


def cut_off(answer: str, rng: random.Random) -> Mistake | None:
    """It ends within a sentence."""
    found = list(_CUTS.finditer(answer))
    if not found:
        return None
    at = rng.choice(found).start()
    return Mistake(CUT, answer[:at], at, at)


def is_wrong(group: str, rest: str, drafted: str, ends: bool) -> bool:
    """Whether a drafted token is wrong where the right answer goes on otherwise, as far as that is certain.

    It is in answers that can be given in one way, and of a digit in the place of another one.

    Args:
        group: the answer's.
        rest: of the right answer, from that place on.
        drafted: text of the token.
        ends: whether the token ends the answer.

    >>> is_wrong("maths", "12 apples", "3", False), is_wrong("maths", "12 apples", "1", False)
    (True, False)
    """
    if ends or rest.startswith(drafted):
        return bool(rest) and ends
    own, other = rest.lstrip()[:1], drafted.strip()
    return (group in TASKS and TASKS[group].check is exact) or (own.isdigit() and other.isdigit())


def _replaced(kind: str, answer: str, at: re.Match[str], new: str) -> Mistake:
    return Mistake(kind, answer[: at.start()] + new + answer[at.end() :], at.start(), at.start() + len(new))


def graded(
    groups: Sequence[str], data: Path, count: int, mistakes: int, seed: int, held_out: bool
) -> dict[str, list[Graded]]:
    """Right answers with mistakes, by group.

    Args:
        groups: names of generators' tasks, and of groups of the public training text.
        data: folder of that text.
        count: answers of each group, at most.
        mistakes: in each answer, of all kinds by turns, at most.
        seed: of problems and mistakes.
        held_out: whether they are of those that are kept out of all training.

    Raises:
        ParameterError: there is no such group, or no file with its text.
    """
    found = {}
    for group in groups:
        if group in TASKS:
            pairs: list[tuple[str, str, Callable[[str], bool]]] = [
                (i.prompt, i.answer, _checked(i)) for i in islice(TASKS[group].stream(seed, held_out=held_out), count)
            ]
        else:
            pairs = list(islice(_of_text(group, data, seed, held_out), count))
        words = [word for _, answer, _ in pairs for word in _WORDS.findall(answer)]
        rng = random.Random(f"mistakes/{group}/{seed}/{held_out}")
        found[group] = [
            Graded(group, prompt, answer, _made_wrong(answer, words, mistakes, is_right, rng))
            for prompt, answer, is_right in pairs
        ]
    return found


def _made_wrong(
    answer: str, words: Sequence[str], n: int, is_right: Callable[[str], bool], rng: random.Random
) -> tuple[Mistake, ...]:
    made: dict[str, Mistake] = {}
    makers = (
        lambda: another_number(answer, rng),
        lambda: another_word(answer, words, rng),
        lambda: cut_off(answer, rng),
    )
    first = rng.randrange(len(makers))
    for i in range(TRIES * n):
        mistake = makers[(first + i) % len(makers)]()
        if mistake is not None and len(made) < n and not is_right(mistake.text):
            made.setdefault(mistake.text, mistake)
    return tuple(made.values())


def _checked(instance: Instance) -> Callable[[str], bool]:
    task: Any = TASKS[instance.task]
    return lambda text: task.check(instance, text)


def _of_text(group: str, data: Path, seed: int, held_out: bool) -> Iterator[tuple[str, str, Callable[[str], bool]]]:
    """First questions and answers of a group's rows; nobody checks them, and any mistake counts."""
    sources = [source for source in SOURCES if source.group == group]
    if not sources:
        names = ", ".join([*TASKS, *sorted({source.group for source in SOURCES})])
        raise ParameterError(f"There is no group {group!r} of answers.", f"There are: {names}.")
    rows = [(s, row) for s in sources for row in s.rows(data) if row_held_out(row) is held_out]
    if not rows:
        raise ParameterError(
            f"{data} holds no text of the group {group}.", "Give its folder with data=…, or generators' tasks alone."
        )
    random.Random(f"mistakes/{group}/{seed}").shuffle(rows)
    for source, row in rows:
        for document in source.documents(row):
            prompt, _, rest = document.removeprefix(USER).partition(ASSISTANT)
            if document.startswith(USER) and (answer := rest.partition(END)[0].strip()):
                yield prompt.strip(), answer, lambda text, right=answer: text.strip() == right
