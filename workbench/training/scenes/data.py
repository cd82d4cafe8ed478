"""Rendered scenes on disk, in shards that are rendered when they are first needed, and labels for each patch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from workbench.scenes.draw import WRITING, paint
from workbench.scenes.scene import (
    COLOURS,
    SHAPES,
    SIDE,
    SIZES,
    WORDS,
    Scene,
    relation,
    scenes,
)
from workbench.trace.files import replace_atomically

SHARD = 4096
VERSION = 3  # of the scene generator; images of another version are not used
PATCH = 8
GRID = SIDE // PATCH
RELATIONS = ("first", "above", "below", "beside", "overlapping")
ASPECTS = {
    "kind": 3,
    "colour": len(COLOURS),
    "shape": len(SHAPES),
    "size": len(SIZES),
    "rank": 6,
    "relation": len(RELATIONS),
    "touched": 2,
    "place": 9,
    "glyph": len(WORDS) + 10,
    "second": 11,
}
"""Aspects (colour, shape, …) by which each image patch is labelled, with their numbers of classes.

The classes of `kind` are background, shape and writing.
"""


@dataclass(frozen=True)
class Shard:
    """A shard: a fixed number of the training scenes, with their images.

    Attributes:
        scenes: The n scenes.
        pixels: Images of the scenes, uint8 [n, 64, 64, 3].
        item_maps: Number of the item at each pixel of an image, uint8 [n, 64, 64]; see `workbench.scenes.draw.paint`.
    """

    scenes: Sequence[Scene]
    pixels: np.ndarray
    item_maps: np.ndarray


class Shards:
    """Training scenes in shards, which are rendered when they are needed; shard k is the same on every machine.

    Args:
        folder: Folder of the images.
        seed: Seed of all shards.
        size: Number of scenes per shard.
        keep: Number of shards cached in memory.
    """

    def __init__(self, folder: Path, seed: int = 0, size: int = SHARD, keep: int = 2) -> None:
        self.folder, self.seed, self.size, self.keep = folder, seed, size, keep
        self._cache: OrderedDict[int, Shard] = OrderedDict()

    def get(self, index: int) -> Shard:
        """Return the shard with the number `index`; render it and write it to the folder if it does not exist."""
        if index not in self._cache:
            path = self.folder / f"scenes-{VERSION}-{self.seed}-{self.size}-{index:04d}.npz"
            scene_list = list(islice(scenes(self.seed * 100_003 + index, held_out=False), self.size))
            if path.exists():
                with np.load(path) as arrays:
                    pixels, item_maps = arrays["pixels"], arrays["shown"]
            else:
                pairs = [paint(scene) for scene in scene_list]
                pixels, item_maps = np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs])
                self.folder.mkdir(parents=True, exist_ok=True)
                with replace_atomically(path) as part, part.open("xb") as file:
                    np.savez(file, pixels=pixels, shown=item_maps)
            self._cache[index] = Shard(scene_list, pixels, item_maps)
            while len(self._cache) > self.keep:
                self._cache.popitem(last=False)
        self._cache.move_to_end(index)
        return self._cache[index]

    def batch(self, step: int, rows: int, count: int) -> tuple[list[Scene], np.ndarray, np.ndarray]:
        """Return the scenes, the images and the item maps (item at each pixel) of one training step.

        The scenes depend only on the step number, so that a resumed run continues as if it had not been stopped.

        Args:
            step: Step number.
            rows: Number of scenes.
            count: Number of shards in use; after the last shard, all shards are used again in another order.
        """
        per_shard = self.size // rows
        shard_number, position = divmod(step, per_shard)
        shard = self.get(shard_number % count)
        indices = np.random.default_rng([self.seed, shard_number]).permutation(self.size)[
            position * rows : (position + 1) * rows
        ]
        return [shard.scenes[i] for i in indices], shard.pixels[indices], shard.item_maps[indices]


def normalise_pixels(pixels: np.ndarray) -> np.ndarray:
    """Convert images, uint8 [n, 64, 64, 3], to the model's input format, float32 [n, 3, 64, 64] from -1 to 1."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32) / 127.5 - 1.0


def jitter_images(images: np.ndarray, seed: Sequence[int]) -> np.ndarray:
    """Return images with small random changes of brightness and contrast, float32 [n, 3, 64, 64]."""
    rng = np.random.default_rng(seed)
    gain = rng.uniform(0.9, 1.03, size=(len(images), 1, 1, 1)).astype(np.float32)
    tint = rng.uniform(-0.05, 0.03, size=(len(images), 3, 1, 1)).astype(np.float32)
    return np.clip(images * gain + tint, -1, 1)


