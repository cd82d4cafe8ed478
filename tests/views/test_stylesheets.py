"""Stylesheets of the tabs, which are all loaded into one page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workbench import views

FOLDER = Path(views.__file__).parent
TABS = {"live": "live", "vision": "vision", "compare": "compare", "sweep": "sweep", "lab": "lab", "tworuns": "compare"}
"""Stylesheet of each tab → folder of the modules that it is for."""


def names(folder: str) -> set[str]:
    """Return all words in the JavaScript modules of a folder, which include the classes of their elements."""
    modules = [path for path in (FOLDER / "js" / folder).rglob("*.js") if not path.name.endswith(".test.js")]
    return {word for path in modules for word in re.findall(r"[\w-]+", path.read_text(encoding="utf-8"))}


def selectors(sheet: str) -> list[str]:
    """Return the selectors of a stylesheet, one for each part between commas."""
    text = re.sub(r"/\*.*?\*/", "", (FOLDER / f"{sheet}.css").read_text(encoding="utf-8"), flags=re.DOTALL)
    rules = [rule for rule in re.findall(r"([^{};]+)\{", text) if not rule.strip().startswith("@")]
    return [part.strip() for rule in rules for part in re.split(r",(?![^()]*\))", rule)]


@pytest.mark.parametrize("sheet", TABS)
def test_no_rule_of_a_tab_applies_to_elements_of_another_tab(sheet: str) -> None:
    shared, own = names("shared"), TABS[sheet]
    collisions: list[str] = []
    for selector in selectors(sheet):
        classes = set(re.findall(r"\.((?:wb|is)-[\w-]+)", selector)) - {"wb-page"}
        if not classes or classes <= shared or "#wb-" in selector:
            continue
        others = {folder for folder in TABS.values() if folder != own and classes <= names(folder) | shared}
        collisions += [f"{selector} applies to {other} too" for other in sorted(others)]
    assert not collisions


def test_the_selectors_of_a_stylesheet_are_found() -> None:
    assert ".wb-firstracetext" in selectors("live")
    assert len(selectors("compare")) > 50
