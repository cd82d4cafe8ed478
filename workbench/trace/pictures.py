"""The pictures of a prompt as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PNG_URL = "data:image/png;base64,"
"""How the address of a picture in a trace begins: pictures are in the trace, and never fetched from anywhere."""


@dataclass(slots=True)
class Picture:
    """A picture of the prompt, as the target saw it: after resizing, before its normalisation.

    Attributes:
        url: data-URL of a PNG.
        width: in pixels.
        height: in pixels.
        rows: rows of patches that became vision tokens; rows · cols is their number, unless the family adds some of
            its own or cuts the picture into tiles (then one row).
        cols: columns.
        start: position in the prompt of its first vision token.
        end: position behind its last one.
    """

    url: str
    width: int
    height: int
    rows: int
    cols: int
    start: int
    end: int


def pictures_of(vision: Mapping[str, Any]) -> list[Any]:
    """The pictures that a round's `vision` names, the drafter's and the target's, as plain JSON."""
    return [picture for name in ("pictures", "target_pictures") for picture in vision.get(name) or ()]
