"""Pictures from users: bounded before they are decoded, made upright and opaque, never written anywhere."""

from __future__ import annotations

import base64
import binascii
import contextlib
import ctypes
import io
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from workbench.core.errors import PromptError
from workbench.trace.files import read_regular

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_BYTES = 8 * 2**20
"""Of one picture, as a file."""
MAX_PIXELS = 40_000_000
"""Of one picture, by what its file says, before any of them is decoded."""
DECODING = threading.BoundedSemaphore(2)
"""Requests whose pictures are decoded at once: each may take 128 MiB, and a moment more for each picture."""
PIXEL_BYTES = 4
"""Of an RGB picture in Pillow, which keeps four bytes for each pixel."""
MAX_PICTURES = 8
"""In one prompt."""
LONGEST = 2048
"""Longest side in pixels that is kept: what is larger is made smaller, keeping its proportions."""
NOTE = "note"
"""Key in `Image.info` of what a user should know about how a picture was read."""
_URL = re.compile(r"data:image/[\w.+-]{1,40};base64,", re.ASCII)
_REMEDY = f"Give a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file."


def decode_all(pictures: Any) -> tuple[Image.Image, ...]:
    """Several pictures; see `decode`.

    Raises:
        PromptError: too many, or one that cannot be read; the message says which.
    """
    if isinstance(pictures, (str, bytes, Path, Image.Image)) or not isinstance(pictures, Sequence):
        raise PromptError("The pictures are not a list.", "Give a list, of one picture even.")
    if len(pictures) > MAX_PICTURES:
        raise PromptError(f"{len(pictures)} pictures came; {MAX_PICTURES} are the limit.", "Leave some out.")
    if not pictures:
        return ()
    with DECODING:
        return tuple(_numbered(picture, i, len(pictures)) for i, picture in enumerate(pictures))


def _numbered(data: Any, i: int, n: int) -> Image.Image:
    try:
        return decode(data)
    except PromptError as error:
        raise PromptError(f"Picture {i + 1}: {error.message}" if n > 1 else error.message, error.remedy) from error


def picture_bytes(pictures: Sequence[Image.Image], images: Mapping[str, Any] | None = None) -> int:
    """Return how many bytes pictures take that are kept with a run.

    Args:
        pictures: decoded.
        images: the tensors that a model's processor made of them.
    """
    n_bytes = sum(PIXEL_BYTES * picture.width * picture.height for picture in pictures)
    return n_bytes + sum(getattr(tensor, "nbytes", 0) for tensor in (images or {}).values())


def trim() -> None:
    """Give freed memory back to the system, where the C library keeps it for itself (glibc).

    Tensors of pictures are below the size from which glibc returns memory by itself, once it has freed such a block.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def decode(data: Any) -> Image.Image:
    """A picture as RGB, turned as its EXIF data says, on white where it is transparent.

    Of an animation the first frame is taken; `info["note"]` then says so.

    Args:
        data: bytes of a file, a data-URL, a path (in this process only: `workbench.client.wire` lets data-URLs through
            and nothing else), or a PIL image.

    Raises:
        PromptError: it is no picture, is damaged, or larger than `MAX_BYTES` or `MAX_PIXELS`.
    """
    if isinstance(data, Image.Image):
        return _finished(data)
    raw = _bytes_of(data)
    try:
        with Image.open(io.BytesIO(raw), formats=FORMATS) as image:
            _check_size(image)
            image.draft("RGB", (LONGEST, LONGEST))  # a JPEG is decoded at a fraction of its size
            return _finished(image)
    except PromptError:
        raise
    except (Image.DecompressionBombError, MemoryError):
        raise PromptError("The picture is too large to be read.", "Make it smaller.") from None
    except UnidentifiedImageError:
        raise PromptError("This is no picture that can be read.", _REMEDY) from None
    except Exception as error:  # decoders raise many kinds on damaged files
        raise PromptError(f"The picture is damaged ({type(error).__name__}).", _REMEDY) from None


def _bytes_of(data: Any) -> bytes:
    if isinstance(data, str) and data.startswith("data:"):
        begin = _URL.match(data[:100])
        if begin is None:
            raise PromptError("The data-URL holds no picture in base64.", 'It begins with "data:image/png;base64,".')
        _check_bytes(len(data) * 3 // 4)
        try:
            raw = base64.b64decode(data[begin.end() :], validate=True)
        except (binascii.Error, ValueError):
            raise PromptError("The data-URL is damaged: it is not base64.", _REMEDY) from None
    elif isinstance(data, (str, Path)):
        try:
            path = Path(data).expanduser()
            _check_bytes(path.stat().st_size)
            raw = read_regular(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "this is no path"
            raise PromptError(f"{str(data)[:200]} cannot be read: {reason}.", _REMEDY) from None
    elif isinstance(data, (bytes, bytearray, memoryview)):
        raw = bytes(data)
    else:
        raise PromptError("A picture is neither a file nor a data-URL.", _REMEDY)
    _check_bytes(len(raw))
    if not raw:
        raise PromptError("The picture is an empty file.", _REMEDY)
    return raw


def _check_bytes(n: int) -> None:
    if n > MAX_BYTES:
        raise PromptError(
            f"The picture has {n / 2**20:.0f} MiB; at most {MAX_BYTES >> 20} are read.", "Make it smaller."
        )


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        most = f"at most {MAX_PIXELS // 10**6} million are read"
        raise PromptError(f"The picture has {image.width:,} × {image.height:,} pixels; {most}.", "Make it smaller.")


def _finished(image: Image.Image) -> Image.Image:
    _check_size(image)
    note = ""
    if getattr(image, "is_animated", False):
        image.seek(0)
        note = "The picture is animated: its first frame is used."
    upright = ImageOps.exif_transpose(image)
    flat = _opaque(upright)
    flat.thumbnail((LONGEST, LONGEST))
    flat.info = {NOTE: note} if note else {}
    return flat


def _opaque(image: Image.Image) -> Image.Image:
    """RGB, eight bits a channel, on white."""
    if image.mode.startswith("I"):  # 16 bits a pixel; a conversion would cut off what is above 255
        values = np.asarray(image).astype(np.float64)
        image = Image.fromarray((values / 257).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")
