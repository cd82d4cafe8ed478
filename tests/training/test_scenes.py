"""Rendered scenes and their answers: determined by the seed, and correct by measurements of the image."""

from __future__ import annotations

import colorsys
import json
import random
import re
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from workbench.scenes.draw import paint
from workbench.scenes.outline import item_points
from workbench.scenes.scene import COLOURS, SHAPES, SIDE, STROKES, Item, Scene, scenes
from workbench.scenes.tasks import NUMBERS, QUESTIONS, STYLES, Ask, ask, ask_some, read_caption
from workbench.scenes.tasks import plural as shapes_of
from workbench.training.scenes.data import ASPECTS, Shards, patch_labels
from workbench.training.scenes.evaluate import caption_scores
from workbench.training.scenes.gallery import gallery_scenes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def drawn() -> list[Scene]:
    """Return a hundred scenes, exact and sketched."""
    return list(islice(scenes(5, held_out=False), 100))


class Measured:
    """An item measured from its pixels: bounding box, silhouette and colour, independent of its description."""

    def __init__(self, item: Item, scene: Scene) -> None:
        silhouette = Image.new("1", (4 * SIDE, 4 * SIDE))
        ImageDraw.Draw(silhouette).polygon([tuple(4 * p) for p in item_points(item)], fill=1)
        self.mask = np.asarray(silhouette)
        rows, columns = np.nonzero(self.mask.any(1))[0], np.nonzero(self.mask.any(0))[0]
        self.x, self.y = (columns[0] + columns[-1]) / 8, (rows[0] + rows[-1]) / 8
        self.size = "small" if max(np.ptp(rows), np.ptp(columns)) / 4 < 17 else "large"
        alone = Scene((item,), order=(0,), background=(128, 128, 128))
        pixels, shown = paint(alone)
        painted = pixels[shown == 1]
        self.colour = _colour(painted[np.abs(painted.astype(int) - 128).sum(-1).argmax()])
        self.shape = item.shape
        self.name = f"{self.size} {self.colour} {self.shape}"

    @property
    def place(self) -> str:
        row = ("top", "", "bottom")[int(3 * self.y / SIDE)]
        column = ("left", "", "right")[int(3 * self.x / SIDE)]
        return f"{row} {column}".strip() or "middle"

    def overlaps(self, other: Measured) -> bool:
        return bool((self.mask & other.mask).any())


