"""Describe the images of a prompt as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PNG_URL = "data:image/png;base64,"
"""Prefix of an image URL in a trace: images are stored in the trace and never fetched."""


_PNG_URL = re.compile(rf"{PNG_URL}[A-Za-z0-9+/=]*", re.ASCII)


def is_png_url(url: object) -> bool:
    """Return whether a value is a PNG data URL and nothing else.

    The whole string is matched: a quote after the base64 data would end the HTML attribute of an exported page.
    """
    return isinstance(url, str) and _PNG_URL.fullmatch(url) is not None


@dataclass(slots=True)
class PromptImage:
    """Image of a prompt in the form in which the target receives it: after resizing, before normalisation.

    Attributes:
        url: PNG data URL.
        width: width in pixels.
        height: height in pixels.
        rows: rows of patches that became vision tokens. rows · cols is the number of vision tokens, unless the model
            family adds tokens or splits the image into tiles (then rows is 1).
        cols: columns of patches.
        start: position in the prompt of the image's first vision token.
        end: position after the image's last vision token.
    """

    url: str
    width: int
    height: int
    rows: int
    cols: int
    start: int
    end: int


def images_of(vision: Mapping[str, Any]) -> list[Any]:
    """Return all images that the field `vision` of a recorded round contains, as JSON data."""
    return [picture for name in ("pictures", "target_pictures") for picture in vision.get(name) or ()]
