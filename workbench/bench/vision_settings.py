"""Settings of the vision suite: drafters with their parameters, and questions about held-out scenes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image

from workbench.decoders.declarations import Setting
from workbench.methods import registry
from workbench.scenes.draw import picture
from workbench.scenes.held import held_scenes
from workbench.scenes.tasks import LEXICON, QUESTIONS, ask

SUITE = "vision"
"""Key in `Method.suites` under which methods declare their settings for the vision suite."""
DEPTH = 5
"""Draft depth of every drafter: the same for all, so that τ compares predictions and not draft lengths."""
CAPTION, SHORT = "captions", "short answers"
GROUPS = ("all", CAPTION, SHORT)
FACTS = {word: "fact" for words in LEXICON.values() for word in words}
"""Caption words that state facts of an image, such as colours."""
SCENES, QUESTIONS_EACH = 40, 4
"""Number of held-out scenes that are captioned, and number of questions of each kind other than captions."""


def settings() -> list[Setting]:
    """Return the settings of the vision suite that the methods declare, method by method."""
    return [setting for method in registry.methods() for setting in method.suites.get(SUITE, ())]


@dataclass(frozen=True)
class SceneQuestion:
    """A question about a held-out scene."""

    kind: str
    question: str
    image: Image.Image
    scene: int


def questions(scenes: int, short: int, seed: int = 5) -> list[SceneQuestion]:
    """Return questions about held-out scenes: `scenes` caption questions, and `short` questions of each other kind."""
    result: list[SceneQuestion] = []
    for kind in QUESTIONS:
        rng = random.Random(f"{kind}/{seed}")
        of_kind: list[SceneQuestion] = []
        for i, scene in enumerate(held_scenes(scenes)):
            task = ask(kind, scene, rng)
            if task is not None and len(of_kind) < (scenes if kind == "caption" else short):
                of_kind.append(SceneQuestion(kind, task.question, picture(scene), i))
        result += of_kind
    return result
