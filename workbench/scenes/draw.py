"""Draw the image of a scene (coloured shapes), and a map that names the object at each pixel.

All shapes are drawn at three times the size and then reduced, which smooths their edges.
"""

from __future__ import annotations

import colorsys
import math
import random
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from workbench.scenes.outline import item_points
from workbench.scenes.scene import SIDE, STROKES, Item, Scene, Writing

_ZOOM = 3
_BIG = SIDE * _ZOOM

HUES: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "red": ((-0.02, 0.018), (0.8, 1.0), (0.78, 1.0)),
    "orange": ((0.065, 0.1), (0.85, 1.0), (0.93, 1.0)),
    "yellow": ((0.135, 0.168), (0.75, 1.0), (0.93, 1.0)),
    "green": ((0.28, 0.42), (0.6, 1.0), (0.45, 0.85)),
    "blue": ((0.56, 0.665), (0.7, 1.0), (0.65, 1.0)),
    "purple": ((0.73, 0.8), (0.55, 1.0), (0.5, 0.85)),
    "pink": ((0.86, 0.95), (0.3, 0.62), (0.95, 1.0)),
    "black": ((0.0, 1.0), (0.0, 0.15), (0.0, 0.16)),
}
"""Ranges of hue, saturation and value (each 0 to 1) of the colours in scenes, by colour name."""


def shade(colour: str, rng: random.Random) -> tuple[int, int, int]:
    """Return the RGB values of a random shade of a named colour."""
    hue, saturation, value = (rng.uniform(*ends) for ends in HUES[colour])
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


@lru_cache
def _font(height: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(height)


def _paint_item(canvas: Image.Image, item: Item, ids: Image.Image, number: int) -> None:
    rng = random.Random(item.shade)
    colour = shade(item.colour, rng)
    points = item_points(item) * _ZOOM
    corners = [tuple(point) for point in points.tolist()]
    pen = ImageDraw.Draw(canvas)
    width = max(2, round(item.stroke * _ZOOM))
    if item.fill in {"solid", "bordered"}:
        pen.polygon(corners, fill=colour)
    if item.fill == "scribble":
        mask = Image.new("1", canvas.size)
        ImageDraw.Draw(mask).polygon(corners, fill=1)
        strokes = Image.new("1", canvas.size)
        _scribble(ImageDraw.Draw(strokes), item, rng, width)
        overlap_mask = Image.fromarray(np.asarray(mask) & np.asarray(strokes))
        canvas.paste(colour, (0, 0), overlap_mask)
    if item.fill in {"outline", "scribble", "bordered"}:
        edge = tuple(round(0.6 * part) for part in colour) if item.fill == "bordered" else colour
        line = max(2, _ZOOM) if item.fill == "bordered" else width
        closed = [*corners, *corners[:2]]
        if item.wobble and rng.random() < 0.3:  # a line drawn by hand is not always closed
            closed = corners[: len(corners) - 1]
        pen.line(closed, fill=edge, width=line, joint="curve")
    if item.fill == STROKES:
        arms = len(points) // 12  # the outline has twelve corners; opposite ends of the arms are six apart
        ends = [points[k * arms : (k + 1) * arms + 1].mean(0) for k in (0, 6, 3, 9)]
        for start, end in (ends[:2], ends[2:]):
            bend = (start + end) / 2 + [rng.uniform(-1, 1) * item.wobble * item.extent * _ZOOM for _ in range(2)]
            pen.line([tuple(start), tuple(bend), tuple(end)], fill=colour, width=width, joint="curve")
    ImageDraw.Draw(ids).polygon(corners, fill=number)


def _scribble(pen: ImageDraw.ImageDraw, item: Item, rng: random.Random, width: int) -> None:
    angle = rng.choice((0.0, math.pi / 4, -math.pi / 4, math.pi / 2)) + rng.uniform(-0.2, 0.2)
    along, across = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))
    gap = rng.uniform(1.15, 1.8) * width / _ZOOM
    lines = int(item.extent / gap) + 2
    points = []
    for i in range(-lines // 2, lines // 2 + 1):
        side = item.extent * (0.75 if i % 2 else -0.75)
        shift = gap * (i + rng.uniform(-0.25, 0.25))
        points.append(
            (
                (item.x + along[0] * side + across[0] * shift) * _ZOOM,
                (item.y + along[1] * side + across[1] * shift) * _ZOOM,
            )
        )
    pen.line(points, fill=1, width=max(2, width - 1), joint="curve")


def _paint_writing(canvas: Image.Image, writing: Writing, seed: int, ids: Image.Image, number: int) -> None:
    font = _font(round(writing.height * _ZOOM * 1.15))
    mask = Image.new("L", canvas.size)
    pen = ImageDraw.Draw(mask)
    pen.text(
        (writing.x * _ZOOM, writing.y * _ZOOM), writing.text, fill=255, font=font, anchor="mm", stroke_width=_ZOOM // 2
    )
    if writing.turn:
        mask = mask.rotate(
            writing.turn, resample=Image.Resampling.BILINEAR, center=(writing.x * _ZOOM, writing.y * _ZOOM)
        )
    canvas.paste(shade(writing.colour, random.Random(seed)), (0, 0), mask)
    half_w, half_h = writing.width / 2 * _ZOOM, writing.height / 2 * _ZOOM
    x, y = writing.x * _ZOOM, writing.y * _ZOOM
    ImageDraw.Draw(ids).rectangle((x - half_w, y - half_h, x + half_w, y + half_h), fill=number)


WRITING = 100
"""Value in the object map of a scene's image that stands for the written word or number."""


def paint(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Draw the image of a scene, and a map of the object at each pixel.

    Returns:
        The image, uint8 [64, 64, 3], and the object map, uint8 [64, 64]: 1 + the index of the item at each pixel,
        `WRITING` in the bounding box of the writing, 0 for the background. An outlined item counts as filled.
    """
    canvas = Image.new("RGB", (_BIG, _BIG), scene.background)
    ids = Image.new("L", (_BIG, _BIG))
    if scene.writing:
        _paint_writing(canvas, scene.writing, scene.seed, ids, WRITING)
    for index in scene.order:
        _paint_item(canvas, scene.items[index], ids, index + 1)
    pixels = np.asarray(canvas.reduce(_ZOOM))
    if scene.noise:
        grain = np.random.default_rng(scene.seed).normal(scale=scene.noise, size=pixels.shape)
        pixels = np.clip(pixels + grain, 0, 255).astype(np.uint8)
    return pixels, np.asarray(ids)[1::_ZOOM, 1::_ZOOM]


def picture(scene: Scene) -> Image.Image:
    """Draw a scene of coloured shapes as an image of 64 × 64 pixels."""
    return Image.fromarray(paint(scene)[0])
