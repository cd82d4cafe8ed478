"""The app's bundled gallery of held-out scenes: images, questions, and the words that state facts."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.scenes.draw import picture
from workbench.scenes.scene import Scene, scenes
from workbench.scenes.tasks import LEXICON, QUESTIONS, Ask, ask
from workbench.trace.files import replace_atomically, write_atomically
from workbench.training.loop import Report

GALLERY_SEED = 31
QUESTION = "Describe every object, left to right."
HARD = {"neighbour"}
"""Kinds of question that the bundled target often answers wrongly; the gallery lists them last."""
GENERAL_QUESTIONS = (
    QUESTION,
    "How many shapes are there?",
    "List the colours from left to right.",
    "List the shapes from left to right.",
    "Do any shapes overlap?",
    "What is written?",
)
"""Questions in the gallery that fit every image."""


@dataclass
class GalleryOptions:
    """Options of the `vision-gallery` recipe.

    Attributes:
        out: Folder of the gallery.
        scale: Enlargement factor of the images: each pixel becomes a square block, which looks sharp on screens.
    """

    out: Path = Path("assets/scenes")
    scale: int = 4


SCENE_PROPERTIES: dict[str, dict[str, Any]] = {
    "four-shapes": {"count": 4, "sketch": False, "writing": None, "overlap": False},
    "six-shapes": {"count": 6, "sketch": False, "writing": None, "overlap": False},
    "overlap": {"count": 3, "sketch": False, "writing": None, "overlap": True},
    "sketch": {"count": 4, "sketch": True, "writing": None, "overlap": False},
    "sketch-overlap": {"count": 3, "sketch": True, "writing": None, "overlap": True},
    "number": {"count": 3, "sketch": False, "writing": "number", "overlap": False},
    "word": {"count": 3, "sketch": True, "writing": "word", "overlap": False},
    "dark": {"count": 4, "sketch": False, "writing": None, "overlap": False},
    "alike": {"count": 5, "sketch": False, "writing": None, "overlap": False},
    "one": {"count": 1, "sketch": True, "writing": None, "overlap": False},
    "only-a-number": {"count": 0, "sketch": False, "writing": "number", "overlap": False},
    "crowd": {"count": 6, "sketch": True, "writing": "number", "overlap": False},
}
"""The scenes of the gallery and their required properties."""


def _fits(name: str, scene: Scene, properties: dict[str, Any]) -> bool:
    is_dark = sum(scene.background) < 330
    shapes = [item.shape for item in scene.items]
    return (
        (scene.writing.kind if scene.writing else None) == properties["writing"]
        and bool(scene.overlaps) == properties["overlap"]
        and is_dark == (name == "dark")
        and (name != "alike" or max(map(shapes.count, shapes)) >= 3)
    )


def gallery_scenes() -> dict[str, Scene]:
    """Return the scenes of the gallery by name, all held out of training."""
    return {
        name: next(
            scene
            for scene in scenes(GALLERY_SEED, True, properties["sketch"], properties["count"], freehand=0.0)
            if _fits(name, scene, properties)
        )
        for name, properties in SCENE_PROPERTIES.items()
    }


def presets(scene: Scene, name: str) -> list[Ask]:
    """Return questions about a scene, one of each kind that applies, the caption first."""
    rng = random.Random(f"gallery/{name}")
    questions = [question for kind in QUESTIONS if (question := ask(kind, scene, rng))]
    questions.sort(key=lambda question: question.kind in HARD)
    caption = questions[0]
    return [Ask("caption", QUESTION, caption.answers), *questions[1:]]


def write_gallery(options: GalleryOptions, report: Report) -> dict[str, Any]:
    """Write the gallery: images, `index.json` with alternative texts, questions and answers, and `lexicon.json`."""
    options.out.mkdir(parents=True, exist_ok=True)
    entries = []
    for name, scene in gallery_scenes().items():
        image = picture(scene)
        large = image.resize((image.width * options.scale, image.height * options.scale), resample=0)
        with replace_atomically(options.out / f"{name}.png") as part:
            large.save(part, "PNG", optimize=True)
        questions = presets(scene, name)
        entries.append(
            {
                "name": name,
                "title": name.replace("-", " ").capitalize(),
                "file": f"{name}.png",
                "alt": f"{'Sketch' if scene.sketch else 'Picture'}. {questions[0].answer}",
                "questions": [a.question for a in questions],
                "answers": [a.answer for a in questions],
            }
        )
    index = {"questions": list(GENERAL_QUESTIONS), "scenes": entries}
    write_atomically(options.out / "index.json", (json.dumps(index, indent=1) + "\n").encode())
    write_atomically(options.out / "lexicon.json", (json.dumps(LEXICON, indent=1) + "\n").encode())
    report(f"vision-gallery: {len(entries)} scenes in {options.out}")
    return {"scenes": len(entries), "out": str(options.out)}
