"""Hostile images through the API and `/v1`: proper errors, no leaks, nothing left behind."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving
from fastapi import FastAPI
from PIL import Image
from vision_model_helpers import IMAGE, noise_image, tiny_vision_models

from workbench import Workbench
from workbench.server.routes import router
from workbench.service import Limits
from workbench.ui.api import Endpoints

LEAKS = ("Traceback", 'File "', "site-packages", "/work/", "/home/", "/tmp/", "root:x:0", "0x7f")
CHAT = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}" + IMAGE + "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}ab"
)


def data_url(image: Image.Image, kind: str = "PNG", **options: Any) -> str:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


GOOD = data_url(noise_image(1))
BAD: dict[str, Any] = {
    "a path": "/etc/passwd",
    "a file": "file:///etc/passwd",
    "an address": "http://169.254.169.254/latest/meta-data",
    "text": "data:text/html;base64,PHNjcmlwdD4=",
    "SVG": "data:image/svg+xml;base64," + base64.b64encode(b"<svg onload='alert(1)'/>").decode(),
    "not base64": "data:image/png;base64,%%%",
    "empty": "data:image/png;base64,",
    "no picture": "data:image/png;base64," + base64.b64encode(b"hello").decode(),
    "cut": GOOD[: len(GOOD) // 2 // 4 * 4],
    "huge": data_url(Image.new("L", (9000, 9000))),
    "number": 7,
    "object": {"url": GOOD},
    "list": [GOOD],
    "none": None,
}
BAD_LISTS: dict[str, Any] = {"a string": GOOD, "too many": [GOOD] * 9, "far too many": [GOOD] * 500, "number": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny vision-language model in the Hub's layout."""
    place = tmp_path_factory.mktemp("vision")
    models = tiny_vision_models(vocabulary=20)
    models.processor.tokenizer.chat_template = CHAT
    models.target.model.save_pretrained(place)
    models.processor.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def bench(folder: Path) -> Iterator[Workbench]:
    """Yield a backend that must end as it started, and check that the temporary folder is empty."""
    temporary = folder / "temporary"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        with Workbench(target=str(folder), drafter="none", dtype="float64", device="cpu", allow_models=()) as bench:
            wanted = bench.generate("abc", "prompt-lookup", images=[GOOD], max_new_tokens=8).token_ids
            yield bench
            assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0), "a sequence is left"
            assert bench.generate("abc", "prompt-lookup", images=[GOOD], max_new_tokens=8).token_ids == wanted
            assert bench.health()["status"] == "ok"
    assert list(temporary.iterdir()) == [], "nothing was written"


def call(bench: Workbench, name: str, *arguments: Any, **named: Any) -> dict[str, Any]:
    asked = getattr(Endpoints(bench), name)(*arguments, **named)
    if not hasattr(asked, "__aiter__"):
        return asyncio.run(asked)

    async def last() -> dict[str, Any]:
        return [message async for message in asked][-1]

    return asyncio.run(last())


def ended(bench: Workbench, run: str) -> dict[str, Any]:
    assert serving.wait_until(lambda: bench._backend.run(run).ended)
    return call(bench, "since", run)


def refusal(bench: Workbench, images: Any, prompt: Any = "abc", **more: Any) -> str:
    """Return the API's error for a request that must be refused."""
    answer = call(bench, "start", prompt, None, method="prompt-lookup", images=images, max_new_tokens=4, **more)
    assert set(answer) == {"error"}, answer
    error = answer["error"]
    assert error["kind"] == "PromptError", error
    assert error["remedy"]
    said = json.dumps(answer)
    assert not any(leak in said for leak in LEAKS), said
    assert len(said) < 700
    return error["message"]


@pytest.mark.parametrize("name", BAD)
def test_invalid_images_are_refused(name: str, bench: Workbench) -> None:
    refusal(bench, [BAD[name]])
    refusal(bench, [GOOD, BAD[name]])


@pytest.mark.parametrize("name", BAD_LISTS)
def test_invalid_lists_of_images_are_refused(name: str, bench: Workbench) -> None:
    refusal(bench, BAD_LISTS[name])


@pytest.mark.parametrize(
    "prompt",
    [f"a{IMAGE}b{IMAGE}c", [1, 19, 19, 2], f"ab{IMAGE}", [1, *[19] * 4, *[19] * 4, 2], IMAGE * 100 + "a"],
    ids=["two places", "two places as ids", "at the end", "tokens of two pictures", "many places"],
)
def test_placeholders_that_do_not_match_the_images_are_refused(prompt: Any, bench: Workbench) -> None:
    assert "image" in refusal(bench, [GOOD], prompt)


def test_placeholders_without_images_are_refused(bench: Workbench) -> None:
    for prompt in (f"a{IMAGE}b", [1, 19, 2], [1, *[19] * 4, 2]):
        run = call(bench, "start", prompt, None, method="prompt-lookup")
        news = ended(bench, run["run"]) if "run" in run else run
        assert "no image was given" in json.dumps(news)


def test_a_quoted_placeholder_in_a_conversation_is_text(bench: Workbench) -> None:
    content = [{"type": "image"}, {"type": "text", "text": f"{IMAGE}{IMAGE}c"}]
    ids = call(bench, "chat_prompt", [{"role": "user", "content": content}])["chat_prompt"]
    assert ids.count(19) == 1
    trace = bench.generate(ids, "prompt-lookup", images=[GOOD], max_new_tokens=4)
    assert trace.header.prompt_tokens.count(19) == 4, "the vision tokens of one image"


