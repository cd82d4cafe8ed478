"""Generate questions about a scene, with answers derived from its geometry.

Every answer has three styles: `plain`, the style of the bundled target, and two paraphrases. A drafter that was trained
on all styles is not aligned with its target; a drafter that was trained on answers of the target is aligned (self-data
distillation, MASSV, arXiv 2505.10526).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.scenes.scene import COLOURS, POSITIONS, SHAPES, SIZES, Item, Scene, Writing, place, relation

STYLES = ("plain", "list", "chatty")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
_BESIDE = 4.0  # minimum difference in x (or y) for a question about left and right (or above and below)


@dataclass(frozen=True)
class Ask:
    """Question about a scene, with one answer per style.

    Attributes:
        kind: Kind of the question, a key of `QUESTIONS`.
        question: Text of the question.
        answers: One correct answer per style.
        named: Indices of the scene's items that the question names, in the question's order.
    """

    kind: str
    question: str
    answers: tuple[str, str, str]
    named: tuple[int, ...] = ()

    @property
    def answer(self) -> str:
        """Return the answer to the question in the style of the bundled target."""
        return self.answers[0]


def plural(noun: str) -> str:
    """Return the plural of a shape's name.

    >>> plural("star"), plural("cross")
    ('stars', 'crosses')
    """
    return f"{noun}{'es' if noun.endswith('s') else 's'}"


def where(item: Item | Writing) -> str:
    """Return the position of an object in the image as a phrase.

    >>> where(Writing("7", "red", 10, 30, 12))
    'on the left'
    """
    name = place(item.x, item.y)
    return {"middle": "in the middle", "left": "on the left", "right": "on the right"}.get(name, f"at the {name}")


def link(scene: Scene, index: int) -> str:
    """Return the position of an item relative to the previous item of the scene, as a phrase."""
    return relation(scene.items[index], scene.items[index - 1], (index - 1, index) in scene.overlaps)


def _further_overlaps(scene: Scene) -> list[tuple[Item, Item]]:
    return [(scene.items[b], scene.items[a]) for a, b in sorted(scene.overlaps) if b != a + 1]


def _short(item: Item) -> str:
    return f"{item.colour} {item.shape}"


def _plain_caption(scene: Scene) -> str:
    items = scene.items
    if not items:
        text = "There are no shapes."
    elif len(items) == 1:
        text = f"There is one shape: a {items[0].name} {where(items[0])}."
    else:
        parts = [f"a {items[0].name} {where(items[0])}"]
        parts += [f"a {item.name} {where(item)}, {link(scene, i)} it" for i, item in enumerate(items[1:], 1)]
        text = f"There are {NUMBERS[len(items)]} shapes. From left to right: {'; '.join(parts)}."
    for later, earlier in _further_overlaps(scene):
        text += f" The {_short(later)} overlaps the {_short(earlier)}."
    if writing := scene.writing:
        text += f" The {writing.kind} {writing.text} is written {where(writing)} in {writing.colour}."
    return text


def _list_caption(scene: Scene) -> str:
    lines = []
    for i, item in enumerate(scene.items):
        tail = f"; {link(scene, i)} number {i}" if i else ""
        lines.append(f"{i + 1}. {item.shape}, {item.colour}, {item.size}, {place(item.x, item.y)}{tail}")
    for later, earlier in _further_overlaps(scene):
        lines.append(f"overlap: {_short(earlier)}, {_short(later)}")
    if scene.writing:
        text = scene.writing
        lines.append(f"text: {text.text}, {text.colour}, {place(text.x, text.y)}")
    return "\n".join(lines) or "nothing"


def _chatty_caption(scene: Scene) -> str:
    items = scene.items
    text = f"I can see {NUMBERS[len(items)]} thing{'s' * (len(items) != 1)} in this picture."
    for i, item in enumerate(items):
        start = "The first one" if i == 0 else "Next to the right, the following one" if i % 2 else "After that one"
        text += f" {start} is a {item.colour} {item.shape}. It is {item.size} and lies {where(item)}"
        text += f", {link(scene, i)} the {_short(items[i - 1])}." if i else "."
    for later, earlier in _further_overlaps(scene):
        text += f" By the way, the {_short(earlier)} and the {_short(later)} overlap."
    if scene.writing:
        text += f" Somebody wrote {scene.writing.text} {where(scene.writing)}, in {scene.writing.colour}."
    return text


def _caption(scene: Scene, rng: random.Random) -> Ask:
    question = rng.choice(
        (
            "Describe every object, left to right.",
            "Describe the picture.",
            "Describe the image in detail.",
            "What do you see?",
            "What is in the picture?",
            "List all objects with size, colour, shape and place.",
            "Describe this drawing.",
        )
    )
    return Ask("caption", question, (_plain_caption(scene), _list_caption(scene), _chatty_caption(scene)))


def refer(scene: Scene, item: Item, rng: random.Random) -> str:
    """Return a phrase that identifies one item of the scene.

    Args:
        scene: scene that contains the item.
        item: item to identify.
        rng: source of randomness, which chooses among the possible phrases.
    """
    is_unique = sum(other.shape == item.shape for other in scene.items) == 1
    return item.shape if is_unique and rng.random() < 0.4 else item.name if rng.random() < 0.2 else _short(item)


def _count(scene: Scene, rng: random.Random) -> Ask:
    kind = rng.random()
    if kind < 0.4:
        n, noun = len(scene.items), "shapes"
        question = rng.choice(("How many shapes are there?", "How many objects are there?", "Count the shapes."))
    else:
        by_colour = kind < 0.7
        values = [item.colour if by_colour else item.shape for item in scene.items]
        value = rng.choice(values) if values and rng.random() < 0.8 else rng.choice(COLOURS if by_colour else SHAPES)
        n = values.count(value)
        noun = f"{value} shapes" if by_colour else plural(value)
        question = rng.choice((f"How many {noun} are there?", f"Count the {noun}."))
    return Ask("count", question, (NUMBERS[n], str(n), f"I count {NUMBERS[n]} of them."))


def _short_answer(kind: str, question: str, value: str, subject: str = "it", named: tuple[int, ...] = ()) -> Ask:
    answers = (value, f"answer: {value}", f"As far as I can see, {subject} is {value}.")
    return Ask(kind, question, answers, named)


def _colour(scene: Scene, rng: random.Random) -> Ask | None:
    unique = [i for i in scene.items if sum(o.shape == i.shape for o in scene.items) == 1]
    if not unique:
        return None
    item = rng.choice(unique)
    word = rng.choice(("colour", "color"))
    question = rng.choice((f"What {word} is the {item.shape}?", f"Which {word} has the {item.shape}?"))
    return _short_answer("colour", question, item.colour, named=(scene.items.index(item),))


def _shape(scene: Scene, rng: random.Random) -> Ask | None:
    unique = [i for i in scene.items if sum(o.colour == i.colour for o in scene.items) == 1]
    if not unique:
        return None
    item = rng.choice(unique)
    question = rng.choice(
        (f"What shape is {item.colour}?", f"What is the {item.colour} shape?", f"Which shape is {item.colour}?")
    )
    return _short_answer("shape", question, item.shape, named=(scene.items.index(item),))


def _size(scene: Scene, rng: random.Random) -> Ask | None:
    if not scene.items:
        return None
    item = rng.choice(scene.items)
    name = item.shape if sum(o.shape == item.shape for o in scene.items) == 1 else _short(item)
    question = rng.choice((f"How big is the {name}?", f"Is the {name} small or large?", f"What size is the {name}?"))
    return _short_answer("size", question, item.size, named=(scene.items.index(item),))


def _place(scene: Scene, rng: random.Random) -> Ask | None:
    if not scene.items:
        return None
    item = rng.choice(scene.items)
    question = f"Where is the {refer(scene, item, rng)}?"
    return _short_answer("place", question, where(item), named=(scene.items.index(item),))


def _relation(scene: Scene, rng: random.Random) -> Ask | None:
    if len(scene.items) < 2:
        return None
    first, second = rng.sample(scene.items, 2)
    dx, dy = first.x - second.x, first.y - second.y
    relations = [("left of", dx < 0), ("right of", dx > 0)] if abs(dx) >= _BESIDE else []
    relations += [("above", dy < 0), ("below", dy > 0)] if abs(dy) >= _BESIDE else []
    if not relations:
        return None
    word, is_true = rng.choice(relations)
    question = f"Is the {refer(scene, first, rng)} {word} the {refer(scene, second, rng)}?"
    item_indices = (scene.items.index(first), scene.items.index(second))
    return _short_answer("relation", question, "yes" if is_true else "no", "the answer", item_indices)


def _direction(scene: Scene, rng: random.Random) -> Ask | None:
    pairs = [
        (first, second)
        for first in scene.items
        for second in scene.items
        if abs(first.x - second.x) >= _BESIDE and abs(first.y - second.y) >= _BESIDE
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    across, along = "left" if first.x < second.x else "right", "above" if first.y < second.y else "below"
    question = f"Where is the {refer(scene, first, rng)}, seen from the {refer(scene, second, rng)}?"
    item_indices = (scene.items.index(first), scene.items.index(second))
    return _short_answer("direction", question, f"{along} it, to the {across}", named=item_indices)


def _neighbour(scene: Scene, rng: random.Random) -> Ask | None:
    if not scene.items:
        return None
    index = rng.randrange(len(scene.items))
    side = rng.choice((-1, 1))
    name = refer(scene, scene.items[index], rng)
    word = "left" if side < 0 else "right"
    question = rng.choice((f"What is the next shape {word} of the {name}?", f"What comes next {word} of the {name}?"))
    other = index + side
    value = f"a {scene.items[other].name}" if 0 <= other < len(scene.items) else "nothing"
    return _short_answer("neighbour", question, value, named=(index,))


def _furthest(scene: Scene, rng: random.Random) -> Ask | None:
    if len(scene.items) < 2:
        return None
    word, key, sign = rng.choice((("left", "x", 1), ("right", "x", -1), ("up", "y", 1), ("down", "y", -1)))
    ranked = sorted(scene.items, key=lambda item: sign * getattr(item, key))
    if key == "y" and abs(ranked[0].y - ranked[1].y) < _BESIDE:
        return None
    question = rng.choice((f"Which shape is furthest {word}?", f"What is furthest {word}?"))
    return _short_answer("furthest", question, f"a {ranked[0].name}")


def _exists(scene: Scene, rng: random.Random) -> Ask:
    names = {_short(item) for item in scene.items}
    if names and rng.random() < 0.5:
        name = rng.choice(sorted(names))
    elif scene.items:  # near misses: either colour or shape is that of an item
        item = rng.choice(scene.items)
        name = f"{rng.choice(COLOURS)} {item.shape}" if rng.random() < 0.5 else f"{item.colour} {rng.choice(SHAPES)}"
    else:
        name = f"{rng.choice(COLOURS)} {rng.choice(SHAPES)}"
    article = "an" if name.startswith("o") else "a"
    question = rng.choice((f"Is there {article} {name}?", f"Do you see {article} {name}?"))
    item_indices = tuple(i for i, item in enumerate(scene.items) if _short(item) == name)
    return _short_answer("exists", question, "yes" if item_indices else "no", "the answer", item_indices)


def _overlap(scene: Scene, rng: random.Random) -> Ask | None:
    if not scene.items:
        return None
    if len(scene.items) > 1 and rng.random() < 0.4:
        value = "yes" if scene.overlaps else "no"
        return _short_answer("overlap", "Do any shapes overlap?", value, "the answer")
    overlapping = sorted({index for pair in scene.overlaps for index in pair})
    index = rng.choice(overlapping) if overlapping and rng.random() < 0.7 else rng.randrange(len(scene.items))
    others = scene.overlapping(index)
    value = f"a {scene.items[others[0]].name}" if others else "nothing"
    question = f"What overlaps the {refer(scene, scene.items[index], rng)}?"
    return _short_answer("overlap", question, value, named=(index,))


def _reading(scene: Scene, rng: random.Random) -> Ask:
    text = scene.writing
    question = rng.choice(
        (
            "What is written?",
            "What does the text say?",
            "Read the text.",
            "What is written in the picture?",
            "What does it say?",
        )
    )
    if text and rng.random() < 0.5:
        question = f"What {text.kind} is written?"
    return _short_answer("reading", question, text.text if text else "nothing")


def _list(scene: Scene, rng: random.Random) -> Ask | None:
    if not scene.items:
        return None
    attribute = rng.choice(("colour", "shape"))
    value = ", ".join(getattr(item, attribute) for item in scene.items)
    question = f"List the {attribute}s from left to right."
    return Ask("list", question, (value, value.replace(", ", "\n"), f"From the left I see {value}."))


QUESTIONS: dict[str, Callable[[Scene, random.Random], Ask | None]] = {
    "caption": _caption,
    "count": _count,
    "colour": _colour,
    "shape": _shape,
    "size": _size,
    "place": _place,
    "relation": _relation,
    "direction": _direction,
    "neighbour": _neighbour,
    "furthest": _furthest,
    "exists": _exists,
    "overlap": _overlap,
    "reading": _reading,
    "list": _list,
}
"""Functions that generate questions about a scene, by kind of question.

