"""Users' images: readable ones are normalised, others are refused with a message."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from workbench.core.errors import PromptError
from workbench.service import image_decoding
from workbench.service.choices import resizes_to_square
from workbench.service.image_decoding import decode, decode_all


def file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def url(raw: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"


def turned() -> bytes:
    """Return a JPEG of 20 × 10 pixels with an EXIF rotation by 90°; its left half is red."""
    image = Image.new("RGB", (20, 10), "blue")
    image.paste("red", (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6
    return file(image, "JPEG", exif=exif, quality=95)


def bomb(width: int, height: int) -> bytes:
    """Return a small PNG whose header declares a huge image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    return file(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)


def paletted() -> bytes:
    image = Image.new("P", (6, 6), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    return file(image, transparency=1)


DEEP = np.array([[0, 257, 65535]], np.uint16)
ODD: dict[str, tuple[Any, tuple[int, int], tuple[int, int, int]]] = {
    "one pixel": (file(Image.new("RGB", (1, 1), "lime")), (1, 1), (0, 255, 0)),
    "a line": (file(Image.new("L", (4000, 1), 128)), (2048, 1), (128, 128, 128)),
    "clear": (file(Image.new("RGBA", (5, 5), (255, 0, 0, 0))), (5, 5), (255, 255, 255)),
    "half clear": (file(Image.new("RGBA", (5, 5), (255, 0, 0, 128))), (5, 5), (255, 127, 127)),
    "clear grey": (file(Image.new("LA", (5, 5), (0, 0))), (5, 5), (255, 255, 255)),
    "clear colour of a palette": (paletted(), (6, 6), (255, 255, 255)),
    "16 bits": (file(Image.fromarray(DEEP)), (3, 1), (0, 0, 0)),
    "1 bit": (file(Image.new("1", (9, 9), 1)), (9, 9), (255, 255, 255)),
    "CMYK": (file(Image.new("CMYK", (9, 9), (0, 0, 0, 0)), "JPEG"), (9, 9), (255, 255, 255)),
    "WebP": (file(Image.new("RGB", (9, 7), "red"), "WEBP", lossless=True), (9, 7), (255, 0, 0)),
    "data-URL": (url(file(Image.new("RGB", (3, 3), "red"))), (3, 3), (255, 0, 0)),
    "PIL": (Image.new("RGBA", (3, 3)), (3, 3), (255, 255, 255)),
    "large": (file(Image.new("RGB", (5000, 2500), "red"), "JPEG", quality=95), (2048, 1024), (254, 0, 0)),
}


@pytest.mark.parametrize("name", ODD)
def test_unusual_images_are_read(name: str) -> None:
    data, size, corner = ODD[name]
    image = decode(data)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", size, corner)
    assert not image.info


def test_sixteen_bits_keep_their_scale() -> None:
    assert [decode(file(Image.fromarray(DEEP))).getpixel((x, 0))[0] for x in range(3)] == [0, 1, 255]  # type: ignore[index]


def test_exif_rotation_is_applied() -> None:
    image = decode(turned())
    assert image.size == (10, 20)
    red, blue = image.getpixel((5, 3)), image.getpixel((5, 16))
    assert red[0] > 200 > 60 > red[2]  # type: ignore[index]
    assert blue[2] > 200 > 60 > blue[0]  # type: ignore[index]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_used_and_reported(kind: str) -> None:
    image = decode(animated(kind))
    assert image.getpixel((3, 3))[0] > 200  # type: ignore[index]
    assert "first frame" in image.info[image_decoding.NOTE]


BAD: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "empty"),
    "text": (b"hello", "not an image"),
    "HTML": (b"<!doctype html><img src=x>", "not an image"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
    "another format": (file(Image.new("RGB", (9, 9)), "BMP"), "not an image"),
    "cut": (file(Image.effect_noise((64, 64), 50))[:400], "damaged"),
    "bomb": (bomb(60_000, 60_000), "pixels|too large"),
    "large bomb": (bomb(2**31 - 1, 2**31 - 1), "pixels|too large"),
    "not quite a bomb": (bomb(7000, 7000), "the limit is 40 million"),
    "many bytes": (bytes(image_decoding.MAX_BYTES + 1), "MiB"),
    "another kind of data-URL": ("data:text/html;base64,AAAA", "no image in base64"),
    "data-URL without base64": ("data:image/png,abc", "no image in base64"),
    "damaged data-URL": ("data:image/png;base64,@@@@", "damaged"),
    "empty data-URL": ("data:image/png;base64,", "empty"),
    "long data-URL": ("data:image/png;base64," + "A" * (12 << 20), "MiB"),
    "no path": ("x\x00y", "cannot be read"),
    "no file": ("/nowhere/x.png", "cannot be read: No such file"),
    "a folder": ("/", "cannot be read|not an image"),
    "number": (5, "neither a file nor"),
    "none": (None, "neither a file nor"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_images_are_refused_with_a_message(name: str) -> None:
    data, words = BAD[name]
    with pytest.raises(PromptError, match=words) as caught:
        decode(data)
    assert caught.value.remedy
    assert len(str(caught.value)) < 400


def test_the_invalid_image_of_several_is_named() -> None:
    good = file(Image.new("RGB", (3, 3)))
    assert len(decode_all([good] * 3)) == 3
    with pytest.raises(PromptError, match="Image 2: The file is not an image"):
        decode_all([good, b"no"])
    with pytest.raises(PromptError, match="9 images were given; the limit is 8"):
        decode_all([good] * 9)
    for not_a_list in (good, "x.png", 5):
        with pytest.raises(PromptError, match="must be a list"):
            decode_all(not_a_list)


def test_damaged_files_raise_only_prompt_errors() -> None:
    """Bytes are changed, cut and doubled at random; the result is an image or a `PromptError`."""
    chance = random.Random(6)  # with this seed all kinds of outcome occur
    noise = Image.frombytes("L", (24, 24), chance.randbytes(24 * 24))
    files = [file(noise), file(noise, "JPEG"), file(noise, "WEBP"), animated("GIF"), paletted(), turned()]
    outcomes = set()
    for _ in range(400):
        raw = bytearray(chance.choice(files))
        for _ in range(chance.randint(1, 12)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        if chance.random() < 0.3:
            raw = raw[: chance.randrange(len(raw))]
        try:
            image = decode(bytes(raw))
            assert image.mode == "RGB"
            assert max(image.size) <= image_decoding.LONGEST
            outcomes.add("read")
        except PromptError as error:
            outcomes.add(error.message.split()[-1])
    assert {"read", "format.", "(OSError)."} <= outcomes


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for data, _, _ in ODD.values():
        decode(data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "squeezed"),
    [
        ("processor_config.json", {"image_processor": {"size": {"height": 64, "width": 64}}}, True),
        ("preprocessor_config.json", {"size": {"height": 224, "width": 224}}, True),
        (
            "preprocessor_config.json",
            {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
            False,
        ),
        ("preprocessor_config.json", {"size": 224}, False),
        ("config.json", {}, False),
    ],
)
def test_targets_that_need_square_images_are_detected(
    tmp_path: Path, name: str, content: dict[str, Any], squeezed: bool
) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    assert resizes_to_square(tmp_path) is squeezed
