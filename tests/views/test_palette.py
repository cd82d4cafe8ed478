"""The palette is legible, and statuses are distinguishable with every kind of colour vision."""

from __future__ import annotations

import itertools
import re

import pytest
from views.colour import VISION, ciede2000, contrast, difference
from views.style_variables import FONTS

from workbench.views import css_variables, palette
from workbench.views.modules import STYLESHEET
from workbench.views.palette import THEMES, variables

STATUSES = list(palette()["statuses"])


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0000),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_formula_gives_the_published_test_values(one, two, expected) -> None:
    assert ciede2000(one, two) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES)
def test_statuses_are_distinguishable(theme: str, vision: str) -> None:
    strokes = {name: palette()["statuses"][name][theme]["stroke"] for name in STATUSES}
    for (a, one), (b, two) in itertools.combinations(strokes.items(), 2):
        assert difference(one, two, vision) >= 15, f"{a} and {b} look alike ({theme}, {vision})"


@pytest.mark.parametrize("theme", THEMES)
def test_strokes_and_text_have_contrast(theme: str) -> None:
    surface = palette()["surfaces"][theme]
    for ground in (surface["bg"], surface["panel"]):
        assert contrast(surface["ink"], ground) >= 12
        assert contrast(surface["mute"], ground) >= 4.5, "small grey text"
    assert contrast(surface["ink"], surface["alert-tint"]) >= 7
    for name, status in palette()["statuses"].items():
        assert contrast(status[theme]["stroke"], surface["bg"]) >= 3, f"{name}: graphics need 3:1"
        assert contrast(surface["ink"], status[theme]["tint"]) >= 7, f"ink on the tint of {name}"


@pytest.mark.parametrize("kind", ["phases", "methods"])
@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES)
def test_phases_and_methods_are_distinguishable(theme: str, vision: str, kind: str) -> None:
    colours = [value[theme] for value in palette()[kind].values()]
    for one, two in itertools.combinations(colours, 2):
        assert difference(one, two, vision) >= 15


@pytest.mark.parametrize("theme", THEMES)
def test_bands_of_methods_have_contrast(theme: str) -> None:
    for slot, value in palette()["methods"].items():
        assert contrast(value[theme], palette()["surfaces"][theme]["bg"]) >= 3, f"{slot}: graphics need 3:1"


def test_every_status_has_its_own_glyph_line_and_shape() -> None:
    for key in ("glyph", "line", "node"):
        marks = [status[key] for status in palette()["statuses"].values()]
        assert len(set(marks)) == len(marks) or key == "line"


def test_both_themes_define_the_same_variables() -> None:
    assert set(variables("light")) == set(variables("dark"))
    assert css_variables().count("--wb-accepted:") == 2


def test_the_stylesheet_has_no_literal_colour_and_no_unknown_variable() -> None:
    css = STYLESHEET.read_text(encoding="utf-8")
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b", css)
    used = set(re.findall(r"var\((--wb-[a-z-]+)", css))
    assert used <= set(variables("light")) | FONTS | {"--wb-share"}  # the last set by cells.js