def test_unusual_images_are_read_and_conversions_are_reported(bench: Workbench) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    odd = [
        data_url(Image.new("RGB", (1, 1), "red")),
        data_url(Image.new("I;16", (9, 9), 40_000)),
        data_url(Image.new("RGBA", (30, 3), (0, 0, 0, 0))),
        data_url(frames[0], "GIF", save_all=True, append_images=frames[1:]),
    ]
    run = call(bench, "start", "abc", None, method="prompt-lookup", images=odd, max_new_tokens=4)
    news = ended(bench, run["run"])
    assert news["state"] == "finished"
    assert [(p["start"], p["end"]) for p in news["header"]["pictures"]] == [(0, 4), (4, 8), (8, 12), (12, 16)]
    assert any("first frame" in warning for warning in news["footer"]["warnings"])


def test_no_user_sees_another_users_image(bench: Workbench) -> None:
    colours = ["red", "lime", "blue", "white", "black", "gold"]
    runs = {}
    for colour in colours:
        picture = data_url(Image.new("RGB", (8, 8), colour))
        run = bench.start("abcab", "prompt-lookup", images=[picture], max_new_tokens=24, user=colour)
        runs[colour] = run.id
    shown = {colour: ended(bench, run)["header"]["pictures"] for colour, run in runs.items()}
    for colour, pictures in shown.items():
        raw = base64.b64decode(pictures[0]["url"].partition(",")[2])
        with Image.open(io.BytesIO(raw)) as image:
            assert len(pictures) == 1
            assert image.convert("RGB").getcolors() == [(64, Image.new("RGB", (1, 1), colour).getpixel((0, 0)))]
    assert len({pictures[0]["url"] for pictures in shown.values()}) == len(colours)


def test_invalid_image_changes_do_not_affect_a_run(bench: Workbench) -> None:
    run = call(bench, "start", "abc", None, method="prompt-lookup", images=[GOOD], max_new_tokens=8, paused=True)["run"]
    for images, sees in (([GOOD, GOOD], "both"), ([GOOD], "everybody"), (["/etc/passwd"], "both"), ("x", "both")):
        answer = call(bench, "change", run, images=images, sees=sees)
        assert set(answer) == {"error"}
        assert not any(leak in json.dumps(answer) for leak in LEAKS)
    assert call(bench, "explain", run)["error"]["remedy"]
    other = data_url(noise_image(5, side=50))
    assert "error" not in call(bench, "change", run, images=[other])
    call(bench, "control", run, "resume")
    news = ended(bench, run)
    assert [c["name"] for r in news["rounds"] for c in r["changes"]] == ["pictures"]
    found = call(bench, "explain", run)["attribution"]
    assert len(found["p_blind"]) == len(found["target"]["attention"]) == 8
    assert "error" in call(bench, "change", run, images=[GOOD])
    text = call(bench, "start", "abc", None, method="prompt-lookup", max_new_tokens=8)["run"]
    ended(bench, text)
    assert "error" in call(bench, "explain", text)
    assert "error" in call(bench, "change", text, images=[GOOD])


def ask(bench: Workbench, content: Any) -> httpx.Response:
    """Return the answer of OpenAI's API to a message."""

    async def post() -> httpx.Response:
        app = FastAPI()
        app.include_router(router(bench))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
            return await http.post("/v1/chat/completions", json=body | {"speculation": {"method": "prompt-lookup"}})

    return asyncio.run(post())


def part(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_openais_form(bench: Workbench) -> None:
    text = {"type": "text", "text": "abc"}
    good = ask(bench, [text, part(GOOD)])
    assert good.status_code == 200, good.text
    assert good.json()["usage"]["prompt_tokens"] == 3 + 4 + 2
    for bad in (
        part("/etc/passwd"),
        part("http://x/y.png"),
        part(None),
        part(7),
        {"type": "image_url"},
        {"type": "x"},
        5,
    ):
        answer = ask(bench, [text, bad])
        assert answer.status_code == 400, answer.text
        assert not any(leak in answer.text for leak in LEAKS)


KEPT, REQUESTS = 3, 12
SIZES = {"runs": (123, 77), "bytes": (119, 79)}


def images_alive(size: tuple[int, int]) -> list[Image.Image]:
    """Return the decoded images of a size that this process holds."""
    return [found for found in gc.get_objects() if isinstance(found, Image.Image) and found.size == size]


@pytest.mark.parametrize("limit", SIZES)
def test_only_the_images_of_kept_runs_stay_in_memory_and_are_counted(limit: str, folder: Path) -> None:
    """50 requests with eight images once left 9.7 GB; `tests/server/measure_image_memory.py` measures it."""
    size = SIZES[limit]
    n_bytes = 2 * 4 * size[0] * size[1]  # of the images of a request, without the model's tensors
    values = {"kept_runs": KEPT} if limit == "runs" else {"trace_bytes": (KEPT + 1) * n_bytes}
    content = [part(data_url(Image.new("RGB", size, colour))) for colour in ("red", "blue")]
    with Workbench(target=str(folder), drafter="none", device="cpu", allow_models=(), limits=Limits(**values)) as bench:
        gc.collect()
        gc.disable()  # images must go without a collection of cycles
        try:
            for _ in range(REQUESTS):
                answer = ask(bench, [{"type": "text", "text": "abc"}, *content])
                assert answer.status_code == 200, answer.text
            assert serving.wait_until(lambda: len(images_alive(size)) <= 2 * KEPT)
            alive = images_alive(size)
            assert alive, "images of runs that are kept can be explained"
            held = sum(4 * image.width * image.height for image in alive)
            assert bench.health()["memory"]["traces"] >= held
        finally:
            gc.enable()
