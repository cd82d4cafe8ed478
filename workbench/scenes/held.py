"""Scenes that no model was trained on, and how long their descriptions are."""

from __future__ import annotations

from itertools import islice

from workbench.scenes.scene import FREEHAND, Scene, scenes

HELD_SEED = 9
CAPTION_TOKENS = 136


def held_scenes(count: int, sketch: bool | None = None, freehand: float = FREEHAND) -> list[Scene]:
    """Return the first held-out scenes; see `scenes` for the choice."""
    return list(islice(scenes(HELD_SEED, held_out=True, sketch=sketch, freehand=freehand), count))