def silhouettes(images: np.ndarray, item_maps: np.ndarray, share: float, seed: Sequence[int]) -> np.ndarray:
    """Return images of which a share is replaced by black silhouettes of the objects, float32 [n, 3, 64, 64].

    Silhouettes help an untrained tower to separate shapes from colours and lines. Writing is kept.

    Args:
        images: Normalised images, float32 [n, 3, 64, 64].
        item_maps: Number of the item at each pixel, uint8 [n, 64, 64].
        share: Probability that an image is replaced.
        seed: Seed of the choice of images.
    """
    is_replaced = np.random.default_rng(seed).random(len(images)) < share
    is_item = ((item_maps > 0) & (item_maps < WRITING))[:, None]
    is_writing = (item_maps == WRITING)[:, None]
    silhouette = np.where(is_item, np.float32(-1), np.where(is_writing, images, np.float32(1)))
    return np.where(is_replaced[:, None, None, None], silhouette, images)


def _facts(scene: Scene) -> np.ndarray:
    """Return the label of each aspect of every item in a scene, int64 [items + 1, aspects]; -1: no label.

    The last row has the labels of the writing in the scene.
    """
    names = list(ASPECTS)
    table = np.full((len(scene.items) + 1, len(names)), -1, dtype=np.int64)
    for i, item in enumerate(scene.items):
        previous = scene.items[i - 1] if i else None
        relation_name = relation(item, previous, (i - 1, i) in scene.overlaps) if previous else "first"
        facts = {
            "kind": 1,
            "colour": COLOURS.index(item.colour),
            "shape": SHAPES.index(item.shape),
            "size": SIZES.index(item.size),
            "rank": i,
            "relation": RELATIONS.index(relation_name),
            "touched": int(bool(scene.overlapping(i))),
            "place": _cell(item.x, item.y),
        }
        for name, value in facts.items():
            table[i, names.index(name)] = value
    if scene.writing:
        text = scene.writing.text
        number = text.isdigit()
        facts = {
            "kind": 2,
            "colour": COLOURS.index(scene.writing.colour),
            "place": _cell(scene.writing.x, scene.writing.y),
            "glyph": int(text[0]) if number else 10 + WORDS.index(text),
            "second": int(text[1]) if number and len(text) == 2 else 10,
        }
        for name, value in facts.items():
            table[-1, names.index(name)] = value
    return table


def _cell(x: float, y: float) -> int:
    third = SIDE / 3
    return 3 * min(2, int(y // third)) + min(2, int(x // third))


@dataclass(frozen=True)
class PatchLabels:
    """Training labels of each image patch of n scenes.

    Attributes:
        answers: Label of each aspect (colour, shape, …) of each patch, -1 if there is none, int64 [n, 64, aspects].
        weights: Weights of the patches, which count every item of a scene equally, float32 [n, 64].
        centre_offsets: Vector from the patch to the item's centre, in half image widths, float32 [n, 64, 2].
        mask: Pixels of the patch that belong to the item, float32 [n, 64, 64].
    """

    answers: np.ndarray
    weights: np.ndarray
    centre_offsets: np.ndarray
    mask: np.ndarray


def patch_labels(scene_list: Sequence[Scene], item_maps: np.ndarray) -> PatchLabels:
    """Return the training labels of each image patch.

    Args:
        scene_list: The n scenes.
        item_maps: Number of the item at each pixel, uint8 [n, 64, 64].
    """
    n = len(scene_list)
    blocks = item_maps.reshape(n, GRID, PATCH, GRID, PATCH).transpose(0, 1, 3, 2, 4).reshape(n, GRID * GRID, -1)
    numbers = np.array([*range(1, 7), WRITING], dtype=np.uint8)
    counts = (blocks[..., None] == numbers).sum(2)  # [n, 64, 7]
    top_item, n_pixels = counts.argmax(-1), counts.max(-1)
    is_covered = n_pixels >= 6
    labels = np.full((n, GRID * GRID, len(ASPECTS)), -1, dtype=np.int64)
    labels[..., 0] = 0
    weights = np.full((n, GRID * GRID), 1 / 40, dtype=np.float32)
    toward = np.zeros((n, GRID * GRID, 2), dtype=np.float32)
    centres = np.stack(np.meshgrid(np.arange(GRID), np.arange(GRID)), -1).reshape(-1, 2) * PATCH + PATCH / 2
    for i, scene in enumerate(scene_list):
        facts = _facts(scene)
        patches = np.flatnonzero(is_covered[i])
        index = np.where(top_item[i, patches] == 6, len(scene.items), top_item[i, patches])
        labels[i, patches] = facts[index]
        n_patches = np.bincount(index, minlength=len(facts))
        weights[i, patches] = 1 / n_patches[index]
        item_centres = [(item.x, item.y) for item in scene.items]
        item_centres.append((scene.writing.x, scene.writing.y) if scene.writing else (0.0, 0.0))
        toward[i, patches] = (np.array(item_centres)[index] - centres[patches]) / (SIDE / 2)
    mask = (blocks == numbers[top_item][..., None]) & is_covered[..., None]
    return PatchLabels(labels, weights, toward, mask.astype(np.float32))
