"""A stand-in for a workbench with image input, without any model. For tests of the page only.

The caption is always the same; a drafter with image input is right more often on words about it.
No figure here was measured.
"""

from __future__ import annotations

import base64
import io
import json
import random
import time
from typing import Any

from PIL import Image, ImageDraw
from ui.fake_client import DEPTH, FakeRun, FakeWorkbench, method, param

from workbench.core.errors import ParameterError, PromptError
from workbench.trace.events import Header, Phase, Round
from workbench.trace.images import PromptImage
from workbench.trace.nodes import Nodes, TopTokens
from workbench.trace.tokens import EmittedToken

TEXT = "There are two shapes . From left to right : a large red circle at the top left ; a small blue square below it ."
CAPTION = [word if word in ("There", ".", ":", ";") else f" {word}" for word in TEXT.split()]
OF_PICTURE = {"two", "large", "red", "circle", "top", "left", "small", "blue", "square", "below"}
WRONG = [" green", " star", " big", " three", "<img src=x onerror=window.hurt=1>", " above"]
SIDE = 8


def scene(*shapes: tuple[str, str, tuple[int, int, int, int]]) -> str:
    """Return an image of 64 × 64 pixels as a data URL."""
    image = Image.new("RGB", (64, 64), "#f4f1ea")
    pen = ImageDraw.Draw(image)
    for kind, colour, box in shapes:
        getattr(pen, kind)(box, fill=colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


SCENE = scene(("ellipse", "#d1495b", (6, 8, 30, 32)), ("rectangle", "#30638e", (40, 44, 52, 56)))
AIMS = {"red": (20, 18), "circle": (20, 18), "large": (20, 18), "top": (20, 18), "blue": (50, 46), "square": (50, 46)}
"""Attended position of caption words: (row, column) in pixels."""


class ImageRun(FakeRun):
    """Drafts the caption in chains of four."""

    def __init__(self, images: list[str], *args: Any) -> None:
        self.images, self.at, self.clock = list(images), 0, 0.0
        self.moved: list[dict[str, Any]] = []
        super().__init__(*args)
        self.writer = self  # type: ignore[assignment]  # asked for rounds, text, clock and left
        self.rng = random.Random(f"{self.method}{self.header['seed']}")
        pictures = [self._picture(url) for url in self.images]
        header = Header(
            "synthetic-vision", self.method, self.params, "exact", 0, "<|user|>Describe.<|assistant|>", [0], [""], 96,
            "float32", "synthetic", "synthetic-drafter", pictures=pictures,
        )  # fmt: skip
        self.header = header.to_wire()

    @property
    def left(self) -> int:
        return len(CAPTION) - self.at

    @property
    def text(self) -> str:
        return "".join(CAPTION[: self.at])

    def _picture(self, url: str) -> PromptImage:
        return PromptImage(url, 64, 64, SIDE, SIDE, 1, 1 + SIDE * SIDE)

    def round(self, method: str, params: dict[str, Any], changes: list[Any]) -> Round:
        """Return one round."""
        index, start, blind = len(self.rounds), self.at, "text" in method
        nodes, path, rejected = Nodes(), [], False
        for depth in range(1, min(int(params.get("depth", 4)), self.left - 1) + 1):
            word = CAPTION[start + depth - 1]
            right = self.rng.random() < (0.3 if blind and word.strip() in OF_PICTURE else 0.93)
            text = word if right else self.rng.choice(WRONG)
            status = "discarded" if rejected else "accepted" if right else "rejected"
            for name, value in (
                ("tokens", hash(text) % 999), ("parents", depth - 2), ("depth", depth), ("position", start + depth),
                ("text", text), ("p", 0.9 if right else 0.02), ("q", 0.7), ("accept", 0.9), ("u", 0.4),
                ("status", status), ("source", "synthetic"),
            ):  # fmt: skip
                getattr(nodes, name).append(value)
            if status == "accepted":
                path.append(depth - 1)
            rejected |= status == "rejected"
        emitted = []
        for k in range(len(path) + 1):
            kind = "accepted" if k < len(path) else "corrected" if rejected else "bonus"
            emitted.append(EmittedToken(0, CAPTION[self.at], 0, 0, kind, k if k < len(path) else None, self.at, 0.92))
            self.at += 1
        top = [TopTokens([1, 2], [" red", " blue"], [0.7, 0.2]) for _ in range(len(nodes) + 1)]
        begun, self.clock = self.clock, self.clock + 0.01
        phases = [Phase("draft", begun, begun + 0.002), Phase("verify", begun + 0.002, begun + 0.009)]
        return Round(
            index, method, dict(params), nodes, path, 0, emitted[-1].kind, emitted, top, list(top), [], phases, begun,
            0.01, 0.002, 0.007, 0.001, len(nodes), 1, changes, vision=self._vision(index, blind),
        )  # fmt: skip

    def _vision(self, index: int, blind: bool) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if index == 0:
            kept = [8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27, 45, 46, 53, 54]
            looks = [[1 / (1 + abs(patch - at)) for patch in range(64)] for at in (18, 46)]
            ways = {
                "pool": {"n_drafter": 16, "kept": None, "weights": None,
                         "blocks": [[r * 8 + c, r * 8 + c + 1, r * 8 + c + 8, r * 8 + c + 9] for r in (0, 2, 4, 6)
                                    for c in (0, 2, 4, 6)]},
                "resample": {"n_drafter": 2, "kept": None, "blocks": None,
                             "weights": looks},
                "prune": {"n_drafter": 16, "kept": kept, "blocks": None, "weights": None},
            }  # fmt: skip
            way = str(self.params.get("compressor", "prune"))
            blind_way = {"n_drafter": 0, "kept": None, "blocks": None, "weights": None}
            said = {
                "drafter": self.method, "compressor": None if blind else way, "n_target": 64, "target_bytes": 49152,
                "drafter_bytes": 0 if blind else 4096, "target_prefill_s": 0.0098,
                "drafter_prefill_s": 0.0004 if blind else 0.0031,
                "gate": None if blind else {"prune": 0.71, "pool": 0.18, "resample": 0.11},
                **(blind_way if blind else ways[way]),
            }  # fmt: skip
        for moved in self.moved:
            said |= moved
        self.moved = []
        return said

    def change(self, *args: Any, images: list[str] | None = None, sees: str = "both", **more: Any) -> None:
        if images:
            with self.lock:
                pictures = [self._picture(url) for url in images]
                self.moved.append(
                    {"pictures": [{k: getattr(p, k) for k in p.__slots__} for p in pictures], "sees": sees}
                )
        super().change(*args, **more)

    def explain(self) -> dict[str, Any]:
        """Add synthetic attention maps: a word about the image attends to its shape."""
        words = [w.strip() for w in CAPTION[: self.at]]
        aims = [AIMS.get(w) for w in words]

        def weight(aim: tuple[int, int] | None, patch: int) -> int:
            if aim is None:
                return 12
            far = abs(patch // SIDE * 8 + 4 - aim[0]) + abs(patch % SIDE * 8 + 4 - aim[1])
            return max(0, 255 - 9 * far)

        maps = [[weight(aim, patch) for patch in range(SIDE * SIDE)] for aim in aims]
        both = {"attention": maps, "gradient": [row[::-1] for row in maps]}
        return {
            "target": both, "drafter": None if "text" in self.method else both,
            "p_blind": [0.1 if w in OF_PICTURE else 0.9 for w in words],
        }  # fmt: skip


class FakeVision(FakeWorkbench):
    """The client's methods, with one synthetic target that reads images."""

    def targets(self) -> list[dict[str, Any]]:
        reads = {"name": "synthetic-vision", "title": "Synthetic vision", "kind": "bundled", "detail": "no model"}
        return [*super().targets(), reads | {"pictures": True, "square": True}]

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        way = param("compressor", "choice", "prune", choices=["prune", "pool", "resample"])
        seeing = method("specvlm", "SpecVLM", "exact", [way, DEPTH])
        return [*super().methods(target, drafter), seeing, method("vlm-text-only", "Text only", "exact", [DEPTH])]

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        return [len(part.get("text", "")) for message in messages for part in message["content"]]

    def start(
        self, prompt: Any, method: str = "draft-model", *, images: Any = None, user: str = "", **more: Any
    ) -> Any:
        if not images:
            raise PromptError("There is no image.", "Give one.")
        for url in images:
            if not url.startswith("data:image/"):
                raise ParameterError("This is not an image.", "Give PNG, JPEG, WebP or GIF.")
        run = ImageRun(
            images,
            prompt,
            method,
            more.get("params") or {},
            96,
            more.get("seed", 0),
            more.get("paused", False),
            self.pace,
        )
        run.lease_s = more.get("lease_s")
        self.runs[run.id] = run
        return run


def finished_trace(client: FakeVision, method: str) -> dict[str, Any]:
    """Return the serialised trace of a finished and explained synthetic run."""
    run = client.start("Describe.", method, images=[SCENE], seed=3)
    while run.footer is None:
        time.sleep(0.01)
    news = run.since(0)
    trace = {name: news[name] for name in ("header", "rounds", "footer")} | {"attribution": run.explain()}
    return json.loads(json.dumps(trace))
