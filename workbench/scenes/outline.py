"""Compute outlines of shapes in a scene, and the overlap of two outlines."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw

_FINE = 4  # silhouettes are compared on a grid with this many cells per pixel


class Outlined(Protocol):
    """Interface of an object with an outline; `workbench.scenes.scene.Item` describes the attributes."""

    @property
    def shape(self) -> str: ...
    @property
    def x(self) -> float: ...
    @property
    def y(self) -> float: ...
    @property
    def extent(self) -> float: ...
    @property
    def aspect(self) -> float: ...
    @property
    def turn(self) -> float: ...
    @property
    def wobble(self) -> float: ...
    @property
    def shade(self) -> int: ...


def _outline(shape: str) -> np.ndarray:
    """Return the outline of a shape centred on the origin, as n points, float64 [n, 2]."""
    if shape == "circle":
        t = np.linspace(0, 2 * math.pi, 40, endpoint=False)
        return np.stack([np.cos(t), np.sin(t)], 1)
    if shape == "heart":
        t = np.linspace(0, 2 * math.pi, 40, endpoint=False)
        x = 16 * np.sin(t) ** 3
        y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
        return np.stack([x / 16, (y + 2.5) / 14.5], 1)
    if shape == "star":
        t = np.arange(10) * math.pi / 5 - math.pi / 2
        r = np.where(np.arange(10) % 2 == 0, 1.0, 0.42)
        corners = np.stack([r * np.cos(t), r * np.sin(t)], 1)
    elif shape == "triangle":
        corners = np.array([[0, -1], [1, 0.9], [-1, 0.9]])
    elif shape == "cross":
        a = 0.34
        corners = np.array(
            [[-a, -1], [a, -1], [a, -a], [1, -a], [1, a], [a, a], [a, 1], [-a, 1], [-a, a], [-1, a], [-1, -a], [-a, -a]]
        )
    else:
        corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    parts = max(2, 40 // len(corners))
    steps = np.linspace(0, 1, parts, endpoint=False)[:, None]
    ends = np.roll(corners, -1, axis=0)
    return np.concatenate([a + (b - a) * steps for a, b in zip(corners, ends, strict=True)])


_OUTLINES = {shape: _outline(shape) for shape in ("circle", "heart", "star", "triangle", "cross", "square")}


def item_points(item: Outlined) -> np.ndarray:
    """Return the outline of an item in pixels of the image, as n points, float64 [n, 2].

    The centre of the outline's bounding box is the position of the item.
    """
    points = _OUTLINES[item.shape].copy()
    if item.wobble:
        rng = np.random.default_rng(item.shade)
        t = np.arange(len(points)) / len(points) * 2 * math.pi
        for wave in (2, 3, 5, 8):
            push = item.wobble * rng.normal(size=2) / math.sqrt(wave / 2)
            points *= (1 + push[0] * np.cos(wave * t) + push[1] * np.sin(wave * t))[:, None]
        points += rng.normal(scale=item.wobble / 4, size=points.shape)
    points[:, 1] *= item.aspect
    angle = math.radians(item.turn)
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    points = points @ turn
    low, high = points.min(0), points.max(0)
    return (points - (low + high) / 2) * (item.extent / (high - low).max()) + (item.x, item.y)


def _silhouette(item: Outlined, corner: tuple[float, float], side: int) -> np.ndarray:
    mask = Image.new("1", (side, side))
    points = (item_points(item) - corner) * _FINE
    ImageDraw.Draw(mask).polygon([tuple(point) for point in points.tolist()], fill=1)
    return np.asarray(mask)


def covered(one: Outlined, two: Outlined) -> float:
    """Return the overlap of two outlines as a fraction of the smaller outline's area."""
    reach = (one.extent + two.extent) / 2
    if abs(one.x - two.x) > reach or abs(one.y - two.y) > reach:
        return 0.0
    corner = (min(one.x - one.extent, two.x - two.extent), min(one.y - one.extent, two.y - two.extent))
    side = int(_FINE * 2 * (one.extent + two.extent))
    a, b = _silhouette(one, corner, side), _silhouette(two, corner, side)
    return float((a & b).sum() / min(a.sum(), b.sum()))