def _colour(rgb: np.ndarray) -> str:
    """Name a colour by thresholds of hue that are far from the generated ranges."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(rgb / 255))
    if value < 0.22:
        return "black"
    if hue > 0.83 and hue < 0.965 and saturation < 0.75:
        return "pink"
    borders = ((0.04, "red"), (0.12, "orange"), (0.22, "yellow"), (0.5, "green"), (0.7, "blue"), (0.83, "purple"))
    return next((name for border, name in borders if hue < border), "red")


def _link(item: Measured, before: Measured) -> str:
    if item.overlaps(before):
        return "overlapping"
    dy = item.y - before.y
    return "beside" if abs(dy) < 4.75 else "above" if dy < 0 else "below"


def _meant(text: str, items: list[Measured]) -> Measured:
    """Return the one item that words like "red star" describe."""
    found = [item for item in items if set(text.split()) <= set(item.name.split())]
    assert len(found) == 1, (text, [item.name for item in items])
    return found[0]


def _true_answer(question: str, items: list[Measured], scene: Scene) -> str:
    """Answer a question from the measurements."""
    if match := re.search(r"(?:How many|Count the) (\w+) ?(shapes)?", question):
        word = match[1]
        hits = [i for i in items if word in {"shapes", "objects", i.colour, shapes_of(i.shape)}]
        return NUMBERS[len(hits)]
    if match := re.search(r"(?:colou?r) (?:is|has) the (\w+)", question):
        return _meant(match[1], items).colour
    if match := re.search(r"What shape is (\w+)\?|What is the (\w+) shape\?|Which shape is (\w+)\?", question):
        return _meant(next(filter(None, match.groups())), items).shape
    if match := re.search(r"How big is the (.+)\?|Is the (.+) small or large\?|What size is the (.+)\?", question):
        return _meant(next(filter(None, match.groups())), items).size
    if match := re.search(r"Where is the (.+), seen from the (.+)\?", question):
        one, two = _meant(match[1], items), _meant(match[2], items)
        return f"{'above' if one.y < two.y else 'below'} it, to the {'left' if one.x < two.x else 'right'}"
    if match := re.search(r"Where is the (.+)\?", question):
        name = _meant(match[1], items).place
        return {"middle": "in the middle", "left": "on the left", "right": "on the right"}.get(name, f"at the {name}")
    if match := re.search(r"Is the (.+) (left of|right of|above|below) the (.+)\?", question):
        one, two = _meant(match[1], items), _meant(match[3], items)
        true = {
            "left of": one.x < two.x,
            "right of": one.x > two.x,
            "above": one.y < two.y,
            "below": one.y > two.y,
        }
        return "yes" if true[match[2]] else "no"
    if match := re.search(r"next (?:shape )?(left|right) of the (.+)\?", question):
        one = _meant(match[2], items)
        side = [i for i in items if (i.x < one.x if match[1] == "left" else i.x > one.x)]
        return f"a {min(side, key=lambda i: abs(i.x - one.x)).name}" if side else "nothing"
    if match := re.search(r"furthest (\w+)", question):
        key = {"left": lambda i: i.x, "right": lambda i: -i.x, "up": lambda i: i.y, "down": lambda i: -i.y}[match[1]]
        return f"a {min(items, key=key).name}"
    if match := re.search(r"(?:Is there|Do you see) an? (\w+) (\w+)\?", question):
        return "yes" if any((i.colour, i.shape) == (match[1], match[2]) for i in items) else "no"
    if question == "Do any shapes overlap?":
        return "yes" if any(a.overlaps(b) for a in items for b in items if a is not b) else "no"
    if match := re.search(r"What overlaps the (.+)\?", question):
        one = _meant(match[1], items)
        others = [i for i in items if i is not one and i.overlaps(one)]
        return f"a {others[0].name}" if others else "nothing"
    if match := re.search(r"List the (\w+)s from", question):
        return ", ".join(getattr(i, match[1]) for i in sorted(items, key=lambda i: i.x))
    assert re.search(r"written|text|say", question), question
    return scene.writing.text if scene.writing else "nothing"


def test_a_seed_gives_the_same_scenes_and_pixels() -> None:
    first, second = (list(islice(scenes(3, held_out=False), 20)) for _ in range(2))
    assert first == second
    assert all((paint(a)[0] == paint(b)[0]).all() for a, b in zip(first, second, strict=True))
    assert first != list(islice(scenes(4, held_out=False), 20))


def test_freehand_sheets_have_crossing_strokes_and_do_not_change_other_scenes() -> None:
    sheets = list(islice(scenes(3, held_out=False, sketch=True, freehand=1.0), 60))
    assert {len(sheet.items) for sheet in sheets} == {1, 2, 3, 4}
    assert max(item.extent for sheet in sheets for item in sheet.items) > 45
    bare = [(item, sheet) for sheet in sheets for item in sheet.items if item.fill == STROKES]
    assert {item.shape for item, _ in bare} == {"cross"}
    item = max((item for item, _ in bare), key=lambda item: item.extent)
    inked = (paint(Scene((item,), order=(0,)))[0] < 200).any(-1)
    assert inked[round(item.y), round(item.x)], "the strokes meet in the middle"
    assert not inked[round(item.y - item.extent / 4), round(item.x - item.extent / 4)], (
        "between the strokes is empty background"
    )
    plain, mixed = (list(islice(scenes(3, held_out=False, freehand=share), 40)) for share in (0.0, 0.5))
    assert [s for s in mixed if s in plain] == plain[: sum(s in plain for s in mixed)]
    assert 0 < sum(s in plain for s in mixed) < 40


def test_no_scene_is_both_trained_on_and_held_out() -> None:
    assert not any(scene.held_out for scene in islice(scenes(3, held_out=False), 100))
    assert all(scene.held_out for scene in islice(scenes(3, held_out=True), 20))


def test_a_caption_describes_the_image(drawn: list[Scene]) -> None:
    for scene in drawn:
        items = sorted((Measured(item, scene) for item in scene.items), key=lambda item: item.x)
        caption = ask("caption", scene, random.Random(0))
        assert caption is not None
        said = read_caption(caption.answer)
        assert [(s.size, s.colour, s.shape) for s in said] == [(i.size, i.colour, i.shape) for i in items]
        assert [s.place for s in said] == [i.place for i in items]
        assert [s.relation for s in said[1:]] == [_link(b, a) for a, b in pairwise(items)]
        if scene.writing:
            assert f" {scene.writing.text} is written" in caption.answer


@pytest.mark.parametrize("kind", sorted(set(QUESTIONS) - {"caption"}))
def test_answers_agree_with_the_image(kind: str, drawn: list[Scene]) -> None:
    rng = random.Random(kind)
    answers = set()
    for scene in drawn[:60]:
        question = ask(kind, scene, rng)
        if question:
            items = [Measured(item, scene) for item in scene.items]
            assert question.answer == _true_answer(question.question, items, scene), question
            answers.add(question.answer)
    assert len(answers) > 1  # a kind with a single answer would be no question


def test_every_style_states_the_same_facts(drawn: list[Scene]) -> None:
    for scene in drawn[:40]:
        for question in ask_some(scene, 6, random.Random(1)):
            assert len(question.answers) == len(STYLES)
            if question.kind == "caption":
                for text in question.answers:
                    assert all(text.count(i.shape) >= 1 and text.count(i.colour) >= 1 for i in scene.items)


def test_captions_are_scored_object_by_object() -> None:
    right = (
        "There are two shapes. From left to right: a small red star on the left; a large blue cross in the middle,"
        " below it."
    )
    question = Ask("caption", "?", (right, "", ""))
    assert set(caption_scores([right], [question]).values()) == {1.0}
    scores = caption_scores([right.replace("red star", "red heart")], [question])
    assert (scores["shape"], scores["colour"], scores["caption"]) == (0.5, 1.0, 0.0)
    scores = caption_scores([right.split(";")[0] + "."], [question])  # an object is missing
    assert (scores["shape"], scores["relation"], scores["objects"]) == (0.5, 0.0, 0.0)


def test_shards_are_saved_and_loaded_unchanged(tmp_path: Path) -> None:
    fresh = Shards(tmp_path, seed=2, size=8).batch(1, 4, 1)
    again = Shards(tmp_path, seed=2, size=8).batch(1, 4, 1)
    assert list(tmp_path.glob("*.npz"))
    assert fresh[0] == again[0]
    assert (fresh[1] == again[1]).all()
    assert all((paint(scene)[0] == pixels).all() for scene, pixels in zip(fresh[0], fresh[1], strict=True))


def test_patch_labels_count_every_object_once(drawn: list[Scene]) -> None:
    some = [scene for scene in drawn if scene.items][:30]
    shown = np.stack([paint(scene)[1] for scene in some])
    labels = patch_labels(some, shown)
    rank = labels.answers[..., list(ASPECTS).index("rank")]
    for i, scene in enumerate(some):
        seen = sorted(set(rank[i][rank[i] >= 0]))
        assert seen == list(range(len(scene.items)))
        for k in seen:
            assert labels.weights[i][rank[i] == k].sum() == pytest.approx(1.0)
            colours = set(labels.answers[i, rank[i] == k, list(ASPECTS).index("colour")])
            assert colours == {COLOURS.index(scene.items[k].colour)}
    assert labels.mask.sum() <= (shown > 0).sum()


def test_the_gallery_equals_the_recipes_output_and_was_held_out() -> None:
    index = json.loads((ROOT / "assets/scenes/index.json").read_text())
    drawn = gallery_scenes()
    assert [entry["name"] for entry in index["scenes"]] == list(drawn)
    for entry in index["scenes"]:
        scene = drawn[entry["name"]]
        assert scene.held_out
        image = Image.open(ROOT / "assets/scenes" / entry["file"])
        small = np.asarray(image.convert("RGB"))[2::4, 2::4].astype(int)
        assert np.abs(small - paint(scene)[0]).mean() < 1.0  # other Pillow versions may antialias slightly differently
        assert entry["alt"].endswith(entry["answers"][0])
        assert len(entry["questions"]) == len(entry["answers"])


def test_the_lexicon_has_the_kind_of_every_fact(drawn: list[Scene]) -> None:
    lexicon = json.loads((ROOT / "assets/scenes/lexicon.json").read_text())
    kinds = {word: kind for kind, words in lexicon.items() for word in words}
    assert sum(map(len, lexicon.values())) == len(kinds)  # no word has two kinds
    for scene in drawn[:20]:
        for item in scene.items:
            assert [kinds[word] for word in item.name.split()] == ["size", "colour", "shape"]
    assert all(kinds[shapes_of(shape)] == "shape" for shape in SHAPES)
