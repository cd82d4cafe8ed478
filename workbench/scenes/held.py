"""Generate held-out scenes: synthetic images on which no model was trained."""

from __future__ import annotations

from itertools import islice

from workbench.scenes.scene import FREEHAND, Scene, scenes

HELD_SEED = 9
CAPTION_TOKENS = 136
"""Maximum length in tokens of a model's description of a scene."""


def held_scenes(count: int, sketch: bool | None = None, freehand: float = FREEHAND) -> list[Scene]:
    """Return the first `count` held-out scenes. The arguments are those of `workbench.scenes.scene.scenes`."""
    return list(islice(scenes(HELD_SEED, held_out=True, sketch=sketch, freehand=freehand), count))
