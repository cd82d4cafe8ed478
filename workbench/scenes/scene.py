"""Generate scenes from a seed: the objects of an image and their geometry, without pixels.

All distances are in pixels of the final image of 64 × 64; y grows downward. Captions are unambiguous: no object lies
near a border between two named positions or between two sizes, and neighbours are either clearly level or clearly one
above the other.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

from workbench.scenes.outline import covered

SIDE = 64
"""Width and height of a scene's image in pixels."""

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
SIZES = ("small", "large")
EXTENTS = {"small": (10.0, 14.5), "large": (20.0, 27.0)}
"""Length in pixels of the longer side of an object's bounding box, by name of the object's size."""
_FREEHAND_MOST = (0.0, 56.0, 42.0, 34.0, 29.0)
"""Maximum size in pixels of a shape in a freehand scene, by number of shapes; fewer shapes are larger."""
FREEHAND = 0.25
"""Fraction of freehand scenes, which imitate users' drawings on an empty sheet, among all scenes."""
WORDS = ("CAT", "DOG", "SUN", "BUS", "HAT", "KEY", "BOX", "TEA")
POSITIONS = (
    ("top left", "top", "top right"),
    ("left", "middle", "right"),
    ("bottom left", "bottom", "bottom right"),
)
FILLS = ("solid", "outline", "scribble", "bordered")
STROKES = "strokes"
"""Value of `Item.fill` for a cross drawn as two pen strokes."""

_MARGIN = 1.6  # minimum distance of a centre from a border between two named positions
_GAP = 2.5  # minimum distance of two centres in x, so that the order from left to right is clear
# |dy| below the first value: beside; above the second: above or below; values in between do not occur
_LEVEL, _APART = 3.0, 6.5


@dataclass(frozen=True)
class Item:
    """Coloured shape in a scene.

    Attributes:
        shape: One of `SHAPES`.
        colour: One of `COLOURS`.
        size: One of `SIZES`.
        x: Horizontal position of the centre, in pixels.
        y: Vertical position of the centre, in pixels.
        extent: Longer side of the bounding box, in pixels.
        aspect: Height divided by width.
        turn: Rotation in degrees.
        fill: One of `FILLS`, or `STROKES`.
        wobble: Irregularity of the outline as a fraction of the radius; 0 for exact lines.
        stroke: Width of the outline, in pixels.
        shade: Seed of the exact colour and of the irregularities.
    """

    shape: str
    colour: str
    size: str
    x: float
    y: float
    extent: float
    aspect: float = 1.0
    turn: float = 0.0
    fill: str = "solid"
    wobble: float = 0.0
    stroke: float = 1.5
    shade: int = 0

    @property
    def name(self) -> str:
        """Return the name of the shape with its size and colour, such as "large red star"."""
        return f"{self.size} {self.colour} {self.shape}"


@dataclass(frozen=True)
class Writing:
    """Word or number drawn in the image of a scene.

    Attributes:
        text: The word or number.
        colour: One of `COLOURS`.
        x: Horizontal position of the centre, in pixels.
        y: Vertical position of the centre, in pixels.
        height: Font size in pixels.
        turn: Rotation in degrees.
    """

    text: str
    colour: str
    x: float
    y: float
    height: float
    turn: float = 0.0

    @property
    def kind(self) -> str:
        """Return the kind of the text in the image: "number" or "word"."""
        return "number" if self.text.isdigit() else "word"

    @property
    def width(self) -> float:
        """Return the approximate width of the text drawn in the image, in pixels."""
        return 0.66 * self.height * len(self.text)


@dataclass(frozen=True)
class Scene:
    """Contents of a synthetic image: coloured shapes and an optional word or number.

    Attributes:
        items: The shapes from left to right.
        writing: Word or number in the image, or None.
        overlaps: Pairs of indices of `items` that overlap, the smaller index first.
        order: Indices of `items` in drawing order.
        sketch: Whether the scene imitates a drawing by hand.
        background: Red, green and blue, 0 to 255.
        noise: Standard deviation of the pixel noise, on the scale 0 to 255.
        seed: Seed of the noise.
    """

    items: tuple[Item, ...]
    writing: Writing | None = None
    overlaps: frozenset[tuple[int, int]] = frozenset()
    order: tuple[int, ...] = field(default=())
    sketch: bool = False
    background: tuple[int, int, int] = (255, 255, 255)
    noise: float = 0.0
    seed: int = 0

    def overlapping(self, index: int) -> list[int]:
        """Return the indices of the items that overlap the item at `index`."""
        return sorted({a + b - index for a, b in self.overlaps if index in (a, b)})

    @property
    def held_out(self) -> bool:
        """Return whether the scene is held out from training, which a hash of its contents decides."""
        text = ";".join(f"{item.name} {place(item.x, item.y)}" for item in self.items)
        return hashlib.sha256(f"{text};{self.writing and self.writing.text}".encode()).digest()[0] < 16


