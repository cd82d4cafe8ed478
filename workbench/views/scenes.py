"""The bundled scenes: pictures to ask about, the kinds of the words in their captions, the curves measured on them.

The pictures and the lexicon come from `workbench.scenes`, the curves from `workbench bench --suite vision`.
What a checkout does not hold is empty here, and the tab says which command makes it.
"""

from __future__ import annotations

import base64
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).resolve().parents[2] / "assets"
GROUP = "captions"
"""The group of the suite's questions that the curve is drawn from."""
CAPTION_TOKENS = 160
"""Enough for what the bundled target writes about six shapes and a word: of a run in the tab, and of a recording, from
which a visitor's next run takes it over."""


def folder() -> Path:
    """Where the pictures are; `WORKBENCH_SCENES` names another folder."""
    return Path(os.environ.get("WORKBENCH_SCENES", ASSETS / "scenes"))


def boards() -> Path:
    """Where the boards are; `WORKBENCH_BOARDS` names another folder."""
    return Path(os.environ.get("WORKBENCH_BOARDS", ASSETS / "boards"))


@cache
def _index() -> dict[str, Any]:
    path = folder() / "index.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def gallery() -> list[dict[str, Any]]:
    """The bundled pictures: name, title, alternative text, questions, and the picture as a data-URL."""
    return [
        {
            "name": scene["name"],
            "title": scene.get("title", scene["name"]),
            "alt": scene["alt"],
            "questions": scene["questions"],
            "url": "data:image/png;base64," + base64.b64encode((folder() / scene["file"]).read_bytes()).decode("ascii"),
        }
        for scene in _index().get("scenes", [])
    ]


def questions() -> list[str]:
    """Questions that fit any picture."""
    return _index().get("questions", [])


@cache
def lexicon() -> dict[str, str] | None:
    """Word in lower case → its kind (colour, shape, size, relation, number); None where there is no list."""
    path = folder() / "lexicon.json"
    if not path.is_file():
        return None
    return {word: kind for kind, words in json.loads(path.read_text(encoding="utf-8")).items() for word in words}


def board() -> dict[str, Any] | None:
    """τ on captions against vision tokens kept, from the vision suite's board; None before it was measured.

    `series` has a line for each compressor that was measured at several strengths, `points` the other drafters; both
    hold `tokens`, `tau`, `low` and `high` (95 %). `note` says how it was measured.
    """
    path = boards() / "vision.json"
    if not path.is_file():
        return None
    rows = {name: row for name, row in json.loads(path.read_text(encoding="utf-8"))["rows"].items() if _measured(row)}
    lines: dict[str, list[dict[str, Any]]] = {}
    for name, row in rows.items():
        lines.setdefault(row["line"] or name, []).append(_point(row))
    made = [{"name": name, "points": sorted(mine, key=lambda p: p["tokens"])} for name, mine in lines.items()]
    if not made:
        return None
    newest = max(rows.values(), key=lambda row: row["date"])
    n = newest["groups"][GROUP]["tau"]["n"]
    return {
        "series": [line for line in made if len(line["points"]) > 1],
        "points": [{"name": line["name"], **line["points"][0]} for line in made if len(line["points"]) == 1],
        "note": f"{n} held-out captions · 95 % interval · {newest['date'][:10]}",
    }


def _measured(row: dict[str, Any]) -> bool:
    return bool(row.get("vision_tokens") and (row["groups"].get(GROUP) or {}).get("tau"))


def _point(row: dict[str, Any]) -> dict[str, Any]:
    tau = row["groups"][GROUP]["tau"]
    ends = {end: tau["value"] if tau[end] is None else tau[end] for end in ("low", "high")}
    return {"tokens": row["vision_tokens"]["value"], "tau": tau["value"], **ends}