A function returns None if the scene does not allow such a question.
"""


def ask(kind: str, scene: Scene, rng: random.Random) -> Ask | None:
    """Return a question of one kind about a scene; None if the scene does not allow it.

    Args:
        kind: key of `QUESTIONS`.
        scene: scene to ask about.
        rng: source of randomness.
    """
    return QUESTIONS[kind](scene, rng)


def ask_some(scene: Scene, count: int, rng: random.Random, favoured: Sequence[str] = ()) -> list[Ask]:
    """Return a caption request and `count` other questions about a scene.

    Args:
        scene: Scene to ask about.
        count: Number of questions in addition to the caption.
        rng: Source of randomness.
        favoured: Kinds of questions that are chosen five times as often as others.
    """
    questions = [_caption(scene, rng)]
    kinds = [kind for kind in QUESTIONS if kind != "caption"]
    kinds += [kind for kind in favoured for _ in range(4)]
    while len(questions) <= count:
        question = ask(rng.choice(kinds), scene, rng)
        if question:
            questions.append(question)
    return questions


@dataclass(frozen=True)
class Said:
    """Description of one object, parsed from a caption in the plain style (that of the bundled target).

    Attributes:
        size: One of `workbench.scenes.scene.SIZES`.
        colour: One of `workbench.scenes.scene.COLOURS`.
        shape: One of `workbench.scenes.scene.SHAPES`.
        place: Region of the image in which the object lies, such as "top left".
        relation: Position relative to the previous object ("above", …); "" for the first object.
    """

    size: str
    colour: str
    shape: str
    place: str
    relation: str


_OBJECT = re.compile(
    rf"a ({'|'.join(SIZES)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)}) (?:at|in|on) the"
    rf" ({'|'.join(sorted({name for row in POSITIONS for name in row}, key=len, reverse=True))})"
    r"(?:, (above|below|beside|overlapping) it)?"
)


def read_caption(text: str) -> list[Said]:
    """Parse a caption in the plain style, and return the objects that it describes, in the caption's order.

    >>> read_caption("There is one shape: a large red star at the top left.")
    [Said(size='large', colour='red', shape='star', place='top left', relation='')]
    """
    return [Said(*(part or "" for part in match.groups())) for match in _OBJECT.finditer(text)]


LEXICON: dict[str, tuple[str, ...]] = {
    "colour": COLOURS,
    "shape": tuple(name for shape in SHAPES for name in (shape, plural(shape))),
    "size": SIZES,
    "relation": (
        *("above", "below", "beside", "overlapping", "overlaps", "overlap", "left", "right", "top", "bottom"),
        *("middle", "furthest", "next"),
    ),
    "number": (*NUMBERS, "no", *map(str, range(100))),
}
"""Words in captions that state facts about an image, by category (colour, shape, …).

All other words have the category `other`.
"""
