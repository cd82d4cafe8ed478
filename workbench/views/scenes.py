"""Bundled scenes: images with questions, the kinds of the words in their captions, and curves measured on them.

The images and the lexicon come from `workbench.scenes`, the curves from `workbench bench --suite vision`. Data that a
checkout lacks are empty here; the Vision tab then names the command that creates them.
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
"""Group of the vision suite's questions from whose results the Vision tab's curve is drawn."""
CAPTION_TOKENS = 160
"""Number of tokens for the bundled target's description of six shapes and a word. Runs in the tab and recordings use
it; a visitor's next run takes over the settings of a recording."""


def folder() -> Path:
    """Return the folder of images; `WORKBENCH_SCENES` names another one."""
    return Path(os.environ.get("WORKBENCH_SCENES", ASSETS / "scenes"))


def boards() -> Path:
    """Return the folder of boards; `WORKBENCH_BOARDS` names another one."""
    return Path(os.environ.get("WORKBENCH_BOARDS", ASSETS / "boards"))


@cache
def _index() -> dict[str, Any]:
    path = folder() / "index.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def gallery() -> list[dict[str, Any]]:
    """Return the bundled images: name, title, alternative text, questions, and the image as a data URL."""
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
    """Return questions that fit any image."""
    return _index().get("questions", [])


@cache
def lexicon() -> dict[str, str] | None:
    """Return lower-case word → kind (colour, shape, size, relation, number); None if there is no list."""
    path = folder() / "lexicon.json"
    if not path.is_file():
        return None
    return {word: kind for kind, words in json.loads(path.read_text(encoding="utf-8")).items() for word in words}


def board() -> dict[str, Any] | None:
    """Return τ on captions by number of vision tokens, from the vision suite's board; None before the measurement.

    `series` has a line per compressor measured at several strengths, `points` the other drafters; both have `tokens`,
    `tau`, `low` and `high` (95 % interval). `note` describes the measurement.
    """
    path = boards() / "vision.json"
    if not path.is_file():
        return None
    rows = {name: row for name, row in json.loads(path.read_text(encoding="utf-8"))["rows"].items() if _measured(row)}
    lines: dict[str, list[dict[str, Any]]] = {}
    for name, row in rows.items():
        lines.setdefault(row["line"] or name, []).append(_point(row))
    curves = [
        {"name": name, "points": sorted(line_points, key=lambda p: p["tokens"])} for name, line_points in lines.items()
    ]
    if not curves:
        return None
    newest = max(rows.values(), key=lambda row: row["date"])
    n = newest["groups"][GROUP]["tau"]["n"]
    return {
        "series": [line for line in curves if len(line["points"]) > 1],
        "points": [{"name": line["name"], **line["points"][0]} for line in curves if len(line["points"]) == 1],
        "note": f"{n} held-out captions · 95 % confidence interval · {newest['date'][:10]}",
    }


def _measured(row: dict[str, Any]) -> bool:
    return bool(row.get("vision_tokens") and (row["groups"].get(GROUP) or {}).get("tau"))


def _point(row: dict[str, Any]) -> dict[str, Any]:
    tau = row["groups"][GROUP]["tau"]
    ends = {end: tau["value"] if tau[end] is None else tau[end] for end in ("low", "high")}
    return {"tokens": row["vision_tokens"]["value"], "tau": tau["value"], **ends}
