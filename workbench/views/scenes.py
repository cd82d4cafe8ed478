"""Bundled images (scenes) with questions, the categories of words in their captions, and measured curves.

`workbench.scenes` creates the images and the list of words, `workbench bench --suite vision` measures the curves (τ by
number of vision tokens). Data that are missing in a checkout are empty here; the Vision tab then names the command that
creates them.
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
"""Group of questions in the suite `vision` whose results the curve on the Vision tab shows."""
CAPTION_TOKENS = 160
"""Maximum number of new tokens in runs of the Vision tab and in their recordings.

The bundled target needs this number to describe six shapes and a word. Recordings use the same number because a
visitor's next run has the settings of the recording on display.
"""


def folder() -> Path:
    """Return the folder of the bundled images; the variable `WORKBENCH_SCENES` can name another folder."""
    return Path(os.environ.get("WORKBENCH_SCENES", ASSETS / "scenes"))


def boards() -> Path:
    """Return the folder of boards (saved measurements); the variable `WORKBENCH_BOARDS` can name another folder."""
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
    """Return general questions, which can be asked about any image."""
    return _index().get("questions", [])


@cache
def lexicon() -> dict[str, str] | None:
    """Return the category (colour, shape, size, relation, number) of words in image captions, by lower-case word.

    None if the file with the list is missing.
    """
    path = folder() / "lexicon.json"
    if not path.is_file():
        return None
    return {word: kind for kind, words in json.loads(path.read_text(encoding="utf-8")).items() for word in words}


def board() -> dict[str, Any] | None:
    """Return τ on image captions by number of vision tokens, from the saved measurements of the suite `vision`.

    None if nothing has been measured yet.

    Key `series` has a line for each compressor of vision tokens that was measured at several strengths; `points` has
    the other drafters. The entries of both have `tokens`, `tau`, `low` and `high` (95 % confidence interval). Key
    `note` describes the measurement.
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
