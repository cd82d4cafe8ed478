"""The pictures of a prompt as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PNG_URL = "data:image/png;base64,"
"""How the address of a picture in a trace begins: pictures are in the trace, and never fetched from anywhere."""


_PNG_URL = re.compile(rf"{PNG_URL}[A-Za-z0-9+/=]*", re.ASCII)


def is_png_url(url: object) -> bool:
    """Return whether something is the data-URL of a PNG, from its first character to its last.

    Nothing may follow its base64: a quote, say, would end an attribute of an exported page.
    """
    return isinstance(url, str) and _PNG_URL.fullmatch(url) is not None


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