def place(x: float, y: float) -> str:
    """Return the name of the region of the image in which a point lies; x and y are in pixels.

    >>> place(10, 10), place(32, 30)
    ('top left', 'middle')
    """
    third = SIDE / 3
    return POSITIONS[min(2, max(0, int(y // third)))][min(2, max(0, int(x // third)))]


def _clear(x: float, y: float) -> bool:
    return all(abs(v - border) > _MARGIN for v in (x, y) for border in (SIDE / 3, 2 * SIDE / 3))


def _reach(item: Item) -> float:
    """Return the radius in pixels of a circle around the item's centre that contains the item."""
    return item.extent / 2 * {"square": 1.25, "circle": 1.0, "cross": 1.08}.get(item.shape, 1.05)


def draw_scene(
    rng: random.Random, count: int | None = None, sketch: bool | None = None, freehand: bool = False
) -> Scene:
    """Generate a random scene of coloured shapes.

    Args:
        rng: Source of randomness.
        count: Number of shapes, 0 to 6; random by default.
        sketch: Whether the scene imitates a drawing by hand; random by default.
        freehand: Whether to imitate a drawing on an empty sheet: one to four shapes, often larger, and crosses of two
            strokes.
    """
    hand = rng.random() < 0.45 if sketch is None else sketch
    weights = (0, 5, 5, 3, 1) if freehand else (2, 12, 18, 24, 22, 14, 8)
    count = rng.choices(range(len(weights)), weights)[0] if count is None else count
    background = _background(rng, hand)
    dark = sum(background) < 330
    while True:
        scene = _try_scene(rng, count, hand, background, dark, freehand)
        if scene is not None:
            return scene


def _try_scene(
    rng: random.Random, count: int, hand: bool, background: tuple[int, int, int], dark: bool, freehand: bool
) -> Scene | None:
    colours = [colour for colour in COLOURS if not (dark and colour in {"black", "purple", "blue"})]
    writing = _writing(rng, colours) if rng.random() < (0.3 if count else 0.6) else None
    items: list[Item] = []
    wants_overlap = rng.random() < 0.35
    overlaps: set[tuple[float, float]] = set()
    names = rng.sample([(c, s) for c in colours for s in SHAPES], count)
    if count > 1 and rng.random() < 0.4:  # repeat a colour or a shape, for counting questions
        i, j = rng.sample(range(count), 2)
        similar = (names[i][0], rng.choice(SHAPES)) if rng.random() < 0.5 else (rng.choice(colours), names[i][1])
        if similar not in names:
            names[j] = similar
    for colour, shape in names:
        for _ in range(30):
            others = [item for item in items if item.colour != colour] if wants_overlap and not overlaps else []
            partner = rng.choice(others) if others else None
            item = _item(rng, colour, shape, hand, count, partner)
            item = _freehand(rng, item, hand, count) if freehand else item
            if _fits(item, items, writing, partner):
                items.append(item)
                if partner:
                    overlaps.add((item.x, partner.x))
                break
        else:
            return None
    items.sort(key=lambda item: item.x)
    index_of = {item.x: i for i, item in enumerate(items)}
    pairs = frozenset((min(index_of[a], index_of[b]), max(index_of[a], index_of[b])) for a, b in overlaps)
    if any(not _vertical_clear(a, b) for a, b in pairwise(items)):
        return None
    for (i, first), (j, second) in combinations(enumerate(items), 2):
        overlap = covered(first, second)
        if not (0.05 <= overlap <= 0.45 if (i, j) in pairs else overlap == 0.0):
            return None
    order = list(range(count))
    rng.shuffle(order)
    order.sort(key=lambda i: -items[i].extent)  # small items on top
    noise = rng.choice((0.0, 1.0, 3.0, 6.0)) if not hand else rng.choice((0.0, 0.0, 2.0))
    return Scene(tuple(items), writing, pairs, tuple(order), hand, background, noise, rng.getrandbits(31))


def _vertical_clear(a: Item, b: Item) -> bool:
    return not _LEVEL < abs(a.y - b.y) < _APART


def relation(item: Item, other: Item, overlap: bool) -> str:
    """Return the position of `item` relative to `other`: "overlapping" (if `overlap`), "above", "below" or "beside"."""
    if overlap:
        return "overlapping"
    dy = item.y - other.y
    return "beside" if abs(dy) <= (_LEVEL + _APART) / 2 else "above" if dy < 0 else "below"


def _item(rng: random.Random, colour: str, shape: str, hand: bool, count: int, partner: Item | None) -> Item:
    size = rng.choices(SIZES, (0.7, 0.3) if count > 4 else (0.5, 0.5))[0]
    extent = rng.uniform(*EXTENTS[size])
    if partner:
        reach = (extent + partner.extent) / 2
        angle, distance = rng.uniform(0, 2 * math.pi), rng.uniform(0.62, 0.78) * reach
        x, y = partner.x + distance * math.cos(angle), partner.y + distance * math.sin(angle)
    else:
        half = extent / 2 + 1
        x, y = rng.uniform(half, SIDE - half), rng.uniform(half, SIDE - half)
    max_turn = {"circle": 0, "cross": 12, "square": 12, "heart": 12, "triangle": 14, "star": 18}[shape]
    turn = rng.uniform(-max_turn, max_turn)
    if shape == "triangle" and rng.random() < 0.15:
        turn += rng.choice((90, 180, 270))
    fills = rng.choices(FILLS, (4, 4, 3, 2) if hand else (8, 1, 0, 3))[0]
    return Item(
        shape,
        colour,
        size,
        round(x, 2),
        round(y, 2),
        round(extent, 2),
        round(rng.uniform(0.86, 1.16), 3),
        round(turn, 1),
        fills,
        round(rng.uniform(0.01, 0.055), 3) if hand else 0.0,
        round(rng.uniform(1.0, 2.6 if size == "small" else 3.4), 2),
        rng.getrandbits(31),
    )


def _freehand(rng: random.Random, item: Item, hand: bool, count: int) -> Item:
    """Return a copy of an item, changed to imitate a user's drawing on an empty sheet."""
    fill = STROKES if hand and item.shape == "cross" and rng.random() < 0.5 else item.fill
    if rng.random() < 0.4:
        return replace(item, fill=fill)
    extent = rng.uniform(EXTENTS["large"][1], _FREEHAND_MOST[min(count, len(_FREEHAND_MOST) - 1)])
    half = extent / 2 + 1
    x, y = (round(rng.uniform(half, SIDE - half), 2) for _ in range(2))
    stroke = round(rng.uniform(1.0, 4.5), 2)
    return replace(item, size="large", extent=round(extent, 2), x=x, y=y, stroke=stroke, fill=fill)


def _fits(item: Item, items: list[Item], writing: Writing | None, partner: Item | None) -> bool:
    half = item.extent / 2
    if not (half + 0.5 <= item.x <= SIDE - half - 0.5 and half + 0.5 <= item.y <= SIDE - half - 0.5):
        return False
    if not _clear(item.x, item.y):
        return False
    if writing and (
        abs(item.x - writing.x) < half + writing.width / 2 + 1.5
        and abs(item.y - writing.y) < half + writing.height / 2 + 0.5
    ):
        return False
    for other in items:
        if abs(item.x - other.x) < _GAP:
            return False
        if other is not partner:
            distance = math.hypot(item.x - other.x, item.y - other.y)
            if distance < _reach(item) + _reach(other) + 1.5:
                return False
    return True


def _writing(rng: random.Random, colours: list[str]) -> Writing:
    text = str(rng.randrange(10) if rng.random() < 0.4 else rng.randrange(10, 100))
    text = rng.choice(WORDS) if rng.random() < 0.5 else text
    colour = rng.choice(["black", *colours] if "black" in colours else colours)
    height = rng.uniform(12, 17)
    while True:
        half = 0.33 * height * len(text) + 1
        x, y = rng.uniform(half, SIDE - half), rng.uniform(height / 2 + 1, SIDE - height / 2 - 1)
        if _clear(x, y):
            return Writing(text, colour, round(x, 2), round(y, 2), round(height, 2), round(rng.uniform(-6, 6), 1))


def _background(rng: random.Random, hand: bool) -> tuple[int, int, int]:
    kind = rng.random()
    if kind < (0.75 if hand else 0.35):
        return (255, 255, 255)
    if kind < 0.9:
        grey = rng.randrange(222, 250)
        return (grey + rng.randrange(-4, 6), grey + rng.randrange(-4, 6), grey + rng.randrange(-14, 6))
    if kind < 0.93 or hand:
        grey = rng.randrange(190, 225)
        return (grey, grey, grey)
    grey = rng.randrange(28, 52)
    return (grey, grey, grey + rng.randrange(0, 10))


def scenes(
    seed: int, held_out: bool, sketch: bool | None = None, count: int | None = None, freehand: float = FREEHAND
) -> Iterator[Scene]:
    """Yield an endless stream of scenes, either training scenes or held-out scenes.

    Args:
        seed: Seed of the stream.
        held_out: Whether to yield held-out scenes.
        sketch: Whether to yield only scenes that imitate drawings by hand (True) or only others (False); None: both.
        count: Number of shapes; None: any.
        freehand: Fraction of freehand scenes; it does not change the other scenes of the stream.
    """
    rng, other = random.Random(f"scenes/{seed}/{held_out}"), random.Random(f"freehand/{seed}/{held_out}")
    while True:
        is_freehand = other.random() < freehand
        scene = draw_scene(other if is_freehand else rng, count, sketch, is_freehand)
        if scene.held_out == held_out:
            yield scene
