"""Decode images from users: check the size, rotate them upright, and give transparent ones a white background.

Images are never written to disk.
"""

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
"""Maximum file size of an image from a user, in bytes."""
MAX_PIXELS = 40_000_000
"""Maximum number of pixels of an image; the number is read from the file's header before decoding."""
DECODING = threading.BoundedSemaphore(2)
"""Semaphore that limits the number of requests whose images are decoded at the same time.

The decoded images of one request may take 128 MiB, and the decoding of each image briefly takes more.
"""
PIXEL_BYTES = 4
"""Bytes per pixel of an RGB image in Pillow."""
MAX_IMAGES = 8
"""Maximum number of images in a prompt."""
LONGEST = 2048
"""Maximum width and height of an image in pixels; larger images are scaled down with their aspect ratio kept."""
NOTE = "note"
"""Key in `Image.info` of a note for the user about the decoding of the image."""
_URL = re.compile(r"data:image/[\w.+-]{1,40};base64,", re.ASCII)
_REMEDY = f"Give a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file."


def decode_all(images: Any) -> tuple[Image.Image, ...]:
    """Decode a list of images, each of which `decode` accepts.

    Raises:
        PromptError: there are too many images, or one cannot be read; the message says which.
    """
    if isinstance(images, (str, bytes, Path, Image.Image)) or not isinstance(images, Sequence):
        raise PromptError("`images` must be a list.", "Give a list, also for a single image.")
    if len(images) > MAX_IMAGES:
        raise PromptError(f"{len(images)} images were given; the limit is {MAX_IMAGES}.", "Give fewer images.")
    if not images:
        return ()
    with DECODING:
        return tuple(_numbered(picture, i, len(images)) for i, picture in enumerate(images))


def _numbered(data: Any, i: int, n: int) -> Image.Image:
    try:
        return decode(data)
    except PromptError as error:
        raise PromptError(f"Image {i + 1}: {error.message}" if n > 1 else error.message, error.remedy) from error


def image_bytes(pictures: Sequence[Image.Image], images: Mapping[str, Any] | None = None) -> int:
    """Return the memory in bytes of a run's images.

    Args:
        pictures: decoded images.
        images: tensors that a model's processor computed from them.
    """
    n_bytes = sum(PIXEL_BYTES * picture.width * picture.height for picture in pictures)
    return n_bytes + sum(getattr(tensor, "nbytes", 0) for tensor in (images or {}).values())


def trim() -> None:
    """Make glibc return freed memory to the system.

    glibc does not return the memory of image tensors without this call: they are smaller than its threshold for
    returning memory, which rises when a larger block is freed.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def decode(data: Any) -> Image.Image:
    """Decode an image to RGB, rotated by its EXIF data, with a white background if it is transparent.

    Only the first frame of an animation is used; the returned image's `info["note"]` then says so.

    Args:
        data: bytes of a file, a data-URL, a path (in this process only: `workbench.client.wire` accepts nothing but
            data-URLs), or a PIL image.

    Raises:
        PromptError: `data` is not an image, is damaged, or larger than `MAX_BYTES` or `MAX_PIXELS`.
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
        raise PromptError("The image is too large to be decoded.", "Give a smaller image.") from None
    except UnidentifiedImageError:
        raise PromptError("The file is not an image in a supported format.", _REMEDY) from None
    except Exception as error:  # decoders raise many kinds on damaged files
        raise PromptError(f"The image is damaged ({type(error).__name__}).", _REMEDY) from None


def _bytes_of(data: Any) -> bytes:
    if isinstance(data, str) and data.startswith("data:"):
        prefix = _URL.match(data[:100])
        if prefix is None:
            raise PromptError(
                "The data-URL has no image in base64.", 'A data-URL begins with "data:image/png;base64,", for example.'
            )
        _check_bytes(len(data) * 3 // 4)
        try:
            raw = base64.b64decode(data[prefix.end() :], validate=True)
        except (binascii.Error, ValueError):
            raise PromptError("The data-URL of the image is damaged: its data are not base64.", _REMEDY) from None
    elif isinstance(data, (str, Path)):
        try:
            path = Path(data).expanduser()
            _check_bytes(path.stat().st_size)
            raw = read_regular(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "its value is not a valid path"
            raise PromptError(f"{str(data)[:200]} cannot be read: {reason}.", _REMEDY) from None
    elif isinstance(data, (bytes, bytearray, memoryview)):
        raw = bytes(data)
    else:
        raise PromptError("An image is neither a file nor a data-URL.", _REMEDY)
    _check_bytes(len(raw))
    if not raw:
        raise PromptError("The image is an empty file.", _REMEDY)
    return raw


def _check_bytes(n: int) -> None:
    if n > MAX_BYTES:
        raise PromptError(
            f"The image has {n / 2**20:.0f} MiB; the limit is {MAX_BYTES >> 20} MiB.", "Give a smaller image."
        )


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        limit = f"the limit is {MAX_PIXELS // 10**6} million pixels"
        raise PromptError(f"The image has {image.width:,} × {image.height:,} pixels; {limit}.", "Give a smaller image.")


def _finished(image: Image.Image) -> Image.Image:
    _check_size(image)
    note = ""
    if getattr(image, "is_animated", False):
        image.seek(0)
        note = "The image is animated; only its first frame is used."
    upright = ImageOps.exif_transpose(image)
    opaque = _opaque(upright)
    opaque.thumbnail((LONGEST, LONGEST))
    opaque.info = {NOTE: note} if note else {}
    return opaque


def _opaque(image: Image.Image) -> Image.Image:
    """Convert an image to RGB with eight bits per channel, on a white background."""
    if image.mode.startswith("I"):  # 16 bits per pixel; `convert` would clip values above 255
        values = np.asarray(image).astype(np.float64)
        image = Image.fromarray((values / 257).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")
